"""A well-behaved call beside it all, in a process of its own: what it is told is the judgement.

Started as `python -m evals.chaos.witness ADDRESS asks|listens`; it holds its call until its standard input
ends, and writes what it saw as one JSON document.

It speaks all the time; one that asks types a question a second too. Left out of what is compared between two
runs: event ids and usage (both count what came in how many ticks), and the tick events (they hold times).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.stats import percentiles

from .voice import voice

PACKET_S = 0.02
QUESTION_EVERY = 50  # packets
RATE = 16_000
SETTINGS = {
    "type": "realtime",
    "audio": {"input": {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": None}},
    "metronome": {"ticks": True},
}


@dataclass
class Seen:
    """All that a witness has to say."""

    frames: int = 0
    missing_frames: int = 0  # ticks whose event never came
    skipped_beats: int = 0
    stalled: int = 0
    empty: int = 0  # frames without a token though the call was to speak
    wrong_deltas: int = 0  # frames whose deltas are not as many as the tick event says
    errors: list[str] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)  # one digest per reply, of all its events
    strange: list[str] = field(default_factory=list)  # ids of another session
    fresh_s: dict[str, float] | None = None  # from a frame's due time to its first delta, on our clock
    fresh_max_s: float | None = None
    tick_s: dict[str, float] | None = None  # from a frame's due time to its tick event
    lag_s: dict[str, float] | None = None  # our own lateness in sending
    ended: str | None = None  # why the call did not last


class Witness:
    """Follows one call's events."""

    def __init__(self, clock: Clock) -> None:
        self.seen = Seen()
        self._clock = clock
        self._session = ""
        self._last_frame: int | None = None
        self._deltas = 0
        self._first: float | None = None
        self._fresh: list[float] = []
        self._ticks: list[float] = []
        self._reply = hashlib.sha256()
        self.lags: list[float] = []

    def take(self, text: str) -> None:
        now, event = self._clock.now(), json.loads(text)
        if event["type"] == "session.created":
            self._session = event["session"]["id"].removeprefix("sess_")
        for found in _ids(event):
            if found.split("_")[1] != self._session:
                self.seen.strange.append(found)
        if event["type"] == "metronome.tick":
            self._tick(event, now)
        elif event["type"] == "error":
            self.seen.errors.append(event["error"]["message"])
        else:
            self._heard(event, now)

    def _heard(self, event: dict[str, Any], now: float) -> None:
        if event["type"].startswith("session."):
            return
        if event["type"] == "response.output_text.delta":
            self._deltas += 1
            self._first = self._first or now
        event["event_id"] = ""
        event.get("response", {}).pop("usage", None)
        self._reply.update(json.dumps(event).replace(f"_{self._session}_", "_").encode())
        if event["type"] == "response.done":
            self.seen.replies.append(self._reply.hexdigest()[:16])
            self._reply = hashlib.sha256()

    def _tick(self, event: dict[str, Any], now: float) -> None:
        seen = self.seen
        seen.frames += 1
        if self._last_frame is not None:  # before the first, deltas came of frames without a tick event
            seen.missing_frames += event["frame"] - self._last_frame - 1
            seen.skipped_beats += event["skipped"]
            seen.wrong_deltas += event["tokens_out"] != self._deltas
        self._last_frame = event["frame"]
        seen.stalled += event["stalled"]
        seen.empty += event["speaking"] and event["tokens_out"] == 0
        self._ticks.append(now - event["due"])
        if self._first is not None:
            self._fresh.append(self._first - event["due"])
        self._deltas, self._first = 0, None

    def close(self) -> Seen:
        """The verdict, percentiles included."""
        self.seen.fresh_s, self.seen.tick_s = percentiles(self._fresh), percentiles(self._ticks)
        self.seen.fresh_max_s = max(self._fresh, default=None)
        self.seen.lag_s = percentiles(self.lags)
        return self.seen


def _ids(event: dict[str, Any]) -> Iterator[str]:
    """Every id in an event that the server has made."""
    for key, value in event.items():
        if isinstance(value, dict):
            yield from _ids(value)
        elif key in ("event_id", "response_id", "item_id", "id") and isinstance(value, str):
            yield value


async def speak(line: ClientConnection, witness: Witness, clock: Clock, asks: bool) -> None:
    """Audio at the pace of speech, and a typed question a second from one who asks."""
    pcm, size, start, number = voice(RATE), int(RATE * PACKET_S) * 2, clock.now(), 0
    await line.send(json.dumps({"type": "session.update", "session": SETTINGS}))
    while True:
        due = start + number * PACKET_S
        await clock.sleep_until(due)
        at = number * size % (len(pcm) - size)
        audio = base64.b64encode(pcm[at : at + size]).decode()
        await line.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        witness.lags.append(clock.now() - due)
        if asks and number % QUESTION_EVERY == QUESTION_EVERY - 1:
            content = [{"type": "input_text", "text": f"question {number}"}]
            item = {"type": "message", "role": "user", "content": content}
            await line.send(json.dumps({"type": "conversation.item.create", "item": item}))
            await line.send(json.dumps({"type": "response.create"}))
        number += 1


async def listen(line: ClientConnection, witness: Witness) -> None:
    async for message in line:
        witness.take(str(message))


async def hold(address: str, asks: bool) -> Seen:
    """One call until standard input ends."""
    clock = SystemClock()
    witness = Witness(clock)
    async with connect(address, compression=None, proxy=None) as line:
        print("here", flush=True)
        stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        work = [
            asyncio.create_task(speak(line, witness, clock, asks)),
            asyncio.create_task(listen(line, witness)),
        ]
        done, left = await asyncio.wait({*work, stop}, return_when=asyncio.FIRST_COMPLETED)
        if stop not in done:
            witness.seen.ended = repr(next(iter(done)).exception() or line.close_code)
        for task in left - {stop}:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
    return witness.close()


class Beside:
    """The witness as its starter sees it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, address: str, asks: bool) -> Beside:
        command = (sys.executable, "-m", "evals.chaos.witness", address, "asks" if asks else "listens")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        assert await process.stdout.readline(), "the witness was not let in"
        return cls(process)

    async def close(self) -> Seen:
        """End the call; what was seen in it."""
        said, _ = await self._process.communicate(b"")  # its standard input ends
        return Seen(**json.loads(said))


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(hold(sys.argv[1], sys.argv[2] == "asks")))))
