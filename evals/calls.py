"""Calls that come and go on the real engine, without sockets and without waiting.

Knows:   the beat, sessions and admission that `metronome serve` runs, and what each tick really took.
Ignores: why calls come and go, and what is concluded.

Time is skipped where a server would wait for the next beat, and runs as it does while a tick computes: a tick
is as late, and as long, as on a server, and an hour of light load takes minutes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.frame import Failed, Prefilled, Refused, Said, SessionId, Stalled, TickEngine
from metronome_cli.models.factory import build
from metronome_cli.probes.questions import read_questions
from metronome_cli.profile import Profile
from metronome_cli.runtime.admission import Admission
from metronome_cli.runtime.beat import Beat
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Sessions
from metronome_cli.runtime.simulator import Call
from metronome_cli.runtime.ticker import Ticker
from metronome_cli.trace import FrameRecord, TickRecord


class SkippingClock(SystemClock):
    """The machine's clock, ahead of it by what was not waited for."""

    def __init__(self, real: Clock) -> None:
        self._real = real
        self._ahead = -real.now()  # it begins at 0

    def now(self) -> float:
        return self._real.now() + self._ahead

    def wait_until(self, at: float) -> None:
        self._ahead += max(0.0, at - self.now())


class Calls:
    """Calls on one model; those that are live at the end are closed by `close_all`."""

    def __init__(
        self, model: TickEngine, profile: Profile, admission: Admission, seed: int, opened: int
    ) -> None:
        """`opened`: calls that the model has seen before, since a number is never used twice."""
        self.clock = SkippingClock(SystemClock())
        self.ticks: list[TickRecord] = []
        self.refused: dict[str, int] = {}
        self._sessions = Sessions(model, admission, 60.0, seed, opened)
        self._beat = Beat(model, self._sessions, self, Recorder(None, self.clock), self.clock)
        self._ticker = Ticker(profile.beat.frame_s, self.clock.now() + profile.beat.frame_s)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self) -> SessionId | None:
        """A new call's number; None when it is refused, which is counted by its reason."""
        opened = self._sessions.open(self.clock.now())
        if isinstance(opened, Refused):
            self.refused[opened.reason] = self.refused.get(opened.reason, 0) + 1
            return None
        return opened.id

    def say(self, session: SessionId, text: str) -> None:
        """A caller says something; it waits for the next beat."""
        if (found := self._sessions.find(session)) is not None:
            found.read(text, self.clock.now())

    def close(self, session: SessionId) -> None:
        self._sessions.close(session)

    def close_all(self) -> None:
        for session in self._sessions:
            self._sessions.close(session.id)

    def tick(self) -> TickRecord:
        """The next beat, when it is due or as soon after as the one before allows."""
        self.clock.wait_until(self._ticker.next_due)
        tick = self._ticker.take(self.clock.now())
        assert tick is not None  # the clock has just been set to when it is due
        self.ticks.append(self._beat.run(tick))
        return self.ticks[-1]

    # ---- The beat's listener: everything worth knowing stands in the records ----

    def prefilled(self, frame: Prefilled) -> None: ...

    def lost(self, frame: Stalled, utterances: int) -> None: ...

    def said(self, word: Said) -> None: ...

    def failed(self, call: Failed) -> None: ...

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None: ...

    def breathe(self) -> None: ...


class Callers(Calls):
    """Calls that come and hang up at set times, while a tick runs too, as on a server."""

    def __init__(self, *held: Any, offered: Sequence[Call]) -> None:
        super().__init__(*held)
        self.admitted = 0
        self.live: dict[int, float] = {}  # call -> when it hangs up
        self._coming = list(offered)[::-1]

    def come_and_go(self, now: float) -> None:
        """All that comes or ends by `now`, in order."""
        while True:
            arrival = self._coming[-1].at if self._coming else math.inf
            number = min(self.live, key=self.live.__getitem__, default=0)
            end = self.live.get(number, math.inf)
            if min(arrival, end) > now:
                return
            if end <= arrival:
                self.close(number)
                del self.live[number]
            elif (opened := self.open()) is not None:
                self.live[opened] = arrival + self._coming.pop().length_s
                self.admitted += 1
            else:
                self._coming.pop()

    def breathe(self) -> None:
        self.come_and_go(self.clock.now())

    @property
    def next_due(self) -> float:
        return max(self.clock.now(), self._ticker.next_due)


class Model:
    """One profile's engine, and how many calls it has seen."""

    def __init__(self, profile: Profile, asks: float = 0.0) -> None:
        """`asks`: questions of a call and beat."""
        self.profile = profile
        self._engine: TickEngine = build(profile)
        self._asks = asks
        self._texts = [question.text for question in read_questions("builtin", audio=False, seed=0)]
        self._opened = 0

    def play(
        self,
        admission: Admission,
        offered: Sequence[Call],
        seed: int,
        *,
        until_s: float = math.inf,
        beats: float = math.inf,
    ) -> Callers:
        """Until a time has come, or so many beats; whoever is live asks something now and then."""
        calls = Callers(self._engine, self.profile, admission, seed, self._opened, offered=offered)
        random = np.random.default_rng((31, seed))
        while calls.next_due <= until_s and len(calls.ticks) < beats:
            calls.come_and_go(calls.next_due)
            for number in calls.live:
                if random.random() < self._asks:
                    calls.say(number, self._texts[int(random.integers(len(self._texts)))])
            calls.tick()
        calls.close_all()
        self._opened += len(offered)
        return calls
