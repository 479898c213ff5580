"""Time as an argument: the only file that reads a clock.

Knows:   seconds on a monotonic scale, wall time for headers, this process's CPU seconds.
Ignores: beats, budgets, sessions. `VirtualClock` lets tests and simulations own the time.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Seconds, and a way to wait for one. All processes of one machine share the monotonic scale."""

    def now(self) -> float:
        """Monotonic seconds."""
        ...

    def wall(self) -> float:
        """Seconds since 1970, for headers and file names only."""
        ...

    def cpu(self) -> float:
        """CPU seconds this process has used."""
        ...

    def wait_until(self, due: float) -> None:
        """Return once `now() >= due`; at once when that has passed."""
        ...

    async def sleep_until(self, due: float) -> None:
        """`wait_until` for coroutines."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def cpu(self) -> float:
        return time.process_time()

    def wait_until(self, due: float) -> None:
        while (left := due - self.now()) > 0:  # a sleep may end a little early
            time.sleep(left)

    async def sleep_until(self, due: float) -> None:
        await asyncio.sleep(max(0.0, due - self.now()))
        if self.now() < due:
            await self.sleep_until(due)


class VirtualClock:
    """A clock that jumps instead of sleeping, and moves only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now

    def cpu(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let `seconds` of work pass."""
        self._now += seconds

    def wait_until(self, due: float) -> None:
        self._now = max(self._now, due)

    async def sleep_until(self, due: float) -> None:
        self.wait_until(due)
        await asyncio.sleep(0)
