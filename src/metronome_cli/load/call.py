"""What became of one call: its frames, its end, what was said, heard, cancelled and objected to.

Knows:   the events of one call, in the order in which they came.
Ignores: sockets, clocks and other calls (caller.py holds the line), and conclusions.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..errors import MetronomeError
from ..speech import Stream
from ..trace import FrameRecord
from ..wire import TickEvent
from .arrivals import Manner
from .frames import CallFrames
from .protocols import Begun, Event, Fault, Heard, ReplyDone, Sound, Token
from .spoken import Spoken
from .targets import TurnedAway

Fate = Literal["waiting", "live", "done", "vanished", "refused", "unreachable", "cut_off"]
FrameClosed = Callable[[FrameRecord, TickEvent, float], None]  # what it says, and when it arrived


@dataclass(slots=True)
class Cancel:
    """A reply that the caller cancelled: when, and when its last token arrived all the same."""

    reply: str
    at: float
    last: float | None = None


class Call:
    """One call and what became of it. `number` names it in records; `stream` is what it says."""

    def __init__(
        self, number: int, stream: Stream, on_frame: FrameClosed, manner: Manner | None = None
    ) -> None:
        self.number = number
        self.stream = stream
        self.manner = manner or Manner()
        self.fate: Fate = "waiting"
        self.why = ""  # reason of a refusal, or how the line went dead
        self.dialled: float | None = None  # when, for the first time
        self.attempts = 0
        self.refusals: list[TurnedAway] = []  # one for each attempt that the server said no to
        self.out_of_time = False  # it would have been dialled again, had the run been longer
        self.failure: MetronomeError | None = None  # why nobody could be called
        self.protocol = ""
        self.server_id = ""  # the server's own name for the call
        self.server_frame_s: float | None = None  # its beat, where it tells when the call begins
        self.bounded: bool | None = None  # whether what the server keeps of the call has a bound, if it tells
        self.window: int | None = None  # tokens that the server keeps of the call, if it tells
        self.begun = asyncio.Event()  # the session is there, or never will be
        self.errors: Counter[str] = Counter()  # `error` events by code,
        self.errors_at: dict[str, tuple[float, float]] = {}  # and when the first and the last of each came
        self.frames: CallFrames | None = None  # from the moment the line is open
        self.ended: float | None = None
        self.closed: int | None = None  # with which code, where the server cut it off
        self.heard: list[str] = []  # transcripts of servers that tell no ticks
        self.sound_s = 0.0  # speech given back,
        self.audible_s = 0.0  # and what of it is no silence
        self.spoken: Spoken | None = None  # the first of it, where it is kept
        self.cancels: dict[str, Cancel] = {}  # by reply
        self.reply: str | None = None  # the one in progress
        self._on_frame = on_frame

    @property
    def waited_s(self) -> float | None:
        """Seconds from the first dial to the open line; None when it never was."""
        return self.frames.start - self.dialled if self.frames and self.dialled is not None else None

    def note(self, frames: CallFrames, event: Event, at: float) -> None:
        """Count an event that arrived at `at`; `frames` are those of the open line."""
        match event:
            case Token():
                self._token(frames, event, at)
            case TickEvent():
                self._on_frame(frames.close(event), event, at)
            case ReplyDone():
                self.reply = None
                frames.ended(at)
            case Sound():
                self._sound(frames, event, at)
            case Heard():
                self.heard.append(event.text)
            case Begun():
                self.server_id, self.server_frame_s = event.server_id, event.frame_s
                self.bounded, self.window = event.bounded, event.window
            case Fault():
                self.object(event.code, at)

    def object(self, code: str, at: float) -> None:
        """Count something that should not be in a call, the server's or ours."""
        self.errors[code] += 1
        self.errors_at[code] = self.errors_at.get(code, (at, at))[0], at

    def _token(self, frames: CallFrames, event: Token, at: float) -> None:
        frames.token(at, event.text)
        if self.spoken:
            self.spoken.read(event.text)
        self._goes_on(event.reply, at)

    def _sound(self, frames: CallFrames, event: Sound, at: float) -> None:
        self.sound_s += event.seconds
        audible = event.audible
        self.audible_s += event.seconds if audible else 0.0
        frames.sound(at, audible)
        if self.spoken:
            self.spoken.hear(event.pcm)
        if event.reply:  # else the protocol has one endless stream of sound
            self._goes_on(event.reply, at)

    def _goes_on(self, reply: str, at: float) -> None:
        self.reply = reply
        if reply in self.cancels:
            self.cancels[reply].last = at
