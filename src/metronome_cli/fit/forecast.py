"""When the pool will be full, with an interval: the forecast of `metronome fit collapse-model`.

Knows:   a series up to some moment; the curve and the test through it; how far such forecasts are off.
Ignores: files, pages and reports; what a full pool does to callers.

A ramp is carried on along rho0 + jump + rise x age^power (growth.py), twice where sessions are known: over
time, and over the calls' own age, which joins and leaves do not bend. The two ends are joined by their
weighted geometric mean. The interval is that of log(time left / forecast time left): a Student's t whose
middle and width were measured on simulated traces, by how full the pool was and how many calls filled it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..errors import FieldError
from .collapse import between, fit_line
from .growth import Growth, fit_growth, weight_of_calls
from .plateau import Interval, Plateau, early_slope, late_rows, plateau
from .rise import LITTLE, Rise, find_rise
from .series import Series

Shape = Literal["ramp", "plateau", "empty"]
Array = NDArray[np.float64]

FULL = 0.995  # from here on a pool counts as full
_BASELINE = (0.1, 0.8)  # the paper's line is fitted between these shares
# By how full the pool was: middle and width of log(time left / forecast time left) for many calls, as
# `python -m evals.predict.simulated --calibrate --traces 1000` prints them; beyond the ends the last counts.
_FILLS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_MIDDLE = (-0.082, 0.013, 0.053, 0.05, 0.045, 0.039, 0.03, 0.025, 0.018, 0.005)
_WIDTH = (0.193, 0.116, 0.075, 0.064, 0.063, 0.064, 0.069, 0.083, 0.095, 0.119)
FREEDOM = 6.0  # of the Student's t: with fewer too little lies in its middle
_FEW_CALLS = 32.0  # with so few calls the squared width is twice that of many
_UNKNOWN_CALLS = 64.0  # what is taken where the series does not tell
_LEAVING = 0.1  # share of the calls that leave while a pool fills, which the middle is for
_ROUNDING = 1e-9  # of a number of calls
_MOST_LEAVING = 2.0  # times that share: who has left cannot leave again


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a series says about its pool. Times are on the axis of its t_s."""

    shape: Shape
    t_sat: Interval | None  # a ramp only; of a pool that is full already: when it was first seen so
    rho0: float  # share held before the rise that was fitted; 0 where the series begins within it
    fill_rate: float  # share of the pool per second, all calls: of a ramp now, of a plateau before it, or 0
    rate_per_session: float | None  # the same for one call; None without sessions
    plateau: Plateau | None  # of a plateau; None of one to come where nothing tells at what level
    collapse_probability: float | None  # a ramp and a session length only
    baseline: float | None  # a ramp's t_sat by the straight line over 10 to 80 %; None where that has no rise
    points: int  # rows used
    last_s: float  # time of the last row used
    notes: tuple[str, ...] = ()
    curve: Growth | None = None
    bounded: bool | None = None  # whether all that calls hold was promised; None where nothing tells

    def at(self, t_s: float) -> float:
        """Occupancy on the fitted curve, 0..1, which meets t_sat's estimate or the plateau's level."""
        if self.curve is None:
            return self.rho0
        if self.plateau is not None:
            return min(self.curve.at(t_s), self.plateau.level.estimate)
        if self.t_sat is not None and t_s > self.curve.now_s:
            stretch = self.curve.left_s / max(self.t_sat.estimate - self.curve.now_s, 1e-9)
            t_s = self.curve.now_s + (t_s - self.curve.now_s) * stretch
        return self.curve.at(t_s)


@dataclass(frozen=True, slots=True)
class _Left:
    """The predictive distribution of the time at which the pool is full."""

    now_s: float
    left_s: float
    middle: float
    width: float

    def interval(self, level: float) -> Interval:
        """Median and the middle `level` of the distribution."""
        low, middle, high = (self.now_s + self.left_s * np.exp(self._log(q)) for q in _cuts(level))
        return Interval(float(middle), float(low), float(high))

    def by(self, t_s: float) -> float:
        """Probability that the pool is full by `t_s`."""
        if t_s <= self.now_s:
            return 0.0
        z = (np.log((t_s - self.now_s) / self.left_s) - self.middle) / self.width
        return float(stats.t.cdf(z, FREEDOM))

    def _log(self, quantile: float) -> float:
        return float(np.clip(self.middle + self.width * stats.t.ppf(quantile, FREEDOM), -20.0, 20.0))


