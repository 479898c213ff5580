"""Audio may wait in the gateway until just before a tick is due: sooner, nobody could do anything with it.

Knows:   when the next tick is due, as far as the engine's latest beat tells, and who holds audio back.
Ignores: what is held, sessions, sockets.

A message to the engine costs as much for 20 ms of audio as for 200, and a resampler nearly so. Whoever holds
audio back is called early enough that all are done when the tick is due; what comes meanwhile is taken in
between.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

from ..clock import Clock

_AHEAD_S = 0.006  # between the last audio handed on and the tick: a message's way, and a busy loop
_SLACK = 1.25  # times as long as it took to call all of them the last time
_AT_ONCE = 32  # calls between two looks at the sockets; a millisecond


_MOST_HELD_S = 0.1, 0.3  # audio that one holder may let wait: the least and the most of all holders
_GOLDEN = 0.618034  # its multiples, less their whole part, spread evenly, however many there are


class Holder(Protocol):
    """Who holds audio back."""

    def hand_on(self) -> None:
        """Hand on what is held, if anything still is."""
        ...


class Upbeat:
    """Calls every holder shortly before each tick."""

    def __init__(self, frame_s: float, clock: Clock) -> None:
        self._frame_s = frame_s
        self._clock = clock
        self._due: float | None = None  # of a tick that was, and so of those that follow
        self._known = asyncio.Event()
        self._holders: set[Holder] = set()
        self._took_s = 0.0  # to call them all, the last time
        self._paces = 0  # given out

    def beat(self, due: float) -> None:
        """A tick was due then; the others are whole frames away."""
        self._due = due
        self._known.set()

    def stop(self) -> None:
        """No tick is known to come."""
        self._due = None
        self._known.clear()

    def awaits(self, holder: Holder) -> bool:
        """Call this holder before the next tick. False when nobody knows one: it must not hold back."""
        if self._due is None:
            return False
        self._holders.add(holder)
        return True

    def most_held_s(self) -> float:
        """How much audio a new holder may let wait: another for each, since all begin anew at a tick."""
        self._paces += 1
        least, most = _MOST_HELD_S
        return least + self._paces * _GOLDEN % 1 * (most - least)

    async def run(self) -> None:
        """Keep calling, until cancelled."""
        latest = self._clock.now()
        while True:
            await self._known.wait()
            latest = self._next_due(max(latest, self._clock.now()))
            await self._clock.sleep_until(latest - self._ahead_s())
            await self._call()

    def _next_due(self, after: float) -> float:
        """The first tick due later than `after`."""
        first = self._due or 0.0
        due = first + math.floor((after - first) / self._frame_s + 1) * self._frame_s
        return due if due > after else due + self._frame_s  # the division may round

    def _ahead_s(self) -> float:
        return min(_AHEAD_S + _SLACK * self._took_s, self._frame_s / 2)

    async def _call(self) -> None:
        began = self._clock.now()
        holders, self._holders = list(self._holders), set()
        for number, holder in enumerate(holders, 1):
            holder.hand_on()
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        if holders:
            self._took_s = self._clock.now() - began
