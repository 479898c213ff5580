"""Servers of other makes, as small as they can be: each speaks one protocol as its documentation has it.

OpenAI's Realtime events in the GA form; vLLM's /v1/realtime (its entrypoints' protocol and example client);
the moshi.server WebSocket (its protocol page, and the server's habit of one caller at a time).
None of them has ears or a model: sound is sound when it is not zero, and the answer is always the same.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import sphn
from numpy.typing import NDArray
from openai.types.realtime import SessionUpdateEvent
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

Handler = Callable[[ServerConnection], Awaitable[None]]
Door = Callable[[ServerConnection, Request], Response | None]


@contextmanager
def served(handler: Handler, path: str = "", at_the_door: Door | None = None) -> Iterator[str]:
    """A WebSocket server in a thread of its own; its address. `at_the_door` may refuse the upgrade."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    port = []

    async def main() -> None:
        async with serve(handler, "127.0.0.1", 0, process_request=at_the_door) as server:
            port.append(next(iter(server.sockets)).getsockname()[1])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield f"ws://127.0.0.1:{port[0]}{path}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


class OpenAIServer:
    """server_vad: 200 ms of silence end a turn, and an answer of `words` follows, `pause_s` between them."""

    def __init__(self, words: int = 3, pause_s: float = 0.01, spoken: bool = False) -> None:
        self.words, self.pause_s, self.spoken = words, pause_s, spoken
        self.samples = 0  # of 24 kHz, all callers together
        self.asked: list[SessionUpdateEvent] = []
        self.cancelled = 0
        self.late: int = 0  # tokens sent after a cancel

    async def __call__(self, line: ServerConnection) -> None:
        created = {"id": "sess_x", "type": "realtime", "object": "realtime.session", "model": "m"}
        await self._say(line, "session.created", session=created)
        await self._say(line, "rate_limits.updated", rate_limits=[])
        silent, speaking, reply = 0, False, None
        async for message in line:
            event = json.loads(message)
            if event["type"] == "session.update":
                self.asked.append(SessionUpdateEvent.model_validate(event))
            elif event["type"] == "response.cancel":
                await self._cancel(line, reply)
            else:
                sound = np.frombuffer(base64.b64decode(event["audio"]), "<i2")
                self.samples += len(sound)
                silent = 0 if sound.any() else silent + len(sound)
                speaking = speaking or bool(sound.any())
                if speaking and silent >= 4800:
                    speaking, reply = False, asyncio.create_task(self._answer(line))

    async def _answer(self, line: ServerConnection) -> None:
        name = f"resp_{id(object())}_{self.samples}"
        kind = "output_audio_transcript" if self.spoken else "output_text"
        transcript = "conversation.item.input_audio_transcription.completed"
        await self._say(line, transcript, item_id="i", content_index=0, transcript="Hello there.")
        for word in range(self.words):
            await self._say(line, f"response.{kind}.delta", response_id=name, delta=f"word{word} ")
            if self.spoken:
                sound = base64.b64encode(bytes(4800)).decode()  # 100 ms
                await self._say(line, "response.output_audio.delta", response_id=name, delta=sound)
            await asyncio.sleep(self.pause_s)
        await self._say(line, "response.done", response={"id": name, "status": "completed"})

    async def _cancel(self, line: ServerConnection, reply: asyncio.Task[None] | None) -> None:
        if reply is None or reply.done():
            error = {"type": "invalid_request_error", "code": "response_cancel_not_active", "message": "no"}
            await self._say(line, "error", error=error)
            return
        reply.cancel()
        self.cancelled += 1
        await self._say(line, "response.done", response={"id": "?", "status": "cancelled"})

    async def _say(self, line: ServerConnection, kind: str, **fields: Any) -> None:
        await line.send(json.dumps({"type": kind, "event_id": "event_x"} | fields))


class VllmServer:
    """Transcribes: each half second of sound is one word, told as it comes."""

    def __init__(self, model: str = "voxtral") -> None:
        self.model = model
        self.finals = 0
        self.seconds = 0.0

    async def __call__(self, line: ServerConnection) -> None:
        await self._say(line, "session.created", id="sess-1", created=0)
        model, begun, samples, told = "", False, 0, 0
        async for message in line:
            event = json.loads(message)
            match event["type"]:
                case "session.update":
                    model = event["model"]
                    if model != self.model:
                        await self._say(
                            line, "error", error=f"The model `{model}` does not exist.", code=None
                        )
                case "input_audio_buffer.commit" if not model:
                    await self._say(line, "error", error="No model yet.", code="model_not_validated")
                case "input_audio_buffer.commit":
                    begun = True
                    if event["final"]:
                        self.finals += 1
                        await self._say(line, "transcription.done", text="word " * told, usage=None)
                case "input_audio_buffer.append" if begun and model == self.model:
                    samples += len(base64.b64decode(event["audio"])) // 2
                    self.seconds += len(base64.b64decode(event["audio"])) / 2 / 16_000
                    for _ in range(told, samples // 8000):
                        told += 1
                        await self._say(line, "transcription.delta", delta="word ")
                        await self._say(line, "transcription.delta", delta="")

    async def _say(self, line: ServerConnection, kind: str, **fields: Any) -> None:
        await line.send(json.dumps({"type": kind} | fields))


class MoshiServer:
    """80 ms in, 80 ms out, a word each fifth frame. One caller at a time: others wait for a handshake."""

    FRAME = 1920

    def __init__(self, every: int = 1) -> None:
        self.every = every  # it answers one frame in so many with sound
        self.heard: NDArray[np.float32] = np.zeros(0, np.float32)
        self._lock: asyncio.Lock | None = None

    async def __call__(self, line: ServerConnection) -> None:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            await line.send(bytes([0]) + struct.pack("<II", 0, 1))
            await line.send(bytes([4]) + b"{}")  # metadata
            await line.send(bytes([9]) + b"of a later version")
            await self._converse(line)

    async def _converse(self, line: ServerConnection) -> None:
        reader, writer = sphn.OpusStreamReader(24_000), sphn.OpusStreamWriter(24_000)
        waiting, frames = np.zeros(0, np.float32), 0
        async for message in line:
            assert isinstance(message, bytes)
            assert message[0] == 1
            sound = reader.append_bytes(message[1:])
            self.heard = np.concatenate([self.heard, sound])
            waiting = np.concatenate([waiting, sound])
            while len(waiting) >= self.FRAME:
                waiting, frames = waiting[self.FRAME :], frames + 1
                if frames % self.every == 0:
                    await line.send(bytes([1]) + writer.append_pcm(np.zeros(self.FRAME, np.float32)))
                if frames % 5 == 0:
                    await line.send(bytes([2]) + b" well")
