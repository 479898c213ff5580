"""The largest N that holds: doubling until one does not, then bisection.

Knows:   which N were tried and which of them held, and how many values that takes.
Ignores: how one is tried; whoever asks for the next N tries it, with fresh calls.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

FEWEST = 20  # values within a limit: 95 % sure that at least 86 % are (0.05 ** (1 / 20)); of one, 5 %


def largest(tried: Mapping[int, bool]) -> int:
    """The largest N that held below all that did not; 0 when there is none."""
    failed = min((n for n, held in tried.items() if not held), default=None)
    return max((n for n, held in tried.items() if held and (failed is None or n < failed)), default=0)


def next_n(tried: Mapping[int, bool], first: int, most: int) -> int | None:
    """What to try next, from `first` on and up to `most`; None when the answer is known."""
    if not tried:
        return min(first, most)
    held = largest(tried)
    failed = min((n for n, fine in tried.items() if not fine), default=None)
    if failed is None:
        return min(2 * held, most) if held < most else None
    return (held + failed) // 2 if failed - held > 1 else None


def too_few(found: Mapping[str, Any]) -> str:
    """Why a run whose limits were kept says too little to hold; or ""."""
    judged = next((limit for limit in found["limits"] if limit.get("n") is not None), None)
    if judged is None or judged["n"] >= FEWEST:
        return ""
    what = "frames with an answer" if found["frames"]["closed"] else "answers"
    # A tenth more than it would have taken here, in whole ten seconds.
    takes_s = 10 * math.ceil(0.11 * found["elapsed_s"] * FEWEST / judged["n"])
    return f"it held in only {judged['n']} {what}, and {FEWEST} are wanted: use --duration {takes_s}s or more"
