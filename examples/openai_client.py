"""Hold one spoken call with the official `openai` client: ask, print what was heard and the answer.

    metronome serve
    python examples/openai_client.py [RECORDING [URL]]
    python examples/openai_client.py question.wav ws://127.0.0.1:8765/v1/realtime

The recording is WAV, FLAC or Ogg at any rate; left out, it is a question that comes with metronome-cli.
A server that asks for a key finds it in METRONOME_API_KEY.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from importlib import resources
from pathlib import Path
from typing import Any

try:
    from openai import AsyncOpenAI, OpenAIError
    from openai.resources.realtime.realtime import AsyncRealtimeConnection
    from openai.types.realtime import RealtimeSessionCreateRequestParam
    from websockets.exceptions import InvalidStatus, WebSocketException

    from metronome_cli.errors import FieldError
    from metronome_cli.speech import RATE, decode_clip
except ImportError as missing:
    sys.exit(f"{missing}: pip install metronome-cli 'openai[realtime]'\n\n{__doc__}")

URL = "ws://127.0.0.1:8765/v1"
PACKET_S = 0.02
SILENCE_S = 1.0  # after the question, so that the server can tell that it is over
LISTEN_S = 60.0  # after the last word of the recording


class Complaint(Exception):
    """What the server says is wrong."""


# 16 kHz saves resampling; OpenAI itself takes 24 kHz only.
SESSION: RealtimeSessionCreateRequestParam = {
    "type": "realtime",
    "output_modalities": ["text"],
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": RATE},  # type: ignore[typeddict-item]
            "transcription": {"model": "whisper-1"},
            "turn_detection": {"type": "server_vad"},
        }
    },
}


def question(path: str | None) -> bytes:
    """A recording as 16-bit samples at RATE, with silence after it."""
    file = Path(path) if path else resources.files("metronome_cli") / "data/questions/capital-of-france.flac"
    samples = decode_clip(file.name, file.read_bytes()).samples
    return bytes((samples * 32767).astype("<i2").tobytes() + bytes(int(SILENCE_S * RATE) * 2))


async def speak(call: AsyncRealtimeConnection, pcm: bytes) -> None:
    """Send 16-bit samples in packets of 20 ms, each when a microphone would have it."""
    clock = asyncio.get_running_loop()
    start, size = clock.time(), int(RATE * PACKET_S) * 2
    for at in range(0, len(pcm), size):
        await asyncio.sleep(start + (at + size) / 2 / RATE - clock.time())
        await call.input_audio_buffer.append(audio=base64.b64encode(pcm[at : at + size]).decode())


async def listen(call: AsyncRealtimeConnection) -> None:
    """Print what was heard, and the answer as it comes, until both are complete."""
    missing = {"transcript", "answer"}
    async for event in call:
        if event.type == "conversation.item.input_audio_transcription.completed":
            print(f"heard: {event.transcript}", flush=True)
            missing.discard("transcript")
        elif event.type == "response.output_text.done":
            print(f"answer: {event.text}", flush=True)
            missing.discard("answer")
        elif event.type == "error":
            raise Complaint(event.error.message)
        if not missing:
            return


def refusal(answer: Any) -> str:
    """Why a server took no call: its status, its reason for programs and for people, when to come again."""
    try:
        error = json.loads(answer.body)["error"]
        why = f"{error['code']}, {error['message']}"
    except (KeyError, TypeError, ValueError):
        why = answer.reason_phrase
    again = answer.headers.get("Retry-After")
    return f"HTTP {answer.status_code}: {why}" + (f"; come again in {again} s" if again else "")


async def main(path: str | None = None, url: str = URL) -> None:
    pcm, base = question(path), url.removesuffix("/realtime")  # which the client adds by itself
    client = AsyncOpenAI(api_key=os.environ.get("METRONOME_API_KEY", "none"), websocket_base_url=base)
    async with client.realtime.connect(model="laptop") as call:
        await call.session.update(session=SESSION)
        listening = asyncio.create_task(listen(call))
        await speak(call, pcm)
        await asyncio.wait_for(listening, LISTEN_S)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit()
    if len(sys.argv) > 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except InvalidStatus as refused:
        sys.exit(refusal(refused.response))
    except TimeoutError:
        sys.exit(f"transcript and answer were not both there {LISTEN_S:g} s after the question")
    except Complaint as complaint:
        sys.exit(str(complaint))
    except (OSError, FieldError, OpenAIError, WebSocketException) as error:
        sys.exit(f"{type(error).__name__}: {error}")
