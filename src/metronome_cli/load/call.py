"""One caller: dials, speaks at wall-clock pace whatever the server does, listens, hangs up.

Knows:   one call from the first ring to the last word, and how it ended.
Ignores: other calls, files, conclusions.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Literal

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from .. import wire
from ..clock import Clock
from ..errors import InputError, TargetUnreachable
from ..speech import RATE, Stream
from ..trace import FrameRecord
from .frames import CallFrames
from .targets import TurnedAway, dial

Fate = Literal["waiting", "live", "done", "refused", "unreachable", "cut_off"]
FrameClosed = Callable[[FrameRecord, wire.TickEvent, float], None]  # what it says, and when it arrived

_SETTINGS = wire.SessionUpdate(
    session=wire.SessionSettings(
        audio=wire.AudioSettings(input=wire.AudioInput(format=wire.AudioFormat(rate=RATE))),
        output_modalities=["text"],
        metronome=wire.MetronomeSettings(ticks=True),
    )
)


class Call:
    """One call and what became of it. `number` names it in records; `stream` is what it says."""

    def __init__(
        self, number: int, stream: Stream, clock: Clock, on_frame: FrameClosed, arm: str = ""
    ) -> None:
        self.number = number
        self.stream = stream
        self.fate: Fate = "waiting"
        self.why = ""  # reason of a refusal, or how the line went dead
        self.server_id = ""  # the server's own name for the call
        self.errors: Counter[str] = Counter()  # `error` events by code
        self.frames: CallFrames | None = None  # from the moment the line is open
        self.ended: float | None = None
        self.beats: tuple[int, int] | None = None  # the server's count of the first and the last beat it told
        self.last_beat = 0.0  # when it told the last one
        self._clock = clock
        self._on_frame = on_frame
        self._arm = arm

    async def hold(self, address: str, until: float, stop: asyncio.Event) -> None:
        """Hold the call until `until` or until `stop` is set; how it ended is in `fate`, never raised."""
        try:
            line = await dial(address)
        except TargetUnreachable as error:
            self.fate, self.why = "unreachable", str(error)
            return
        if isinstance(line, TurnedAway):
            self.fate, self.why = "refused", line.reason
            return
        # The microphone opens now: sample 0 is due at this moment, and every later due time hangs on it.
        self.fate, self.frames = "live", CallFrames(self.number, self._clock.now(), self._arm)
        async with line:
            self.fate = "done" if await self._talk(line, self.frames, until, stop) else "cut_off"
            self.ended = self._clock.now()
        if self.fate == "cut_off":
            self.why = f"closed by the server, {line.close_code} {line.close_reason or ''}".rstrip()

    async def _talk(
        self, line: ClientConnection, frames: CallFrames, until: float, stop: asyncio.Event
    ) -> bool:
        """Speak and listen at once; False when the server ended it."""
        listening = asyncio.create_task(self._listen(line, frames))
        speaking = asyncio.create_task(self._speak(line, frames, until))
        stopping = asyncio.create_task(stop.wait())
        tasks = (listening, speaking, stopping)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, ConnectionClosed):
                raise end
        return isinstance(ends[0], asyncio.CancelledError) and not isinstance(ends[1], ConnectionClosed)

    async def _speak(self, line: ClientConnection, frames: CallFrames, until: float) -> None:
        await line.send(wire.encode(_SETTINGS), text=True)
        for packet in itertools.count():
            if frames.due(packet) > until:
                return
            await self._clock.sleep_until(frames.due(packet))
            frames.sent(packet, self._clock.now())
            await line.send(wire.encode(wire.AudioAppend(audio=self.stream.packet())), text=True)

    async def _listen(self, line: ClientConnection, frames: CallFrames) -> None:
        async for message in line:
            at = self._clock.now()
            try:
                event = wire.decode_server_event(message)
            except InputError as error:
                self.errors[error.code] += 1
                continue
            match event:
                case wire.TextDelta():
                    frames.token(at, event.delta)
                case wire.TickEvent():
                    self.beats = (self.beats[0] if self.beats else event.tick, event.tick)
                    self.last_beat = at
                    self._on_frame(frames.close(event), event, at)
                case wire.SessionCreated():
                    self.server_id = event.session.id
                case wire.ErrorEvent():
                    self.errors[event.error.code] += 1
                case _:
                    pass  # events of other servers that say nothing about freshness
