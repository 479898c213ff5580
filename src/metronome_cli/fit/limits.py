"""Which limit binds first: memory, or the deadline of the beat.

Knows:   a forecast of the pool, how long beats took with how many sessions, and their period.
Ignores: where they were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..stats import theil_sen
from .forecast import Forecast

_RECENT = 20  # beats that say how long one takes now


@dataclass(frozen=True, slots=True)
class Beats:
    """Beats with sessions: how many, and the seconds from due to done. One place is one beat."""

    sessions: Sequence[float]
    took_s: Sequence[float]
    period_s: float


@dataclass(frozen=True, slots=True)
class Limit:
    """What ends growth. The ceilings are in sessions, None where unknown or without bound."""

    binds: Literal["memory", "deadline"] | None
    why: str
    memory_sessions: int | None = None
    deadline_sessions: int | None = None


def first_limit(of: Forecast, beats: Beats | None) -> Limit:
    """The limit that is met first when sessions are added (plateau) or time goes on (ramp).

    A ramp meets memory at t_sat however many sessions there are, unless beats overrun already. At a plateau
    the memory ceiling stands against the sessions at which a robust line of beat time against sessions
    (Theil-Sen) reaches the period. Source: the paper's "Windowed plateau ... so the deadline binds first".
    """
    if beats is None:
        return Limit(None, "not known: nothing here tells how long a beat takes", _ceiling(of))
    if of.plateau is None:
        return _of_ramp(of, beats)
    return _at_plateau(_ceiling(of), beats)


def _of_ramp(of: Forecast, beats: Beats) -> Limit:
    now = float(np.median(beats.took_s[-_RECENT:]))
    said = f"beats take {now:.3g} of {beats.period_s:.3g} s now"
    if now > beats.period_s:
        return Limit("deadline", said)
    if of.bounded and of.t_sat is None:
        return Limit(
            None, f"not known: calls have a bound, and nothing here tells what they may hold; {said}"
        )
    return Limit("memory", said)


def _at_plateau(memory: int | None, beats: Beats) -> Limit:
    if len(set(beats.sessions)) < 2:
        return Limit(None, "not known: sessions did not vary", memory)
    slope = theil_sen(beats.sessions, beats.took_s)
    if slope is None or not slope.low > 0:
        return Limit(None, "not known: beats did not take longer with more sessions", memory)
    rest = float(np.median(np.asarray(beats.took_s) - slope.estimate * np.asarray(beats.sessions)))
    deadline = max(0, math.floor((beats.period_s - rest) / slope.estimate))
    each = f"a session takes {1000 * slope.estimate:.3g} ms of a beat of {beats.period_s:.3g} s"
    if memory is None:
        return Limit(None, f"not known: no memory ceiling without sessions; {each}", None, deadline)
    return Limit("deadline" if deadline < memory else "memory", each, memory, deadline)


def _ceiling(of: Forecast) -> int | None:
    return of.plateau.ceiling if of.plateau else None
