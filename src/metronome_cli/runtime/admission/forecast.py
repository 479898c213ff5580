"""A cap by what one more call would do: to the next beats' latency, and to the pool for as long as it lasts.

Knows:   latency against calls served, blocks taken per call and second, how long a call is expected to last.
Ignores: how blocks are reserved (the engine's), and who hangs up when.
"""

from __future__ import annotations

import math
from collections import deque

from ...frame import KvUsage
from . import LATENCY, MAX_SESSIONS, MEMORY, POOL_FULL, RAMP, Admission, Cap, Measured, Target, lowest

_MEMORY_WINDOWS = 3  # windows that a line is drawn through: one may have served the same calls throughout
_KNOWN_SPREAD = 1.1  # calls in a line's upper third by those in its lower third: below it is all noise
_FLATTEST = 0.1  # of the line through the origin; what looks flatter is noise, or will not stay so
_ROUNDING = 1e-9  # of an exact whole number, which must not become the one below it


class Forecast(Admission):
    """Lets a call in only if three forecasts of live + 1 calls hold.

    - **latency**: the percentile of latency, on a line through recent ticks, stays within the target.
    - **pool_full**: the pool can promise a bounded call its blocks. The engine checks that again.
    - **memory**: where calls have no bound, the pool would not fill up within `horizon_s`, at the rate per
      call measured so far. As long as no call lasts longer and none fills faster, the pool then never fills
      up: whenever one is let in, there is room for all to go on for `horizon_s`, and by then all are over but
      those let in later, by the same rule. The first call is measured before there is a second, and where one
      alone would fill the pool so soon, nobody else gets in.

    Nor more than `max_sessions`, nor, per beat, more than sqrt(n) beyond the n calls that were just served.
    Ticks that brought no token move no forecast of latency. After an overload has ended that forecast no
    longer binds, within `window_ticks` ticks that bring tokens in time.
    """

    def __init__(self, target: Target, max_sessions: int, horizon_s: float) -> None:
        self._target = target
        self._most = max_sessions
        self._latency = LatencyLine(target)
        self._fill = FillRate(target.window_ticks)
        self._horizon_s = horizon_s
        self._limit = Cap(max_sessions, LATENCY)
        self.cap = lowest(Cap(max_sessions, MAX_SESSIONS), Cap(1, RAMP))

    def observe(self, seen: Measured) -> None:
        latency_s = seen.latency_s(self._target.latency_s)
        # A stall says how full the pool is, which is known, and not how long a tick takes.
        if latency_s is not None and math.isfinite(latency_s):
            self._latency.add(seen.served, latency_s)
            self._limit = Cap(max(1, self._latency.calls_within(self._most)), LATENCY)
        self._fill.add(seen)
        ramp = seen.served + max(1, math.isqrt(seen.served))
        most = Cap(self._most, MAX_SESSIONS)
        self.cap = lowest(most, self._limit, *self._room(seen.pool, seen.live), Cap(ramp, RAMP))

    def _room(self, pool: KvUsage, live: int) -> list[Cap]:
        """What memory allows: the pool now, and the pool in `horizon_s` where it holds calls without a bound.

        `room` is None while such calls find blocks. A full pool has room for none, but whoever hangs up then
        makes room for a moment: only the forecast keeps others from it.
        """
        caps = [] if pool.room is None else [Cap(live + pool.room, POOL_FULL)]
        if pool.room is None or pool.leased > pool.reserved:
            free = max(0, pool.total - pool.leased - pool.reserved)
            per_call = self._fill.per_s * self._horizon_s
            calls = min(free / per_call, self._most) if per_call else 1
            # Alone, a call takes nobody's blocks; with none allowed an idle server would never open again.
            caps.append(Cap(max(1, int(calls + _ROUNDING)), MEMORY))
        return caps


class LatencyLine:
    """The percentile of latency against calls served: a robust line, through the percentile of recent ticks.

    The slope is Tukey's: between the medians of the ticks that served least and most, a third each, so that
    outliers, fewer than half of a third, do not turn it. A beat costs something without calls, and more with
    each: the slope lies between 0.1 and 1 of the line through the origin. While the same calls are served
    throughout, the slope known before stands. Until one is known, for which two numbers of calls are enough,
    more are let in as long as the target is kept.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._ticks: deque[tuple[int, float]] = deque(maxlen=_MEMORY_WINDOWS * target.window_ticks)
        self._recent: deque[tuple[int, float]] = deque(maxlen=target.window_ticks)
        self._known: float | None = None  # slope, seconds per call

    def add(self, served: int, latency_s: float) -> None:
        """A tick with at least one call and a finite latency."""
        self._ticks.append((served, latency_s))
        self._recent.append((served, latency_s))
        self._learn()

    def calls_within(self, most: int) -> int:
        """The most calls, up to `most`, for which the line stays within the target. There is a tick."""
        steepest = _middle([late_s / served for served, late_s in self._recent])
        if self._known is None or not steepest:
            kept = self._target.of([late_s for _, late_s in self._recent]) <= self._target.latency_s
            return most if kept else self._recent[-1][0]
        slope = min(max(self._known, _FLATTEST * steepest), steepest)
        fixed_s = self._target.of([late_s - slope * served for served, late_s in self._recent])
        return int(min((self._target.latency_s - fixed_s) / slope, most) + _ROUNDING)

    def _learn(self) -> None:
        ticks = sorted(self._ticks)
        third = -(-len(ticks) // 3)
        few, many = ticks[third // 2][0], ticks[-third // 2][0]  # medians, since they are sorted by calls
        if many >= _KNOWN_SPREAD * few:
            least = _middle([late_s for _, late_s in ticks[:third]])
            most = _middle([late_s for _, late_s in ticks[-third:]])
            self._known = (most - least) / (many - few)


class FillRate:
    """Blocks per second that one call takes: the larger of all so far and of the last `window_ticks` ticks.
    Recent ones alone would forget, in a lull, that callers talk.

    A call takes its next block only when the last one is full: each that lives may be one ahead of the count.
    """

    def __init__(self, window_ticks: int) -> None:
        self._grown, self._call_s = 0, 0.0  # blocks and call seconds, in all
        self._past = deque([(0, 0.0)], maxlen=window_ticks + 1)  # the same, after each tick
        self._due: float | None = None
        self.per_s = 0.0

    def add(self, seen: Measured) -> None:
        """Count the growth since the tick before; the first tick and idle ones have none."""
        if self._due is not None and seen.older:
            self._grown += seen.grown
            self._call_s += seen.older * (seen.due - self._due)
            self._past.append((self._grown, self._call_s))
            grown, call_s = self._past[0]
            recent = (self._grown - grown) / (self._call_s - call_s)
            self.per_s = max(recent, (self._grown + seen.older) / self._call_s)
        self._due = seen.due


def _middle(values: list[float]) -> float:
    """The median; of an even number of values the upper of the middle two."""
    return sorted(values)[len(values) // 2]
