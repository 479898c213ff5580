"""Calls that come and go on the real engine, without sockets and without waiting.

Knows:   the beat, sessions and admission that `metronome serve` runs, and what each tick really took.
Ignores: why calls come and go, and what is concluded.

Time is skipped where a server would wait for the next beat, and runs as it does while a tick computes: a tick
is as late, and as long, as on a server, and an hour of light load takes minutes.
"""

from __future__ import annotations

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.frame import Prefilled, Refused, Said, SessionId, Stalled
from metronome_cli.profile import Profile
from metronome_cli.runtime.admission import Admission
from metronome_cli.runtime.beat import Beat, TickEngine
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Sessions
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

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None: ...

    def breathe(self) -> None: ...