def forecast(
    series: Series,
    *,
    until: float | None = None,
    level: float = 0.9,
    session_length: float | None = None,
) -> Forecast:
    """What is to be expected from the rows before occupancy first reaches `until` (0..1; None, or never
    reached: from all of them).

    level: of the interval, between 0 and 1. session_length: seconds; of calls that begin with the series'
    first row, for collapse_probability = P(t_sat <= their end).
    Source: the paper's section "The model" (rho = rho0 + N r t), with a power for rates that drift.

    A pool whose calls were promised all that they hold is a plateau at the promise, whatever its rows do:
    they may rise, or be level where calls bring nothing for a while. One that is level throughout is a
    plateau too. Of calls that are known to have a bound, but not which, both are one to come: `plateau` is
    None.

    FieldError for values out of range, too few rows, and a pool that holds something but neither rises nor
    is level: neither a moment nor a plateau follows from it. A pool that holds nothing is "empty".
    """
    _check(until, level, session_length)
    seen = _seen(series, until)
    if len(seen) == 0 or seen.occupancy.max() <= LITTLE:
        last_s = float(seen.t_s[-1] if len(seen) else series.t_s[0])
        return Forecast("empty", None, 0.0, 0.0, None, None, None, None, len(seen), last_s)
    of, most, has_room = find_rise(seen), seen.bound, full_at(seen) is None
    if most is not None and has_room:
        found = _promised(seen, of, most)
    elif of.shape == "ramp":
        found = _ramp(seen, of, level, session_length)
        found = _without_end(found) if seen.is_bounded and has_room else found
    else:
        found = _flat(seen, of, plateau(of.t_T, of.rho_T, of.live_T, of.start.rho0, level))
        if of.shape == "level" and seen.is_bounded and has_room:
            found = replace(found, plateau=None)  # nothing tells windows that are full from calls that wait
    return replace(found, bounded=seen.is_bounded)


def score(series: Series, of: Forecast) -> dict[str, Any]:
    """The forecast beside what happened: when the pool was full (occupancy 0.995, between two rows, or the
    first stalled call), errors in seconds and as a share of the time from the first row to then, and whether
    the interval held it. None where the series ends before, or nothing was forecast.
    """
    full_s = full_at(series)
    told: dict[str, Any] = {"full_s": full_s, "error_s": None, "error_share": None, "inside": None}
    told |= {"baseline_error_s": None, "baseline_error_share": None}
    if full_s is None:
        return told
    length = full_s - float(series.t_s[0])
    if of.t_sat is not None:
        error = of.t_sat.estimate - full_s
        told |= {"error_s": error, "error_share": error / length}
        told["inside"] = of.t_sat.low <= full_s <= of.t_sat.high
    if of.baseline is not None:
        error = of.baseline - full_s
        told |= {"baseline_error_s": error, "baseline_error_share": error / length}
    return told


def full_at(series: Series) -> float | None:
    """When the pool was first full, in seconds on the axis of t_s; None if never."""
    full_T = series.occupancy >= FULL
    if series.stalled is not None:
        full_T = full_T | (series.stalled > 0)
    if not full_T.any():
        return None
    at = int(np.argmax(full_T))
    rho = series.occupancy[at]
    if at == 0 or rho < FULL:
        return float(series.t_s[at])
    return float(np.interp(FULL, series.occupancy[at - 1 : at + 1], series.t_s[at - 1 : at + 1]))


def spread(fill: float, calls: float | None, leaving: float = 1.0) -> tuple[float, float]:
    """Middle and width of log(time left / forecast time left) with the pool `fill` full, 0..1."""
    middle, width = (float(np.interp(fill, _FILLS, row)) for row in (_MIDDLE, _WIDTH))
    return middle * leaving, width * spread_of_few(calls)


def leaving(live_T: Array | None, fill: float) -> float:
    """What the middle is multiplied by: 1 where as many calls have left as it expects, or nobody tells.

    Of what was seen to leave as much counts as the pool is full: who leaves late has not left yet.
    """
    if live_T is None or not fill > 0:
        return 1.0
    left = -float(np.minimum(np.diff(live_T), 0.0).sum()) / float(live_T.max())
    return 1.0 + min(fill, 1.0) * (min(left / (_LEAVING * fill), _MOST_LEAVING) - 1.0)


def spread_of_few(calls: float | None) -> float:
    """How much wider the interval is than for many calls: one that leaves takes more of the pool along."""
    return float(np.sqrt(1.0 + _FEW_CALLS / (calls or _UNKNOWN_CALLS)))


def _check(until: float | None, level: float, session_length: float | None) -> None:
    if until is not None and not 0.0 < until <= 1.0:
        raise FieldError("until", until, "give a share of the pool above 0, up to 1")
    if not 0.0 < level < 1.0:
        raise FieldError("level", level, "give a share between 0 and 1, such as 0.9")
    if session_length is not None and not 0.0 < session_length < np.inf:
        raise FieldError("session_length", session_length, "give seconds above 0")


def _seen(series: Series, until: float | None) -> Series:
    """The rows before occupancy first reaches `until`."""
    if until is None or not (series.occupancy >= until).any():
        return series
    return series.first(int(np.argmax(series.occupancy >= until)))


