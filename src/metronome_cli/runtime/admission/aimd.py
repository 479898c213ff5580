"""Additive increase, multiplicative decrease: the paper's controller, on a percentile.

Knows:   the latency of the last ticks, and how many calls each served.
Ignores: the pool. On calls without a bound it lets in more than memory can hold: latency is flat until the
         pool is full (paper, "The failure"), and calls that are in do not leave. See forecast.py.
"""

from __future__ import annotations

import math
from collections import deque

from . import LATENCY, MAX_SESSIONS, MEMORY, RAMP, Admission, Cap, Measured, Target, lowest

# Of the calls that a late tick served. In virtual time (tests/runtime/plant.py, 209 calls of up to 240 s,
# ticks that vary by 3 %) 0.95 keeps 206 of them on average, 0.9 204 and 0.8 196. When a machine suddenly
# holds half as many calls, 100 beats leave it with 71, 57 and 48 where 50 are right.
_BETA = 0.9
_HEADROOM = 0.98  # of the target: where more calls would soon be late, none are added
_RAMP_TICKS = 64  # in which the cap can come from 1 to the most


class Aimd(Admission):
    """Adds `step` calls while there is headroom; cuts when the percentile passes the target.

    - Over: more of the last `window_ticks` ticks were late than the percentile allows, and the latest was.
      The limit becomes 0.9 of the calls that tick served, at least 1. It then rests for `window_ticks` ticks,
      until all that was measured before the cut is forgotten, so that one overload is cut once.
    - Headroom: no more of them than that, nor the latest, took over 0.98 of the target. The limit grows by
      `step`, up to `max_sessions`.
    - When headroom ends, the limit is the calls served: they keep their places, and those of who leaves.
    - The cap is the limit, but never above the calls served + `step`, for beyond them nothing was measured.

    Ticks that brought no token, to callers who were silent, move nothing but those calls served. After an
    overload has ended the cap is back at its ceiling, calls served + `step` or `max_sessions`, within
    `window_ticks` + 64 ticks that bring tokens in time. `step` is a 64th of `max_sessions`, rounded up,
    unless given.
    """

    def __init__(self, target: Target, max_sessions: int, step: int | None = None) -> None:
        self.step = step or math.ceil(max_sessions / _RAMP_TICKS)
        self._target = target
        self._most = max_sessions
        self._limit = Cap(max_sessions, LATENCY)
        self._latencies: deque[float] = deque(maxlen=target.window_ticks)
        self._headroom = True  # at the latest tick
        self._rest = 0  # ticks until the limit may move again
        self.cap = self._capped(0)

    def observe(self, seen: Measured) -> None:
        latency_s = seen.latency_s(self._target.latency_s)
        if latency_s is not None:
            self._latencies.append(latency_s)
            self._move(latency_s, seen.served)
        self.cap = self._capped(seen.served)

    def _move(self, latency_s: float, served: int) -> None:
        reason = LATENCY if math.isfinite(latency_s) else MEMORY
        headroom_s = _HEADROOM * self._target.latency_s
        had, self._headroom = self._headroom, latency_s <= headroom_s and not self._often_beyond(headroom_s)
        if self._rest:
            self._rest -= 1
        elif latency_s > self._target.latency_s and self._often_beyond(self._target.latency_s):
            self._cut(served, reason)
        elif self._headroom:
            self._limit = Cap(min(self._limit.calls + self.step, self._most), self._limit.reason)
        elif had:
            self._limit = Cap(min(self._limit.calls, served), reason)

    def _often_beyond(self, limit_s: float) -> bool:
        """Whether more ticks took longer than the percentile allows; those that are still to come did not."""
        return sum(late_s > limit_s for late_s in self._latencies) > self._target.misses

    def _cut(self, served: int, reason: str) -> None:
        calls = max(1, math.floor(served * _BETA))
        self._limit = Cap(min(self._limit.calls, calls), reason)
        self._rest = self._target.window_ticks

    def _capped(self, served: int) -> Cap:
        return lowest(Cap(self._most, MAX_SESSIONS), self._limit, Cap(served + self.step, RAMP))
