"""Whether a process that died is started again, and after how long.

Knows:   how often in a row it died before it had been of use, and that pauses grow.
Ignores: which process, and how it is started. Times are seconds.
"""

from __future__ import annotations

STEADY_S = 60.0  # who dies sooner after it was ready is counted as one that never was,
SERVED_S = 10.0  # but for one that gave its callers frames for so long: it dies of what came later
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # doubled each time


class Restarts:
    """Of one process, at most `most` in a row."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._failures = 0  # lives in a row that were of no use

    def pause_s(self, lived_s: float, served_s: float = 0.0) -> float | None:
        """How long to wait after a death, `lived_s` after it was ready; None: it is not worth another try.

        `served_s`: of that life, how long the frames were together that calls got.
        """
        of_use = lived_s >= STEADY_S or served_s >= SERVED_S
        self._failures = 0 if of_use else self._failures + 1
        if not self._failures <= self._most > 0:
            return None
        return min(_FIRST_PAUSE_S * 2.0 ** max(0, self._failures - 1), _LONGEST_PAUSE_S)

    def __str__(self) -> str:
        """Why it is not worth another try, by field and cure."""
        if not self._most:
            return "server.restarts = 0; use 1 or more"
        return (
            f"server.restarts = {self._most}, and it ended {self._failures} times in a row before it had "
            f"served calls for {SERVED_S:g} s or been ready for {STEADY_S:g} s; mend what ended it, or allow "
            "more"
        )
