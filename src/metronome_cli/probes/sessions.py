"""Calls of a probe in virtual time: the same beat, sessions and model that `serve` runs, without sockets.

Knows:   what every call brings to each frame, what the model tells of it, how long a tick really took.
Ignores: which questions are asked and when (turn_based.py, free_running.py), scores, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..clock import Clock, VirtualClock
from ..errors import MetronomeError, ProfileError
from ..frame import Failed, Prefilled, Refused, Said, SessionId, Stalled, TickEngine
from ..profile import OWN, Profile, Terms
from ..runtime.admission import FixedCap
from ..runtime.beat import Beat
from ..runtime.recorder import Recorder
from ..runtime.sessions import Session, Sessions
from ..runtime.ticker import Tick
from ..speech import at_rate
from ..trace import FrameRecord, TickRecord
from .asked import Asked

_SILENCE = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class Brings:
    """What one call brings to one frame; nothing, by default."""

    audio: NDArray[np.float32] = field(default_factory=lambda: _SILENCE)  # mono, model.rate of the profile
    text: str = ""
    commit: bool = False  # the utterance is over
    reply: bool = False  # a reply is wanted; without it only a free-running model speaks


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one call's frame; `ended` when a reply was complete with it."""

    record: FrameRecord
    ended: bool
    tokens: int  # of the call so far, heard and said: its age as the window counts it
    pcm: bytes = b""  # what was said aloud


class Stage:
    """All calls of one cell. Time is virtual, so a frame is never late; `busy_s` is what each tick took."""

    def __init__(
        self, model: TickEngine, profile: Profile, clock: Clock, terms: Sequence[Terms] = ()
    ) -> None:
        """`terms`: what the calls that will be opened ask for, in order; the profile's own by default."""
        self.busy_s: list[float] = []
        self.blocks_most: dict[SessionId, int] = {}  # that each call held after a tick
        self._terms = iter(terms)
        self._real = clock
        self.rate = profile.model.rate  # of what a call hears
        self._frame_s = profile.beat.frame_s
        self._virtual = VirtualClock()
        pending_s = 2 * profile.beat.frame_s
        self._sessions = Sessions(model, FixedCap(2**31), pending_s, profile.run.seed, rate=self.rate)
        self._beat = Beat(model, self._sessions, self, Recorder(None, self._virtual), self._virtual)
        self._ticks = 0
        self._records: dict[SessionId, FrameRecord] = {}
        self._ended: set[SessionId] = set()
        self._tokens: dict[SessionId, int] = {}
        self._spoken: dict[SessionId, list[bytes]] = {}  # in this frame

    def open(self, calls: int, duplex: bool) -> list[SessionId]:
        """Open `calls` calls, in a model that answers by itself (`duplex`) or when asked."""
        opened = []
        for number in range(calls):
            session = self._sessions.open(self._virtual.now())
            if isinstance(session, Refused):
                cure = f"the pool holds {number} of {calls} sessions of this policy; give it more blocks"
                raise ProfileError("pool.blocks", session.reason, cure)
            self._sessions.settle(session, next(self._terms, OWN))
            session.duplex = duplex
            self._tokens[session.id] = 0
            opened.append(session.id)
        return opened

    def frame(self, brought: Mapping[SessionId, Brings]) -> dict[SessionId, Told]:
        """One beat of all calls; a call that is not named brings nothing."""
        now = self._virtual.now()
        for number, brings in brought.items():
            session = self._sessions.find(number)
            assert session is not None  # noqa: S101  # calls of a probe are never closed
            _bring(session, brings, now)
        self._ticks += 1
        due = self._ticks * self._frame_s
        self._virtual.wait_until(due)
        self._ended.clear()
        self._spoken.clear()
        began = self._real.now()
        self._beat.run(Tick(self._ticks - 1, due))
        self.busy_s.append(self._real.now() - began)
        return {
            number: Told(
                record, number in self._ended, self._tokens[number], b"".join(self._spoken.get(number, []))
            )
            for number, record in self._records.items()
        }

    # ---- The beat's listener ----

    def prefilled(self, frame: Prefilled) -> None:
        self._tokens[frame.session] += frame.tokens_in

    def lost(self, frame: Stalled, utterances: int) -> None:
        if frame.reply:
            self._ended.add(frame.session)  # it will not be given

    def said(self, word: Said) -> None:
        self._tokens[word.session] += 1
        if word.pcm:
            self._spoken.setdefault(word.session, []).append(word.pcm)
        if word.end:
            self._ended.add(word.session)

    def failed(self, call: Failed) -> None:
        raise MetronomeError(f"call {call.session} of the probe could not go on: {call.why}")

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None:
        self._records[frame.session] = frame
        self.blocks_most[frame.session] = max(frame.blocks, self.blocks_most.get(frame.session, 0))

    def breathe(self) -> None:
        """Nobody joins or leaves between two tokens of a probe."""


def utterance(asked: Asked, frame_s: float, rate: int, *, reply: bool) -> list[Brings]:
    """A question frame by frame, typed or spoken; with its last a `reply` may be asked for."""
    if asked.audio is None:
        return [Brings(text=asked.text, reply=reply)]
    frames = in_frames(at_rate(np.asarray(asked.audio, np.float32), rate), frame_s, rate)
    last = len(frames) - 1
    return [Brings(audio, commit=n == last, reply=reply and n == last) for n, audio in enumerate(frames)]


def in_frames(audio: NDArray[np.float32], frame_s: float, rate: int) -> list[NDArray[np.float32]]:
    """`audio` cut into frames, the last one filled up with silence."""
    size = round(frame_s * rate)
    count = max(1, -(-len(audio) // size))
    padded = np.zeros(count * size, np.float32)
    padded[: len(audio)] = audio
    return list(padded.reshape(count, size))


def _bring(session: Session, brings: Brings, now: float) -> None:
    if len(brings.audio):
        session.hear(brings.audio, now)
    if brings.text:
        session.read(brings.text, now)
    if brings.commit:
        session.commit()
    if brings.reply:
        session.ask(0)
