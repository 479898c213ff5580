"""The largest N that holds: doubling until one does not, then bisection.

Knows:   which N were tried and which of them held.
Ignores: how one is tried; whoever asks for the next N tries it, with fresh calls.
"""

from __future__ import annotations

from collections.abc import Mapping


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
