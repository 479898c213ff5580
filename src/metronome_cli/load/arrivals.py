"""When calls dial and dial again, and what kind of caller each one is: pure arithmetic, all of it seeded.

Knows:   steps within a spread, a constant, random or rising rate of arrivals, the wait after a refusal,
         callers that vanish or cancel.
Ignores: sockets, clocks, what is said.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .lengths import Length

KINDS = ("constant", "poisson", "ramp")
# Each use of the seed has a stream of its own: another order of joining must not change who vanishes.
_ARRIVAL, _CALLER, _REDIAL = 1, 2, 3
_SOON_S = 1.0  # for a server that does not say when to come again
_LATEST_S = 30.0  # between two dials of a patient caller, unless the server asks for more


def spread_shares(calls: int, seed: int) -> list[float]:
    """Each line's place within the spread, 0..1: even steps in a seeded order, one of them 0."""
    order = np.random.default_rng(seed).permutation(calls)
    return [float(place) / calls for place in order]


def arrival_times(kind: str, rate_hz: float, calls: int, duration_s: float, seed: int) -> list[float]:
    """Seconds from the run's start at which `calls` calls arrive, in order.

    constant: every 1 / rate, from 0 on. poisson: exponential waits of that mean. ramp: the rate rises evenly
    from 0 to `rate_hz` at the end of the run, so that call n comes when n calls are due under that line.
    """
    if kind == "constant":
        return [number / rate_hz for number in range(calls)]
    if kind == "poisson":
        waits = np.random.default_rng((seed, _ARRIVAL)).exponential(1 / rate_hz, calls)
        return [float(at) for at in np.cumsum(waits)]
    return [math.sqrt(2 * number * duration_s / rate_hz) for number in range(1, calls + 1)]


def redial_wait(seed: int, caller: int, refusals: int, retry_after_s: float | None) -> float:
    """Seconds that caller number `caller` waits after its refusal number `refusals` (from 1).

    As a client that means well: no sooner than it was told, twice as long each time, up to half as long again
    by chance, so that callers who were turned away together do not come back together.
    """
    least_s = _SOON_S if retry_after_s is None else retry_after_s
    doubled_s = max(least_s, _SOON_S) * 2.0 ** min(refusals - 1, 10)
    chance = np.random.default_rng((seed, _REDIAL, caller, refusals)).uniform(1.0, 1.5)
    return max(least_s, min(doubled_s, _LATEST_S)) * float(chance)


@dataclass(frozen=True, slots=True)
class Manner:
    """What kind of caller one is. Times are seconds from the moment its line is open."""

    length_s: float = math.inf  # it hangs up then; inf: at the end of the run
    vanish_s: float | None = None  # its connection is gone then, without goodbye
    cancel_rate: float = 0.0  # share of replies that it cancels
    seed: int = 0  # of what it decides as it goes along
    arm: str = ""  # which of several runs in one folder it belongs to


def stay(
    seed: int, caller: int, length: Length | None, duration_s: float, vanish_rate: float
) -> tuple[float, float | None]:
    """How long caller number `caller` stays, and when it vanishes, if it does: seeded, whatever others do."""
    random = np.random.default_rng((seed, _CALLER, caller))
    length_s = length.draw(random) if length else math.inf
    vanishes, at = random.random() < vanish_rate, random.random()
    return length_s, at * min(length_s, duration_s) if vanishes else None
