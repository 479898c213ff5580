"""Whether a process that died is started again, and after how long.

Knows:   how often in a row it died at once, and that pauses grow.
Ignores: which process, and how it is started. Times are seconds.
"""

from __future__ import annotations

STEADY_S = 60.0  # who dies sooner after it was ready is counted as one that never was
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # doubled each time


class Restarts:
    """Of one process, at most `most` in a row."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures = 0  # lives in a row that were over at once

    def pause_s(self, lived_s: float) -> float | None:
        """How long to wait after a death, `lived_s` after it was ready; None: it is not worth another try."""
        self._failures = 0 if lived_s >= STEADY_S else self._failures + 1
        if not self._failures <= self._most > 0:
            return None
        return min(_FIRST_PAUSE_S * 2.0 ** max(0, self._failures - 1), _LONGEST_PAUSE_S)

    def __str__(self) -> str:
        """Why it is not worth another try, by field and cure."""
        if not self._most:
            return "server.restarts = 0; use 1 or more"
        return (
            f"server.restarts = {self._most}, and it ended {self._failures} times in a row within "
            f"{STEADY_S:g} s of being ready, or before; mend what ended it, or allow more"
        )
