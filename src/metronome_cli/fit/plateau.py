"""Ramp or plateau: whether a pool still fills, told by a test and not by its looks.

Knows:   occupancy over time from the first call on, and live calls where they are known.
Ignores: when a ramp ends (forecast.py), and what bounds the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Trend = Literal["ramp", "bent", "plateau"]

_LATE = 0.25  # of the time since the first call, at the end: what is to be flat
_LEAST_LATE = 5  # rows
_GROUPS = 8  # of late rows; their means are nearly independent where neighbouring rows are not
_DIFFERS = 0.95  # confidence at which a slope is told from another
_SAME = 0.5  # of the early slope: a late one below it is no longer that ramp
_NONE = 0.05  # of the early slope: what a bounded pool may creep
_LEAST_GAIN = 0.01  # share of the pool
_NOISES = 5.0  # standard deviations of the late rows that a rise to them passes
_MOST_HIDDEN = 0.1  # of the free part of the pool, in all the time of the rows: a rise that noise may hide
_ROUNDING = 1e-6  # share of the pool


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the range that is to hold the truth. low <= estimate <= high."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Plateau:
    """Where a bounded pool stays."""

    level: Interval  # share of the pool, 0..1: the mean, and between which levels it swings
    since_s: float  # the rows from here on, on the axis of t_s, were tested and averaged
    per_session: float | None  # s(W), share of the pool for one call; None without sessions
    ceiling: int | None  # calls that the whole pool holds: floor((1 - rho0) / s(W))


def late_rows(t_T: NDArray[np.float64]) -> NDArray[np.bool_]:
    """True for the last quarter of the time since the first row, and for the last 5 rows."""
    late_T: NDArray[np.bool_] = t_T >= t_T[-1] - _LATE * (t_T[-1] - t_T[0])
    late_T[-_LEAST_LATE:] = True
    return late_T


def trend(t_T: NDArray[np.float64], rho_T: NDArray[np.float64]) -> Trend:
    """What the late slope says: still the ramp, a flat end (plateau), or a slower rise (bent).

    The slope of the late rows, by a line through the means of 8 groups of them (fewer where rows are fewer),
    has a 95 % interval by Student's t over those groups. A plateau's lies below half of the early slope (the
    line up to half of the late level) and reaches down to 0, or to what counts as none: a twentieth of the
    early slope. A bent ramp's lies between. A ramp that calls leave falls at once and rises on: where most
    steps from group to group are as steep as half of the early slope, it is one whatever the line says.
    """
    late_T = late_rows(t_T)
    slope, margin = _slope(t_T[late_T], rho_T[late_T])
    early = early_slope(t_T, rho_T, float(np.median(rho_T[late_T])))
    steps = np.diff(_groups(rho_T[late_T])) / np.diff(_groups(t_T[late_T]))
    if max(slope + margin, float(np.median(steps))) >= _SAME * early:
        return "ramp"
    return "bent" if slope - margin > _NONE * early else "plateau"


def plateau(
    t_T: NDArray[np.float64],
    rho_T: NDArray[np.float64],
    live_T: NDArray[np.float64] | None,
    rho0: float,
    level: float,
) -> Plateau:
    """The level of the last quarter; `level` of its rows lie in the interval.

    s(W) is the middle of (occupancy - rho0) / sessions over the rows that have sessions.
    """
    late_T = late_rows(t_T)
    low, high = np.quantile(rho_T[late_T], [(1 - level) / 2, (1 + level) / 2])
    mean = float(np.clip(rho_T[late_T].mean(), low, high))  # a lone deep dip would draw it below both
    share = None
    if live_T is not None and (live_T[late_T] > 0).any():
        busy_T = late_T & (live_T > 0)
        share = float(np.median((rho_T[busy_T] - rho0) / live_T[busy_T]))
    ceiling = int((1 - rho0) / share) if share is not None and share > 0 else None
    return Plateau(Interval(mean, float(low), float(high)), float(t_T[late_T][0]), share, ceiling)


def rises(t_T: NDArray[np.float64], rho_T: NDArray[np.float64], to_the_end: bool) -> bool:
    """Whether there is a rise at all, by more than its noise and 1 % of the pool.

    `to_the_end`: the slope of all rows must lie above 0. Otherwise the late rows must lie above the first.
    """
    late = rho_T[late_rows(t_T)]
    gain = float(np.median(late)) - float(rho_T[0])
    if gain < _LEAST_GAIN:
        return False
    if not to_the_end:
        return bool(gain > _NOISES * np.std(late))
    slope, margin = _slope(t_T, rho_T)
    return slope - margin > 0.0


def is_level(t_T: NDArray[np.float64], rho_T: NDArray[np.float64]) -> bool:
    """Whether rows neither rise nor fall, as far as they can tell. At least 3 rows.

    The slope of all rows, with its interval as in `trend`: no certain rise, however small; no certain fall by
    more than 1 % of the pool; and a rise at the interval's upper end would take ten times as long as the rows
    did to fill what is free.
    """
    slope, margin = _slope(t_T, rho_T)
    length = t_T[-1] - t_T[0]
    if (slope - margin) * length > _ROUNDING:
        return False
    if slope + margin < 0.0 and slope * length < -_LEAST_GAIN:
        return False
    return bool((slope + margin) * length <= _MOST_HIDDEN * (1.0 - np.median(rho_T)))


def _slope(t_T: NDArray[np.float64], rho_T: NDArray[np.float64]) -> tuple[float, float]:
    """A slope and half the width of its interval."""
    t_G, rho_G = _groups(t_T), _groups(rho_T)
    if np.ptp(rho_G) < _ROUNDING**2:  # means of equal numbers differ in their last digit, and have no error
        return 0.0, 0.0
    line = stats.linregress(t_G, rho_G)
    return float(line.slope), float(line.stderr * stats.t.ppf((1 + _DIFFERS) / 2, len(t_G) - 2))


def _groups(of_T: NDArray[np.float64]) -> NDArray[np.float64]:
    """Means of 8 groups of neighbouring rows, or the rows themselves where they are fewer."""
    return np.array([part.mean() for part in np.array_split(of_T, min(_GROUPS, len(of_T)))])


def early_slope(t_T: NDArray[np.float64], rho_T: NDArray[np.float64], late: float) -> float:
    """Share of the pool per second from the first row to the first that has risen half way to `late`."""
    half = rho_T[0] + (late - rho_T[0]) / 2
    at = int(np.argmax(rho_T >= half))
    if t_T[at] == t_T[0]:
        return 0.0 if late <= rho_T[0] else np.inf
    return float((rho_T[at] - rho_T[0]) / (t_T[at] - t_T[0]))
