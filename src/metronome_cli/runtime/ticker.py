"""When beats are due.

Knows:   the first due time, the period, and how many beats were left out.
Ignores: clocks (the time is told to it), and what happens in a beat.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ProfileError


@dataclass(frozen=True, slots=True)
class Tick:
    """One beat. `skipped` beats just before it were left out: the one before them took too long."""

    index: int
    due: float
    skipped: int = 0


class Ticker:
    """Beat k is due at `first_due + k * period_s` seconds."""

    def __init__(self, period_s: float, first_due: float) -> None:
        if period_s <= 0:
            raise ProfileError("beat.frame_s", period_s, "use more than 0 seconds")
        self.period_s = period_s
        self._first_due = first_due
        self._next = 0

    @property
    def next_due(self) -> float:
        """When the next beat is due."""
        return self._due(self._next)

    def take(self, now: float) -> Tick | None:
        """The latest beat due at `now`, each at most once; None before `next_due`."""
        if now < self.next_due:
            return None
        index = max(self._next, int((now - self._first_due) / self.period_s))
        # The division may round up to a beat that is a hair away.
        if index > self._next and self._due(index) > now:
            index -= 1
        tick = Tick(index, self._due(index), skipped=index - self._next)
        self._next = index + 1
        return tick

    def _due(self, index: int) -> float:
        # Due times hang on the start, not on the previous beat: lateness must not add up.
        return self._first_due + index * self.period_s
