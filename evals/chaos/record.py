"""Writes recorded.jsonl: what two real clients say in calls to a server that only listens.

Run:  python -m evals.chaos.record

One line a call, a list of the texts that were sent: OpenAI's own client, and examples/call.py.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from examples.call import speak

from .voice import voice

RECORDED = Path(__file__).with_name("recorded.jsonl")
PACKETS = 12


async def spoken(line: AsyncRealtimeConnection) -> None:
    """A spoken call whose caller commits."""
    await line.session.update(
        session={
            "type": "realtime",
            "output_modalities": ["text"],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "transcription": {"model": "whisper-1", "language": "en"},
                }
            },
            "instructions": "Answer in one short sentence.",
            "max_output_tokens": 64,
        }
    )
    for number in range(PACKETS):
        packet = voice(24_000)[number * 960 : number * 960 + 960]
        await line.input_audio_buffer.append(audio=base64.b64encode(packet).decode())
    await line.input_audio_buffer.commit()
    await line.response.create(response={"metadata": {"topic": "geography"}, "max_output_tokens": 5})
    await line.response.cancel()
    await line.input_audio_buffer.clear()


async def typed(line: AsyncRealtimeConnection) -> None:
    """A typed call with turn detection of its own."""
    await line.session.update(
        session={
            "type": "realtime",
            "audio": {
                "input": {
                    "turn_detection": {
                        "type": "server_vad",
                        "threshold": 0.6,
                        "prefix_padding_ms": 200,
                        "silence_duration_ms": 400,
                        "create_response": True,
                        "interrupt_response": False,
                    }
                }
            },
        }
    )
    for question in ("What is the capital of Egypt?", "Wie heißt die größte Stadt Perús? 🦙"):
        await line.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": question}],
            }
        )
        await line.response.create()
    await line.response.cancel(response_id="resp_1_1")
    await line.input_audio_buffer.append(audio=base64.b64encode(voice(24_000)[:960]).decode())


async def ours(line: AsyncRealtimeConnection) -> None:
    """All of our own extension."""
    metronome = {
        "ticks": True, "resume": True, "policy": "window", "window": 48, "sinks": "header",
        "positions": "absolute",
    }  # fmt: skip
    audio = {
        "input": {"format": {"type": "audio/pcm", "rate": 8_000}, "turn_detection": {"type": "full_duplex"}}
    }
    session = {"type": "realtime", "audio": audio, "metronome": metronome}
    await line.send({"type": "session.update", "session": session})  # type: ignore[arg-type]
    await line.input_audio_buffer.append(audio=base64.b64encode(voice(8_000)[:320]).decode())


async def main() -> None:
    calls: list[list[str]] = []

    async def listen(line: ServerConnection) -> None:
        calls.append([])
        with contextlib.suppress(ConnectionClosed):
            async for message in line:
                calls[-1].append(str(message))

    async with serve(listen, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        address = f"ws://127.0.0.1:{port}/v1"
        client = AsyncOpenAI(api_key="none", base_url=address, websocket_base_url=address)
        scripts: tuple[Callable[[AsyncRealtimeConnection], Awaitable[None]], ...] = (spoken, typed, ours)
        for script in scripts:
            async with client.realtime.connect(model="null") as line:
                await script(line)
        await client.close()
        async with connect(f"{address}/realtime") as plain:
            await speak(plain, np.frombuffer(voice(16_000)[: 640 * PACKETS], "<i2"), 16_000)
    RECORDED.write_text("".join(json.dumps(call) + "\n" for call in calls), "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
