"""Hold one spoken call: speak a recording, print the answer as it comes.

    metronome serve
    python examples/call.py RECORDING [URL]
    python examples/call.py src/metronome_cli/data/questions/capital-of-egypt.flac

The recording is WAV, FLAC or Ogg, mono, at 24, 16 or 8 kHz. A server that asks for a key finds it in
METRONOME_API_KEY.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
from typing import Any

try:
    import soundfile
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import InvalidStatus, WebSocketException
except ImportError as missing:
    sys.exit(f"{missing}: pip install soundfile websockets\n\n{__doc__}")

URL = "ws://127.0.0.1:8765/v1/realtime"
PACKET_S = 0.02
LISTEN_S = 10.0  # after the last word of the recording
# A model that never rests answers already, and need not be asked to.
ANSWERS_ALREADY = "conversation_already_has_active_response"
DELTAS = ("response.output_text.delta", "response.output_audio_transcript.delta")
ENDS = ("response.output_text.done", "response.output_audio_transcript.done")


class Complaint(Exception):
    """What the server says is wrong."""


async def speak(line: ClientConnection, samples: Any, rate: int) -> None:
    """Send 16-bit samples in packets of 20 ms, each when a microphone would have it."""
    audio = {"input": {"format": {"type": "audio/pcm", "rate": rate}, "turn_detection": None}}
    await line.send(json.dumps({"type": "session.update", "session": {"type": "realtime", "audio": audio}}))
    start, size = asyncio.get_running_loop().time(), int(rate * PACKET_S)
    for at in range(0, len(samples), size):
        await asyncio.sleep(start + (at + size) / rate - asyncio.get_running_loop().time())
        encoded = base64.b64encode(samples[at : at + size].tobytes()).decode()
        await line.send(json.dumps({"type": "input_audio_buffer.append", "audio": encoded}))
    for event in ("input_audio_buffer.commit", "response.create"):
        await line.send(json.dumps({"type": event}))


async def listen(line: ClientConnection) -> None:
    """Print the reply as it comes, until it is complete."""
    async for message in line:
        event = json.loads(message)
        if event["type"] in DELTAS:
            print(event["delta"], end="", flush=True)
        elif event["type"] in ENDS:
            print()
            return
        elif event["type"] == "error" and event["error"]["code"] != ANSWERS_ALREADY:
            raise Complaint(event["error"]["message"])


def refusal(answer: Any) -> str:
    """Why a server took no call: its status, its reason for programs and for people, when to come again."""
    try:
        error = json.loads(answer.body)["error"]
        why = f"{error['code']}, {error['message']}"
    except (KeyError, TypeError, ValueError):
        why = answer.reason_phrase
    again = answer.headers.get("Retry-After")
    return f"HTTP {answer.status_code}: {why}" + (f"; come again in {again} s" if again else "")


async def main(path: str, url: str = URL) -> None:
    samples, rate = soundfile.read(path, dtype="int16")
    key = os.environ.get("METRONOME_API_KEY")
    async with connect(url, additional_headers={"Authorization": f"Bearer {key}"} if key else None) as line:
        listening = asyncio.create_task(listen(line))
        await speak(line, samples, rate)
        await asyncio.wait_for(listening, LISTEN_S)


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit()
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except InvalidStatus as refused:
        sys.exit(refusal(refused.response))
    except TimeoutError:
        sys.exit(f"\nthe answer had not ended {LISTEN_S:g} s after the question")
    except Complaint as complaint:
        sys.exit(str(complaint))
    except (OSError, soundfile.SoundFileError, WebSocketException) as error:
        sys.exit(f"{type(error).__name__}: {error}")
