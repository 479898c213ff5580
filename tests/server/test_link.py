"""What a gateway makes of its engine's silence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import zmq
import zmq.asyncio

from metronome_cli.clock import VirtualClock
from metronome_cli.frame import Refused, SessionId
from metronome_cli.profile import parse_profile
from metronome_cli.server import messages
from metronome_cli.server.link import EngineLink
from metronome_cli.server.silence import LOOK_S
from metronome_cli.trace import TickRecord

PATIENCE_S = 10.0
READY = messages.Ready(0, 1, "max_sessions", 1, "")
BEAT = messages.Beat(TickRecord(tick=0, due=0.0, start=0.0, done=0.0), 0, 0, 1, 0, 0, [], [])


class Caller:
    """What one caller is told."""

    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []
        self.heard: list[messages.ToCaller] = []

    def opened(self, session: SessionId) -> None: ...

    def heed(self, message: messages.ToCaller) -> None:
        self.heard.append(message)

    def warn(self, code: str, why: str) -> None:
        self.warnings.append((code, why))


def wait(link: EngineLink, clock: VirtualClock, seconds: float) -> None:
    """Look at the engine as often as a running link does."""
    for _ in range(int(seconds / LOOK_S)):
        clock.advance(LOOK_S)
        link.look()


def ready_link() -> tuple[EngineLink, VirtualClock, Caller]:
    """A link to an engine that has told that it is ready, and one call on it."""
    clock = VirtualClock(100.0)
    link = EngineLink(parse_profile("null", {"model": {"kind": "null"}, "beat": {"frame_s": 2.0}}), clock)
    link._over = False
    link._take(READY)
    caller = Caller()
    link._requests[1] = caller, asyncio.get_running_loop().create_future()
    link._take(messages.Opened(1, 7))
    return link, clock, caller


def test_callers_are_told_once_of_each_silence_and_their_calls_go_on() -> None:
    async def scene() -> None:
        link, clock, caller = ready_link()
        wait(link, clock, 14.0)
        assert (caller.warnings, link.silent_s) == ([], 0.0)
        wait(link, clock, 20.0)
        ((code, why),) = caller.warnings
        assert code == "engine_busy"
        assert why.startswith("the engine has told of no beat for 14.2 s")
        assert "64 s, the call is over" in why
        assert link.silent_s == 34.0
        link._take(BEAT)
        wait(link, clock, 14.0)
        assert len(caller.warnings) == 1
        wait(link, clock, 1.0)
        assert len(caller.warnings) == 2
        assert link.metrics.engine_busy == 2
        assert link.metrics.summary()["engine_busy"] == 2
        assert caller.heard == []

    asyncio.run(scene())


def test_the_end_of_an_engine_ends_its_silence() -> None:
    async def scene() -> None:
        link, clock, caller = ready_link()
        wait(link, clock, 20.0)
        link.ended("it hung", "engine_hung")
        assert caller.heard == [messages.Ended(7, "engine_hung", "it hung; it is started again: call anew")]
        wait(link, clock, 600.0)  # while a model loads
        assert len(caller.warnings) == 1
        assert link.state == "restarting"

    asyncio.run(scene())


def test_who_calls_a_server_without_an_engine_for_good_is_not_asked_to_come_again() -> None:
    async def scene() -> None:
        link, _, caller = ready_link()
        waiting = asyncio.create_task(link.open(caller))
        await asyncio.sleep(0)
        assert link.free == 0  # the only place is taken
        link.ended("it died", final=True)
        why = "it died; it is not started again: this server ends"
        assert caller.heard == [messages.Ended(7, "engine_dead", why)]
        assert await waiting == await link.open(caller) == Refused("engine_dead", None)
        assert link.state == "engine_dead"

    asyncio.run(scene())


def test_there_is_no_room_where_nobody_is_let_in() -> None:
    async def scene() -> None:
        link, clock, _ = ready_link()
        link.close(SessionId(7))
        assert link.free == 1
        wait(link, clock, 20.0)
        assert (link.state, link.free) == ("engine_busy", 0)
        link.ended("it hung", "engine_hung")
        assert (link.state, link.free) == ("restarting", 0)
        assert await link.open(Caller()) == Refused("restarting", 1.0)

    asyncio.run(scene())


def test_an_engine_whose_beat_stopped_is_busy_until_the_next_one(tmp_path: Path) -> None:
    """A model that hangs keeps its process alive: who looks after the server must see it all the same."""

    async def scene() -> None:
        clock, address = VirtualClock(100.0), f"ipc://{tmp_path}/engine"
        link = EngineLink(parse_profile("null", {"model": {"kind": "null"}, "beat": {"frame_s": 2.0}}), clock)
        with zmq.asyncio.Context() as context, context.socket(zmq.ROUTER) as engine:
            engine.linger = 0
            engine.bind(address)
            link.begins(address)
            gateway, _ = await engine.recv_multipart()
            assert link.state == "starting"
            await engine.send_multipart([gateway, messages.pack(READY)])
            await link.ready()
            wait(link, clock, 14.0)
            assert link.state == "ok"
            wait(link, clock, LOOK_S)
            assert link.state == "engine_busy"
            assert await link.open(Caller()) == Refused("engine_busy")
            link.draining = True
            assert link.state == "draining"
            link.draining = False
            told = asyncio.Event()
            link.on_beat = lambda _: told.set()
            await engine.send_multipart([gateway, messages.pack(BEAT)])
            await told.wait()
            assert link.state == "ok"
            link.ended("test")
            link._hang_up()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
