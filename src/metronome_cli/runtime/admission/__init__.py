"""Who may join: a cap on live calls, moved by what every tick tells.

Knows:   how many calls are live, how late a tick's last token was, how full the pool is.
Ignores: sockets, clocks (times are told to it), which blocks a call gets (the engine reserves those itself).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ...frame import KvUsage, Refused

MAX_SESSIONS = "max_sessions"  # the profile's bound, whatever the load
LATENCY = "latency"  # one more and frames would be answered too late
MEMORY = "memory"  # one more and the pool would fill up within a call's time
POOL_FULL = "pool_full"  # the pool has no blocks to promise
RAMP = "ramp"  # so many more than were ever measured are let in per beat: the next one may


@dataclass(frozen=True, slots=True)
class Cap:
    """Most calls at a time, at least 0, and the reason: that of a refusal when it is reached."""

    calls: int
    reason: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What one tick told. Times in monotonic seconds, blocks as counts."""

    due: float
    done: float
    served: int  # calls that brought a frame and are live still
    live: int  # all calls, those that were opened meanwhile included
    fresh_s: float | None  # from due to the last token of the frame that waited longest; None: no token came
    stalled: int  # of the calls served, without blocks
    older: int  # of the calls served, those that the tick before served too,
    grown: int  # and the blocks that they took since then, less those they gave back
    pool: KvUsage

    def latency_s(self, target_s: float) -> float | None:
        """How late the tick's callers were answered; None when it cannot be told, since nobody was to be.

        A stalled frame is never answered. A tick of more than `target_s` without a token is as late as it was
        long: whoever would have spoken in it would have been late.
        """
        if not self.served:
            return None
        if self.stalled:
            return math.inf
        took_s = self.done - self.due
        if self.fresh_s is None or math.isnan(self.fresh_s):
            return took_s if took_s > target_s else None
        return self.fresh_s


@dataclass(frozen=True, slots=True)
class Target:
    """What calls are to get: in `percentile` (50 to 100) of `window_ticks` ticks the frame that waits longest
    has its last token within `latency_s`."""

    latency_s: float
    percentile: float = 95.0
    window_ticks: int = 20

    @property
    def misses(self) -> int:
        """How many of `window_ticks` ticks may be late."""
        return self.window_ticks - math.ceil(self.window_ticks * self.percentile / 100)

    def of(self, values: Sequence[float]) -> float:
        """The percentile of at least one value, by nearest rank: a value that was there."""
        return sorted(values)[math.ceil(len(values) * self.percentile / 100) - 1]


class Admission(Protocol):
    """Decides about new calls, by a cap that may move after every tick.

    It runs in the engine's own thread, with the reservation of blocks, so no two calls can take one place.
    Calls that are live are never ended: a cap below their number waits until some hang up.
    """

    cap: Cap

    def decide(self, live: int) -> Refused | None:
        """None lets the call in; `live` calls are there already."""
        return Refused(self.cap.reason) if live >= self.cap.calls else None

    def observe(self, seen: Measured) -> None:
        """A tick is over: move the cap."""
        ...


class FixedCap(Admission):
    """At most `max_sessions` calls at a time."""

    def __init__(self, max_sessions: int) -> None:
        self.cap = Cap(max_sessions, MAX_SESSIONS)

    def observe(self, seen: Measured) -> None:
        """Nothing moves it."""


def lowest(*caps: Cap) -> Cap:
    """The cap that binds; of equal ones the first."""
    return min(caps, key=lambda cap: cap.calls)
