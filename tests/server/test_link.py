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
from metronome_cli.trace import TickRecord

PATIENCE_S = 10.0
TICK = TickRecord(tick=0, due=0.0, start=0.0, done=0.0)


class Nobody:
    """A caller that is never let in."""

    def opened(self, session: SessionId) -> None: ...

    def heed(self, message: messages.ToCaller) -> None: ...


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
            ready = messages.Ready(0, 1, "max_sessions", 1, "")
            await engine.send_multipart([gateway, messages.pack(ready)])
            await link.ready()
            clock.advance(14.0)
            assert link.state == "ok"
            clock.advance(0.1)
            assert link.state == "engine_busy"
            assert await link.open(Nobody()) == Refused("engine_busy")
            link.draining = True
            assert link.state == "draining"
            link.draining = False
            told = asyncio.Event()
            link.on_beat = lambda _: told.set()
            beat = messages.Beat(TICK, 0, 0, 1, 0, 0, [], [])
            await engine.send_multipart([gateway, messages.pack(beat)])
            await told.wait()
            assert link.state == "ok"
            link.ended("test")
            link._hang_up()

    asyncio.run(asyncio.wait_for(scene(), PATIENCE_S))
