"""Simulated pools that fill: the traces on which the forecast is calibrated and judged, with their truth.

Each seed is one trace. 4 to 256 calls begin together 0 to 20 s after the trace does, fill the pool in 30 to
600 s (evenly in the logarithm) at rates of their own (lognormal, sigma 0.2), and drift: either the rate grows
or fades linearly with a call's age, by up to 30 % over the fill, or what a call holds grows with a power of
its age, 0.7 to 1.1. A share of the calls, 0 to 30 %, is drawn: in a fill time as many join and as many leave
on average, both as Poisson processes that end when 30 % have. A joined call begins at nothing, one that
leaves frees what it held. The pool is sampled every 0.2 to 2 s and written with three digits; 5 % of the
samples repeat the one before: the whole row, or its value at a new time, as a page does that was not renewed.

A bounded trace is one whose calls stop growing at a window, 10 to 60 % of the fill, and that goes on until 2
to 8 windows have passed since the first call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from metronome_cli.fit.series import Series

_HORIZON = 6.0  # fill times: so late the slowest of the traces is full
_GRID = 3000  # steps a fill time on which the truth is looked up
_TURNOVER = 0.3
_REPEATED = 0.05
_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Trace:
    """One simulated pool up to the end of its filling, and when that was."""

    series: Series
    t_sat: float  # seconds on the axis of series.t_s; before rounding and sampling; inf where bounded
    calls: int
    offset: float  # when the first call began, on the axis of series.t_s
    window_s: float  # the age from which a call holds no more; inf: never


@dataclass(frozen=True, slots=True)
class _Calls:
    """All calls of a trace. Times count from the first one's start."""

    start_C: NDArray[np.float64]
    end_C: NDArray[np.float64]
    rate_C: NDArray[np.float64]
    bend: float  # linear drift over one fill time
    power: float
    fill_s: float
    window: float = np.inf  # in fill times: older calls hold no more

    def held(self, t_T: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the pool held by all at each time."""
        held_T = np.zeros_like(t_T)
        for start, end, rate in zip(self.start_C, self.end_C, self.rate_C, strict=True):
            x_T = np.clip((t_T - start) / self.fill_s, 0.0, self.window)
            held_T += np.where(t_T < end, rate * (x_T + self.bend * x_T**2 / 2) ** self.power, 0.0)
        return held_T

    def live(self, t_T: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calls at each time."""
        begun_T = np.searchsorted(np.sort(self.start_C), t_T, side="right")
        return (begun_T - np.searchsorted(np.sort(self.end_C), t_T, side="right")).astype(np.float64)


def simulated(
    seed: int, *, calls: tuple[int, int] = (4, 256), bounded: bool = False, uneven: bool = False
) -> Trace:
    """The trace of a seed. `calls`: the fewest and the most that it may have.

    bounded: under a window. uneven: joins and leaves have shares of their own, so that calls grow more or
    fewer.
    """
    random = np.random.default_rng((seed, 5))
    count = int(random.integers(calls[0], calls[1] + 1))
    fill_s = float(np.exp(random.uniform(np.log(30), np.log(600))))
    made = _calls(random, count, fill_s, uneven)
    offset, step = float(random.uniform(0.0, 20.0)), float(random.uniform(0.2, 2.0))
    if bounded:
        made = replace(made, window=float(random.uniform(0.1, 0.6)))
        end_s, full_s = made.window * fill_s * float(random.uniform(2.0, 8.0)), np.inf
    else:
        full_s = _first_full(made)
        end_s = full_s + 10 * step
    t_T = np.arange(0.0, offset + end_s, step)
    since_T = t_T - offset
    occupancy_T = np.where(since_T < 0, 0.0, np.minimum(made.held(since_T), 1.0))
    occupancy_T = np.where(since_T >= full_s, 1.0, occupancy_T)  # full: nobody leaves any more
    live_T = np.where(since_T < 0, 0.0, made.live(since_T))
    t_T, occupancy_T, live_T = _repeats(random, t_T, occupancy_T, live_T)
    series = Series.checked(t_T, np.round(occupancy_T, _DIGITS), live_T, name=f"seed {seed}")
    series = series.promising(np.zeros(len(series)))  # nobody has a bound
    return Trace(series, offset + full_s, count, offset, made.window * fill_s)


def _calls(random: np.random.Generator, calls: int, fill_s: float, uneven: bool) -> _Calls:
    shares = random.uniform(0.0, _TURNOVER, 2) if uneven else [random.uniform(0.0, _TURNOVER)] * 2
    linear = random.random() < 0.5
    bend = float(random.uniform(-0.3, 0.3)) if linear else 0.0
    power = 1.0 if linear else float(random.uniform(0.7, 1.1))
    joins_J, leaves_L = (_moments(random, share, calls, fill_s) for share in shares)
    start_C = np.concatenate([np.zeros(calls), joins_J])
    end_C = np.full(len(start_C), np.inf)
    for at in leaves_L:
        there = np.flatnonzero((start_C < at) & (end_C > at))
        if len(there):
            end_C[random.choice(there)] = at
    full = calls * (1 + bend / 2)
    rate_C = random.lognormal(0.0, 0.2, len(start_C)) / full
    return _Calls(start_C, end_C, rate_C, bend, power, fill_s)


def _moments(random: np.random.Generator, share: float, calls: int, fill_s: float) -> NDArray[np.float64]:
    """When calls join, or leave: a Poisson process of `share` of them a fill time, until 30 % have."""
    gaps = random.exponential(fill_s / max(share * calls, 1e-9), int(_TURNOVER * calls))
    return np.cumsum(gaps)


def _first_full(made: _Calls) -> float:
    t_T = np.linspace(0.0, _HORIZON * made.fill_s, round(_HORIZON * _GRID) + 1)
    held_T = made.held(t_T)
    after = int(np.argmax(held_T >= 1.0))
    if after == 0:
        raise ValueError("the pool never fills")
    return float(np.interp(1.0, held_T[after - 1 : after + 1], t_T[after - 1 : after + 1]))


def _repeats(
    random: np.random.Generator, t_T: NDArray[np.float64], *columns: NDArray[np.float64]
) -> tuple[NDArray[np.float64], ...]:
    """Some rows replaced by the one before them, or holding its values at their own time."""
    repeated_T = random.random(len(t_T)) < _REPEATED
    repeated_T[0] = False
    whole_T = repeated_T & (random.random(len(t_T)) < 0.5)
    before_T = np.maximum(np.arange(len(t_T)) - 1, 0)
    return (
        np.where(whole_T, t_T[before_T], t_T),
        *(np.where(repeated_T, column[before_T], column) for column in columns),
    )
