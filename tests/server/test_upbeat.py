from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.server.upbeat import Upbeat

FRAME_S = 0.08


class Holder:
    """Notes when it was called, and takes its time."""

    def __init__(self, clock: VirtualClock, costs_s: float = 0.0) -> None:
        self.called: list[float] = []
        self._clock = clock
        self._costs_s = costs_s

    def hand_on(self) -> None:
        self.called.append(self._clock.now())
        self._clock.advance(self._costs_s)


def scene(play: Callable[[Upbeat, VirtualClock], Coroutine[Any, Any, None]]) -> None:
    async def play_it() -> None:
        clock = VirtualClock(10.0)
        upbeat = Upbeat(FRAME_S, clock)
        running = asyncio.create_task(upbeat.run())
        await play(upbeat, clock)
        running.cancel()

    asyncio.run(play_it())


async def pass_turns(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


def test_nobody_may_hold_back_before_a_beat_is_known() -> None:
    async def play(upbeat: Upbeat, clock: VirtualClock) -> None:
        assert not upbeat.awaits(Holder(clock))
        upbeat.beat(10.0)
        assert upbeat.awaits(Holder(clock))
        upbeat.stop()
        assert not upbeat.awaits(Holder(clock))

    scene(play)


def test_each_hold_is_called_once_and_just_before_a_tick() -> None:
    async def play(upbeat: Upbeat, clock: VirtualClock) -> None:
        upbeat.beat(9.99)
        holder = Holder(clock)
        for number in range(1, 100):
            upbeat.awaits(holder)
            await pass_turns(8)
            assert len(holder.called) == number
            before = (9.99 - holder.called[-1]) % FRAME_S
            assert 0.004 < before < 0.01

    scene(play)


def test_many_are_called_earlier_so_that_the_last_is_still_in_time() -> None:
    async def play(upbeat: Upbeat, clock: VirtualClock) -> None:
        upbeat.beat(10.0)
        holders = [Holder(clock, costs_s=0.0002) for _ in range(100)]  # 20 ms together
        for _ in range(6):
            for holder in holders:
                upbeat.awaits(holder)
            await pass_turns(20)
        last = max(holder.called[-1] for holder in holders)
        first = min(holder.called[-1] for holder in holders)
        assert last - first == pytest.approx(0.02, abs=0.001)
        assert (10.0 - last) % FRAME_S < FRAME_S / 2

    scene(play)


def test_others_have_their_turn_between_many_calls() -> None:
    async def play(upbeat: Upbeat, clock: VirtualClock) -> None:
        holders = [Holder(clock) for _ in range(300)]
        upbeat.beat(10.0)
        for holder in holders:
            upbeat.awaits(holder)
        seen = set()
        for _ in range(40):
            seen.add(sum(len(holder.called) for holder in holders))
            await asyncio.sleep(0)
        assert {0, 300} < seen

    scene(play)


def test_holders_are_not_full_at_the_same_time() -> None:
    upbeat = Upbeat(FRAME_S, VirtualClock())
    paces = [upbeat.most_held_s() for _ in range(1_000)]
    rounds = [sum(0.1 + low * 0.02 <= pace < 0.12 + low * 0.02 for pace in paces) for low in range(10)]
    assert sum(rounds) == len(paces)
    assert max(rounds) < 110
