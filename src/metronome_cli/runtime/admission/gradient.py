"""A cap by the gradient of latency, as Envoy's adaptive concurrency and Netflix's Gradient2 have it.

Knows:   the latency of the last ticks, and how many calls each served.
Ignores: the pool, as aimd.py does, with the same end on calls without a bound.
"""

from __future__ import annotations

import math
from collections import deque

from . import LATENCY, MAX_SESSIONS, MEMORY, RAMP, Admission, Cap, Measured, Target, lowest

_STEEPEST = 0.5  # a cap is at most halved
_FARTHEST = 2.0  # times as many calls as a tick served: beyond that, its noise would count most
_ROUNDING = 1e-9  # of an exact whole number, which must not become the one below it


class Gradient(Admission):
    """n x gradient + headroom for the n calls served, where headroom = sqrt(n) and the gradient is 0.5 to 1.

    **What minRTT is here.** Envoy and Netflix have gradient = least / recent latency: requests that come at
    random wait for each other as soon as there are too many, so all above the least is a queue. On a beat it
    is not. A tick of many calls takes longer than one of few and serves each as well, until it passes the
    target; held against an idle server, a healthy one would be throttled at a few calls. The least latency,
    of all windows so far, is what a tick costs whoever calls; what it grows by should be in proportion to
    the calls. So gradient = (target - least) / (recent - least), lessened by the headroom's share of n. At
    the target the gradient then takes exactly what the headroom gives: the cap settles there and not above. A
    least latency that is too low, of a lull perhaps, makes growth slower and settles at the same place. For
    fewer than four calls the headroom is n / 2: sqrt(1) would leave no gradient.

    **Recent latency** is the target's percentile over the last `window_ticks` ticks: that is the smoothing. A
    tick that served more or fewer calls than the last counts as if it had served as many, its latency beyond
    the least one in proportion: or a ramp would run on, and an overload be cut again, for as long as the
    window remembers.

    Ticks that brought no token move nothing but the bound of calls served + sqrt(calls served), which holds
    always: beyond it nothing was measured. After an overload has ended the cap is back at its ceiling, the
    smaller of that bound and `max_sessions`, within `window_ticks` ticks that bring tokens in time.
    """

    def __init__(self, target: Target, max_sessions: int) -> None:
        self._target = target
        self._most = max_sessions
        self._limit = Cap(max_sessions, LATENCY)
        self._least_s = target.latency_s
        self._ticks: deque[tuple[int, float]] = deque(maxlen=target.window_ticks)  # calls served, latency
        self.cap = self._capped(0)

    def observe(self, seen: Measured) -> None:
        latency_s = seen.latency_s(self._target.latency_s)
        if latency_s is not None:
            self._ticks.append((seen.served, latency_s))
            self._limit = self._limited(seen.served)
        self.cap = self._capped(seen.served)

    def _limited(self, served: int) -> Cap:
        self._least_s = min(self._least_s, self._target.of([late_s for _, late_s in self._ticks]))
        growths = [(late_s - self._least_s) * min(served / then, _FARTHEST) for then, late_s in self._ticks]
        grown_s = self._target.of(growths)
        headroom = min(math.sqrt(served), served / 2)
        reference_s = (self._target.latency_s - self._least_s) * (1 - headroom / served)
        if grown_s <= reference_s:
            return Cap(self._most, LATENCY)  # nothing speaks against more
        calls = served * max(_STEEPEST, reference_s / grown_s) + headroom
        return Cap(max(1, int(calls + _ROUNDING)), LATENCY if math.isfinite(grown_s) else MEMORY)

    def _capped(self, served: int) -> Cap:
        ramp = served + max(1, int(math.sqrt(served)))
        return lowest(Cap(self._most, MAX_SESSIONS), self._limit, Cap(ramp, RAMP))
