"""How a pool fills: with a power of its calls' age, fitted to what was seen and carried on.

Knows:   rows of time, occupancy and live calls; rho = rho0 + jump + rise x age^power.
Ignores: whether the pool fills at all (plateau.py), and how sure the end of it is (forecast.py).

With power 1 this is the paper's rho0 + N r t. Fill rates drift, so the power is fitted; it is drawn towards
what pools do, the less the more the rows say. The jump is what all calls bring along, as their prompt; drawn
to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .rise import LITTLE

Array = NDArray[np.float64]

_FEW_CALLS = 50  # above this many, their coming and going is a trend of its own and not single steps
# Chosen on simulated traces (python -m evals.predict.simulated; docs/log.md has what lost).
_POWERS = np.linspace(0.4, 1.4, 51)
_PRIOR = (0.92, 0.12)  # mean and deviation of the power
_EVIDENCE = 5.0  # rows are worth that many independent ones: a step that a call leaves stays for good
_RECENT = 3.0  # a row weighs as (its age / the last one's age) to this power
_NO_JUMP = 0.01  # what a jump of the whole pool costs, beside the mean square of the misses
_MOST_ROWS = 500  # more of them, evenly thinned, tell the curve no better


@dataclass(frozen=True, slots=True)
class Growth:
    """The curve base + rise (age / age_s)^power, for rows up to `now_s`."""

    start_s: float
    now_s: float
    base: float  # share held before, and the jump at the start
    rise: float  # fitted occupancy at now_s, less the base
    power: float
    age_s: float  # mean age of the live calls at now_s; without sessions the time since start_s

    @property
    def left_s(self) -> float:
        """Seconds from now_s until the pool is full, if the calls that are live now stay."""
        grown: float = (max(1.0 - self.base, 0.0) / self.rise) ** (1 / self.power) - 1.0
        return self.age_s * max(grown, LITTLE)

    @property
    def rate(self) -> float:
        """Share of the pool per second, at now_s."""
        return self.rise * self.power / self.age_s

    def at(self, t_s: float) -> float:
        """Occupancy, 0..1."""
        age = max(t_s - self.now_s + self.age_s, 0.0)
        return float(np.clip(self.base + self.rise * (age / self.age_s) ** self.power, 0.0, 1.0))


def fit_growth(t_T: Array, rho_T: Array, start_s: float, rho0: float, live_T: Array | None = None) -> Growth:
    """The most likely curve through rows after `start_s`; with `live_T`, by the calls' own age."""
    if live_T is None:
        age_T, share_T = t_T - start_s, np.ones_like(t_T)
    else:
        age_T, share_T = _mean_age(t_T - start_s, live_T), live_T / live_T[-1]
    kept = np.unique(np.linspace(0, len(t_T) - 1, _MOST_ROWS).astype(int))
    power, jump, rise = _fit(age_T[kept] / age_T[-1], share_T[kept], rho_T[kept] - rho0)
    return Growth(start_s, float(t_T[-1]), rho0 + jump, max(rise, 1e-6), power, float(age_T[-1]))


def weight_of_calls(calls: float) -> float:
    """How much the curve by the calls' own age counts beside the one by time: less for many calls."""
    return 1.0 / (1.0 + calls / _FEW_CALLS)


def _mean_age(since_T: Array, live_T: Array) -> Array:
    """Mean age of the live calls: all age, a new one begins at 0, and one that goes was of middle age."""
    total_T = np.empty_like(since_T)
    total = live_T[0] * since_T[0]
    total_T[0] = total
    for row in range(1, len(since_T)):
        total *= min(live_T[row] / live_T[row - 1], 1.0)
        total += live_T[row] * (since_T[row] - since_T[row - 1])
        total_T[row] = total
    return total_T / live_T


def _fit(x_T: Array, share_T: Array, rho_T: Array) -> tuple[float, float, float]:
    """(power, jump, rise): the largest posterior over powers, each with its best jump and rise."""
    weight_T = x_T**_RECENT / np.sum(x_T**_RECENT)
    curve_PT = share_T * x_T ** _POWERS[:, None]
    jump_jump = np.sum(weight_T * share_T**2) + _NO_JUMP
    jump_rise_P = (weight_T * share_T * curve_PT).sum(1)
    rise_rise_P = (weight_T * curve_PT**2).sum(1)
    jump_rho, rise_rho_P = np.sum(weight_T * share_T * rho_T), (weight_T * curve_PT * rho_T).sum(1)
    det_P = jump_jump * rise_rise_P - jump_rise_P**2
    jump_P = (rise_rise_P * jump_rho - jump_rise_P * rise_rho_P) / det_P
    rise_P = (jump_jump * rise_rho_P - jump_rise_P * jump_rho) / det_P
    fit_PT = jump_P[:, None] * share_T + rise_P[:, None] * curve_PT
    miss_P = ((rho_T - fit_PT) ** 2 * weight_T).sum(1) + _NO_JUMP * jump_P**2
    mean, deviation = _PRIOR
    cost_P = _EVIDENCE / 2 * np.log(miss_P + LITTLE**2) + ((_POWERS - mean) / deviation) ** 2 / 2
    power = _lowest(cost_P)
    jump, rise = (float(np.interp(power, _POWERS, of_P)) for of_P in (jump_P, rise_P))
    return power, jump, rise


def _lowest(cost_P: Array) -> float:
    """The power at the bottom of the parabola through the lowest cost and its two neighbours."""
    best = int(np.clip(np.argmin(cost_P), 1, len(_POWERS) - 2))
    below, here, above = cost_P[best - 1 : best + 2]
    bend = below - 2 * here + above
    step = np.clip((below - above) / (2 * bend), -1.0, 1.0) if bend > 0 else 0.0
    return float(_POWERS[best] + step * (_POWERS[1] - _POWERS[0]))
