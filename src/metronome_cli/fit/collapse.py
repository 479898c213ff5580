"""When memory will run out: a straight line through what the pool has filled so far.

Knows:   times, occupancy in 0..1, and the paper's model rho(t) = rho0 + N r t, t_sat = (1 - rho0) / (N r).
Ignores: where the numbers came from, and what a stall does to callers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from ..errors import FieldError

Floats = Sequence[float] | NDArray[np.float64]

_FEWEST = 3  # points: two lie on a line whatever they are


@dataclass(frozen=True, slots=True)
class FillLine:
    """rho(t) = rho0 + rate t, with t on the axis of the times that were fitted."""

    rho0: float
    rate: float  # N r: share of the pool per second, all sessions together
    points: int

    @property
    def t_sat(self) -> float:
        """When the line reaches a full pool, in seconds on the same axis."""
        return (1.0 - self.rho0) / self.rate

    def at(self, t_s: float) -> float:
        """Occupancy on the line."""
        return self.rho0 + self.rate * t_s


def fit_line(t_s: Floats, occupancy: Floats) -> FillLine:
    """Least squares through all points. FieldError when they are too few, not finite, or do not rise."""
    t, rho = _checked(t_s, occupancy)
    line = stats.linregress(t, rho)
    # A flat pool gives a slope of rounding errors: it must rise by more than one line fits by chance.
    if not line.slope * np.ptp(t) > 1e-9:
        raise FieldError(
            "occupancy", float(rho[-1]), "does not rise, so no moment of saturation follows from it"
        )
    return FillLine(float(line.intercept), float(line.slope), len(t))


def between(
    t_s: Floats, occupancy: Floats, low: float, high: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points whose occupancy lies in low..high, ends included."""
    t, rho = np.asarray(t_s, np.float64), np.asarray(occupancy, np.float64)
    kept = (rho >= low) & (rho <= high)
    return t[kept], rho[kept]


def before(t_s: Floats, occupancy: Floats, until: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The points from the first block held up to `until`: a pool waiting for its first call says nothing."""
    t, rho = np.asarray(t_s, np.float64), np.asarray(occupancy, np.float64)
    kept = (np.maximum.accumulate(rho) > 0.0) & (t <= until)
    return t[kept], rho[kept]


def _checked(t_s: Floats, occupancy: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    t, rho = np.asarray(t_s, np.float64), np.asarray(occupancy, np.float64)
    if t.shape != rho.shape or t.ndim != 1:
        raise FieldError("occupancy", rho.shape, f"give one value for each of the {t.shape} times")
    if len(t) < _FEWEST:
        raise FieldError("occupancy", len(t), f"give at least {_FEWEST} points that can be fitted")
    if not (np.isfinite(t).all() and np.isfinite(rho).all()):
        raise FieldError("occupancy", "NaN or infinity", "give finite times and shares")
    if rho.min() < 0.0 or rho.max() > 1.0:
        raise FieldError("occupancy", float(rho.max()), "give shares of the pool, 0 to 1")
    if np.ptp(t) == 0.0:
        raise FieldError("t_s", float(t[0]), "give times that differ")
    return t, rho
