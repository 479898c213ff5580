"""What becomes of an engine process that hangs."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.profile import parse_profile
from metronome_cli.server import messages
from metronome_cli.server.engine_life import EngineLife
from metronome_cli.server.keeper import EngineKeeper
from metronome_cli.server.silence import LOOK_S
from metronome_cli.trace import TickRecord

NULL = parse_profile("null", {"model": {"kind": "null"}})


class Life:
    """A process that does nothing."""

    def __init__(self, traced: bool) -> None:
        self.killed = 0
        self.traced = traced

    def kill(self) -> None:
        self.killed += 1

    def is_traced(self) -> bool:
        return self.traced


class Follower:
    """Another gateway."""

    highest = unheard = 0

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def begins(self, address: str) -> None: ...

    def ended(self, how: str, code: str, final: bool) -> None:
        self.told.append((how, code))
        self.final = final

    def given_up(self) -> None:
        self.told.append(("given up", ""))


def keeper(clock: VirtualClock, life: Life, restarts: int = 5) -> EngineKeeper:
    """One whose engine is ready now."""
    made = EngineKeeper(
        parse_profile("null", {"model": {"kind": "null"}, "server": {"restarts": restarts}}), None, clock
    )
    made._life, made._over = cast(EngineLife, life), False
    made._take(messages.Ready(0, 1, "max_sessions", 1, ""))
    return made


def wait(keeper: EngineKeeper, clock: VirtualClock, seconds: float) -> None:
    for _ in range(int(seconds / LOOK_S)):
        clock.advance(LOOK_S)
        keeper.look()


def test_it_is_ended_once_and_whoever_follows_is_told() -> None:
    async def scene() -> None:
        clock, life, follower = VirtualClock(100.0), Life(traced=False), Follower()
        kept = keeper(clock, life)
        kept.follower = follower
        wait(kept, clock, 64.0)
        assert (life.killed, kept.state) == (0, "engine_busy")
        wait(kept, clock, 600.0)
        assert (life.killed, kept.state, kept.deaths) == (1, "restarting", 1)
        assert follower.told == [
            ("the engine process said nothing for 64.2 s and was ended", "engine_hung"),
        ]
        assert kept.metrics.summary()["engine_hangs"] == 1

    asyncio.run(scene())


@pytest.mark.parametrize("restarts", [0, 1])
def test_one_that_is_given_up_ends_the_server_once_and_says_why(
    caplog: pytest.LogCaptureFixture, restarts: int
) -> None:
    async def scene() -> None:
        clock, life, follower, ends = VirtualClock(100.0), Life(traced=False), Follower(), list[float]()
        kept = keeper(clock, life, restarts)
        kept.follower, kept.on_given_up = follower, lambda: ends.append(clock.now())
        for number in range(restarts):
            kept.ended("it died")
            assert (kept.state, follower.final, ends) == ("restarting", False, [])
            assert number + 1 == kept.deaths
            kept._over = False
            kept._take(messages.Ready(0, 1, "max_sessions", 1, ""))
        clock.advance(59.0)  # it has served calls meanwhile, and lived for less than a minute
        kept._silence.begin(clock.now())
        wait(kept, clock, 600.0)
        assert (life.killed, kept.state, follower.final, len(ends)) == (1, "engine_dead", True, 1)
        assert follower.told[-1] == ("given up", "")

    asyncio.run(scene())
    assert caplog.text.count("is not started again: ") == 1
    assert f"server.restarts = {restarts}" in caplog.text
    assert caplog.text.count("until it is back") == restarts


def tick(keeper: EngineKeeper, calls: int, stalled: int = 0) -> None:
    """A beat of two seconds is over."""
    told = TickRecord(tick=1, due=100.0, start=100.0, done=100.0, sessions=calls, stalled=stalled)
    keeper._take(messages.Beat(told, 0, calls, None, 0, 0, [], []))


@pytest.mark.parametrize(
    ("beats", "calls", "stalled", "ends"),
    [(5, 3, 1, False), (4, 3, 0, True), (29, 0, 0, True), (29, 3, 3, True), (0, 0, 0, True)],
)
def test_a_life_is_judged_by_the_frames_that_calls_got_in_it(
    beats: int, calls: int, stalled: int, ends: bool
) -> None:
    """Each life is shorter than a minute: one that served is started again for ever, no other one is."""

    async def scene() -> None:
        clock = VirtualClock(100.0)
        kept = keeper(clock, Life(traced=False), restarts=2)
        for _ in range(3):
            assert kept.state == "ok"
            for _ in range(beats):
                clock.advance(2.0)
                tick(kept, calls, stalled)
            kept.ended("it died")
            kept._over = kept.state == "engine_dead"
            kept._take(messages.Ready(0, 1, "max_sessions", 1, ""))
        assert (kept.state == "engine_dead") == ends

    asyncio.run(scene())


async def loading(clock: VirtualClock, life: Life) -> EngineKeeper:
    """One whose engine came up in ten seconds, died, and is being loaded again."""
    made = EngineKeeper(parse_profile("null", {"model": {"kind": "null"}}), None, clock)
    made._life = cast(EngineLife, life)
    for seconds in (10.0, 0.0):
        made.begins("inproc://nowhere")
        wait(made, clock, seconds)
        if seconds:
            made._take(messages.Ready(0, 1, "max_sessions", 1, ""))
            made.ended("it died")
    return made


def test_a_load_that_hangs_is_ended_and_told_and_is_a_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        clock, life, follower = VirtualClock(100.0), Life(traced=False), Follower()
        kept = await loading(clock, life)
        kept.follower = follower
        wait(kept, clock, 90.0)
        kept._take(messages.Loading())
        wait(kept, clock, 90.0)
        assert (life.killed, kept.state, kept._over, follower.told) == (0, "restarting", False, [])
        wait(kept, clock, 600.0)
        assert (life.killed, kept.state, kept.deaths, kept._pause_s) == (1, "restarting", 2, 1.0)
        [(how, code)] = follower.told
        assert code == "engine_hung"
        assert how.endswith(" while it loaded its model and was ended")
        assert kept.metrics.summary()["engine_hangs"] == 1
        kept._hang_up()

    asyncio.run(scene())
    assert "while it loaded its model and was ended" in caplog.text


def test_a_load_in_a_debuggers_hands_is_left_alone() -> None:
    async def scene() -> None:
        clock, life = VirtualClock(100.0), Life(traced=True)
        kept = await loading(clock, life)
        wait(kept, clock, 600.0)
        assert life.killed == 0
        life.traced = False
        wait(kept, clock, 100.0)
        assert life.killed == 1
        kept._hang_up()

    asyncio.run(scene())


def test_one_in_a_debuggers_hands_is_left_alone() -> None:
    async def scene() -> None:
        clock, life = VirtualClock(100.0), Life(traced=True)
        kept = keeper(clock, life)
        wait(kept, clock, 600.0)
        assert (life.killed, kept.state) == (0, "engine_busy")
        life.traced = False  # it goes on, maybe with the rest of a long tick
        wait(kept, clock, 64.0)
        assert (life.killed, kept.state) == (0, "engine_busy")
        wait(kept, clock, 2 * LOOK_S)
        assert (life.killed, kept.state) == (1, "restarting")

    asyncio.run(scene())


@pytest.mark.parametrize("was_ready", [True, False])
def test_that_it_is_not_started_again_is_told_where_it_ever_was_ready(
    caplog: pytest.LogCaptureFixture, was_ready: bool
) -> None:
    async def scene() -> None:
        kept = EngineKeeper(NULL, None, VirtualClock(100.0))
        if was_ready:
            kept._over = False
            kept._take(messages.Ready(0, 1, "max_sessions", 1, ""))
        kept.given_up()
        assert kept.state == "engine_dead"

    asyncio.run(scene())
    assert ("is not started again" in caplog.text) == was_ready


@pytest.mark.parametrize("lived_s", [0.0, 300.0])
def test_the_silence_at_its_end_is_no_part_of_its_life(lived_s: float) -> None:
    """Else one that hangs in its first tick, every time, would be started again for ever."""

    async def scene() -> None:
        clock, life = VirtualClock(100.0), Life(traced=False)
        kept = keeper(clock, life)
        clock.advance(lived_s)
        kept._silence.begin(clock.now())
        wait(kept, clock, 65.0)
        assert life.killed == 1
        assert kept._lived_s == pytest.approx(lived_s)

    asyncio.run(scene())
