"""A run cut into steps, by elapsed time and by the age of its calls: a mean over everything hides a collapse.

Knows:   frame and tick records, and when frames were due of which there is none.
Ignores: what is concluded from a bucket.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from ..trace import FrameRecord, TickRecord
from .figures import Missed, freshness

BUCKET_S = 10.0
_WIDTHS = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


def width(length_s: float, most: int = 30, least_s: float = BUCKET_S) -> float:
    """Seconds per bucket for a run of `length_s`: round, `least_s` or more, and at most `most` to be read."""
    return next((width for width in _WIDTHS if width >= least_s and length_s / width <= most), _WIDTHS[-1])


def by_elapsed(
    frames: Sequence[FrameRecord],
    ticks: Sequence[TickRecord],
    start: float,
    elapsed_s: float,
    width_s: float = BUCKET_S,
    missed: Sequence[Missed] | None = None,
) -> list[dict[str, Any]]:
    """Freshness, stalled, empty and missing frames and pool occupancy, in steps of elapsed time.

    `missed`: frames that were never told; None where nobody can say so.
    """
    # Hanging up takes some milliseconds; they are no bucket of their own.
    last = max(0, math.ceil(round(elapsed_s, 1) / width_s) - 1)
    pool: dict[int, list[float]] = defaultdict(list)
    for tick in ticks:
        if tick.kv_total:
            place = min(last, int((tick.done - start) // width_s))
            pool[place].append(tick.kv_leased / tick.kv_total)
    found = _cut(frames, missed, lambda frame: frame.due - start, last, width_s)
    for number, bucket in enumerate(found):
        bucket["to_s"] = min(bucket["to_s"], elapsed_s)
        bucket["occupancy"] = max(pool[number], default=None)
    return found


def by_age(
    frames: Sequence[FrameRecord], width_s: float, missed: Sequence[Missed] | None = None
) -> list[dict[str, Any]]:
    """The same by session age; with churn, old and young calls of one moment part here."""
    ages = [frame.age_s for frame in frames] + [miss.age_s for miss in missed or ()]
    if not ages:
        return []
    last = max(0, math.ceil(max(ages) / width_s) - 1)
    return _cut(frames, missed, lambda frame: frame.age_s, last, width_s)


def _cut(
    frames: Sequence[FrameRecord],
    missed: Sequence[Missed] | None,
    at: Callable[[FrameRecord | Missed], float],
    last: int,
    width_s: float,
) -> list[dict[str, Any]]:
    framed: dict[int, list[FrameRecord]] = defaultdict(list)
    missing: dict[int, list[Missed]] = defaultdict(list)
    for frame in frames:
        framed[min(last, max(0, int(at(frame) // width_s)))].append(frame)
    for miss in missed or ():
        missing[min(last, max(0, int(at(miss) // width_s)))].append(miss)
    return [
        {
            "from_s": number * width_s,
            "to_s": (number + 1) * width_s,
            "frames": len(framed[number]),
            "sessions": len({f.session for f in framed[number]} | {m.session for m in missing[number]}),
            "stalled": sum(frame.stalled for frame in framed[number]),
            "empty": sum(frame.empty for frame in framed[number]),
            "missing": None if missed is None else len(missing[number]),
            "freshness": freshness(framed[number]),
        }
        for number in range(last + 1)
    ]