def _without_end(of: Forecast) -> Forecast:
    """The rise of calls that have a bound, nobody tells which: a plateau to come, at an unknown level."""
    return replace(of, shape="plateau", t_sat=None, baseline=None, collapse_probability=None)


def _promised(seen: Series, of: Rise, most: float) -> Forecast:
    """The plateau that calls may come to at any time: they may hold `most` of the pool, and may hold less.

    What the pool held before (rho0) was promised too: places are counted by the promise alone, as they are
    where calls are let in.
    """
    held = float(seen.occupancy[-1])
    share = None if of.live_T is None else most / float(of.live_T[-1])
    ceiling = None if share is None else int(1 / share + _ROUNDING)
    note = f"calls hold {held:.1%} of the pool, and were promised {most:.1%} at most: that is the plateau"
    found = Plateau(Interval(most, held, most), float(of.t_T[-1]), share, ceiling)
    return _flat(seen, replace(of, notes=(*of.notes, note)), found)


def _flat(seen: Series, of: Rise, found: Plateau) -> Forecast:
    """A plateau: with the ramp that led to it, or as it was from the first row on."""
    return _steady(seen, of, found) if of.shape == "level" else _level(seen, of, found)


def _steady(seen: Series, of: Rise, found: Plateau) -> Forecast:
    """A pool that is as it was from the first row on."""
    now_s = float(of.t_T[-1])
    held = min(found.level.estimate, float(of.rho_T[late_rows(of.t_T)].max()))  # less than a promise
    rate = None if of.live_T is None else 0.0
    curve = Growth(of.start.start_s, now_s, held, 0.0, 1.0, max(now_s - of.start.start_s, 1.0))
    rows, last_s = len(seen), float(seen.t_s[-1])
    return Forecast(
        "plateau", None, of.start.rho0, 0.0, rate, found, None, None, rows, last_s, of.notes, curve
    )


def _level(seen: Series, of: Rise, found: Plateau) -> Forecast:
    """A plateau, after the ramp that led to it."""
    rate = early_slope(of.t_T, of.rho_T, min(found.level.estimate, float(of.rho_T.max())))
    length = float(of.t_T[-1]) - of.start.start_s
    curve = Growth(of.start.start_s, float(of.t_T[-1]), of.start.rho0, rate * length, 1.0, length)
    calls = None if of.live_T is None else float(np.median(of.live_T[of.t_T >= found.since_s]))
    return Forecast(
        "plateau",
        None,
        of.start.rho0,
        rate,
        None if calls is None else rate / calls,
        found,
        None,
        None,
        len(seen),
        float(seen.t_s[-1]),
        of.notes,
        curve,
    )


def _ramp(seen: Series, of: Rise, level: float, session_length: float | None) -> Forecast:
    """A ramp, carried on to its end, or the end itself where it was seen."""
    curve = fit_growth(of.t_T, of.rho_T, of.start.start_s, of.start.rho0)
    left_s = curve.left_s
    calls = None if of.live_T is None else float(of.live_T[-1])
    if of.live_T is not None and calls is not None:
        by_age = fit_growth(of.t_T, of.rho_T, of.start.start_s, of.start.rho0, of.live_T)
        weight = weight_of_calls(calls)
        left_s = by_age.left_s**weight * left_s ** (1 - weight)
        curve = by_age
    left = _left(of, left_s)
    ends_s = None if session_length is None else float(seen.t_s[0]) + session_length
    full_s = full_at(seen)
    if full_s is None:
        t_sat = left.interval(level)
        likely = None if ends_s is None else left.by(ends_s)
    else:
        after = int(np.argmax(seen.t_s >= full_s))
        t_sat = Interval(full_s, float(seen.t_s[max(after - 1, 0)]), float(seen.t_s[after]))
        likely = None if ends_s is None else float(full_s <= ends_s)
    return Forecast(
        "ramp",
        t_sat,
        of.start.rho0,
        curve.rate,
        None if calls is None else curve.rate / calls,
        None,
        likely,
        _baseline(seen),
        len(seen),
        float(seen.t_s[-1]),
        of.notes,
        curve,
    )


def _left(of: Rise, left_s: float) -> _Left:
    fill = (of.rho_T[-1] - of.start.rho0) / max(1.0 - of.start.rho0, LITTLE)
    calls = None if of.live_T is None else float(of.live_T[-1])
    middle, width = spread(fill, calls, leaving(of.live_T, fill))
    step = float(np.median(np.diff(of.t_T)))
    return _Left(float(of.t_T[-1]), left_s, middle, float(np.hypot(width, step / 2 / left_s)))


def _baseline(seen: Series) -> float | None:
    try:
        return fit_line(*between(seen.t_s, seen.occupancy, *_BASELINE)).t_sat
    except FieldError:
        return None


def _cuts(level: float) -> tuple[float, float, float]:
    return (1 - level) / 2, 0.5, (1 + level) / 2
