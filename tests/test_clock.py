"""Both clocks keep the promise of the protocol: a wait ends once its moment has come, never before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from metronome_cli.clock import Clock, SystemClock, VirtualClock


class Sleeper(SystemClock):
    """The system's clock over a time that only moves when somebody sleeps, and then a little too little."""

    def __init__(self) -> None:
        self.moment, self.sleeps = 100.0, 0

    def now(self) -> float:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        assert seconds > 0
        self.moment += seconds if seconds < 0.001 else 0.9 * seconds

    async def sleep_async(self, seconds: float) -> None:
        if seconds > 0:
            self.sleep(seconds)


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> Sleeper:
    clock = Sleeper()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(asyncio, "sleep", clock.sleep_async)
    return clock


def wait(clock: Clock, due: float) -> None:
    clock.wait_until(due)


def wait_async(clock: Clock, due: float) -> None:
    asyncio.run(clock.sleep_until(due))


Wait = Callable[[Clock, float], None]
both = pytest.mark.parametrize("wait", [wait, wait_async])


@both
def test_a_wait_ends_at_its_moment_though_the_system_wakes_it_early(sleeper: Sleeper, wait: Wait) -> None:
    wait(sleeper, 102.0)
    assert 102.0 <= sleeper.moment < 102.001
    assert sleeper.sleeps > 1


@both
def test_a_moment_that_has_passed_costs_no_sleep(sleeper: Sleeper, wait: Wait) -> None:
    wait(sleeper, 99.0)
    assert sleeper.sleeps == 0


@both
def test_virtual_time_jumps_to_the_moment_and_never_back(wait: Wait) -> None:
    clock = VirtualClock(5.0)
    wait(clock, 3600.0)
    assert clock.now() == 3600.0
    wait(clock, 10.0)
    assert clock.now() == 3600.0
    clock.advance(0.5)
    assert clock.now() == clock.wall() == clock.cpu() == 3600.5


def test_others_get_their_turn_while_a_coroutine_waits_in_virtual_time() -> None:
    async def both_turns() -> list[str]:
        turns: list[str] = []

        async def count(name: str, clock: VirtualClock) -> None:
            for second in range(2):
                await clock.sleep_until(second)
                turns.append(name)

        await asyncio.gather(count("a", VirtualClock()), count("b", VirtualClock()))
        return turns

    assert asyncio.run(both_turns()) == ["a", "b", "a", "b"]


def test_the_system_clock_moves_on_and_is_not_wall_time() -> None:
    clock = SystemClock()
    first, cpu = clock.now(), clock.cpu()
    assert clock.now() >= first
    assert clock.cpu() >= cpu
    assert clock.wall() > 1_700_000_000
