"""The far end of a few values: of too few there is no p99, and the largest stands in its place.

Knows:   how many values a p99 takes, and what stands in a report where there are fewer.
Ignores: how percentiles are made (stats.py), and what the values measure.
"""

from __future__ import annotations

from collections.abc import Mapping

FEWEST_FOR_P99 = 100  # values: of fewer, p99 lies beyond all but the largest, and says no more than that one

Cuts = Mapping[str, float | None]


def with_tail(cuts: Cuts, most: float, n: int) -> dict[str, float | None]:
    """Percentiles of `n` values with the largest ("max") and "n"; of too few for one, p99 is None."""
    few = {"p99": None} if n < FEWEST_FOR_P99 and "p99" in cuts else {}
    return {**cuts, **few, "max": most, "n": n}


def end_of(cuts: Cuts) -> str:
    """Which of `with_tail` is held to a limit: "p99", or "max" where there are too few values for one."""
    return "max" if (cuts.get("n") or FEWEST_FOR_P99) < FEWEST_FOR_P99 else "p99"
