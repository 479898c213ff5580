"""Numbers about numbers: percentiles and slopes with their intervals.

Knows:   numpy and scipy.
Ignores: what the numbers measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True, slots=True)
class Slope:
    """A Theil-Sen slope (y per x) with its confidence interval."""

    estimate: float
    low: float
    high: float


def percentiles(values: Sequence[float], points: Sequence[float] = (50, 90, 99)) -> dict[str, float] | None:
    """{"p50": ..., ...}, or None without values."""
    if len(values) == 0:
        return None
    cuts = np.percentile(np.asarray(values, dtype=np.float64), points)
    return {f"p{point:g}": float(cut) for point, cut in zip(points, cuts, strict=True)}


def theil_sen(x: Sequence[float], y: Sequence[float], confidence: float = 0.95) -> Slope | None:
    """Median of pairwise slopes; None when x does not vary."""
    if len(x) < 3 or len(set(x)) < 2:
        return None
    found = stats.theilslopes(np.asarray(y), np.asarray(x), confidence)
    return Slope(float(found[0]), float(found[2]), float(found[3]))
