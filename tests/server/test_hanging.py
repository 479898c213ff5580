"""An engine that stands still, or hangs for good, over real sockets: what its callers are told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import metronome_cli
from metronome_cli import wire
from metronome_cli.report import read_report

from .running import PATIENCE_S, WHOLE, Caller, Server, answered, ask, call, text_of
from .test_gateways import on_both

SOURCE = Path(metronome_cli.__file__).parents[1]
Start = Callable[..., Server]

# The C library's sleep, called without letting go of the interpreter: no signal handler runs meanwhile.
HANGS = """
import ctypes
from metronome_cli.models.null import NullModel

class Hangs(NullModel):
    def tick(self, frames):
        if any("hang" in frame.texts for frame in frames):
            ctypes.PyDLL(None).sleep(3600)
        yield from super().tick(frames)
"""


async def still_there(caller: Caller) -> None:
    """A tick comes, and it is none of those before the silence."""
    before = len(caller.seen)
    while not (await caller.until(wire.TickEvent)).skipped:
        pass
    assert not [seen for seen in caller.seen[before:] if isinstance(seen, wire.ErrorEvent)]


async def until_health(server: Server, status: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await asyncio.to_thread(server.health))[1]["status"] != status:
            pass


def test_callers_hear_of_a_hang_before_its_end_and_of_its_end_and_the_server_goes_on(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    server = start(kind="hangs:Hangs", mode="turn", frame_s=0.05, more="hang_s = 3.4", env=env)

    async def scene() -> None:
        async with call(server) as one, call(server) as two:
            # A while of silence is told, and no more than told.
            await one.ticking()
            await one.until(wire.TickEvent)
            os.kill(server.engine, signal.SIGSTOP)
            for caller in (one, two):
                error = await caller.error()
                assert (error.type, error.code) == ("server_error", "engine_busy")
                assert "the engine has told of no beat for " in error.message
            assert (await asyncio.to_thread(server.health))[1]["status"] == "engine_busy"
            os.kill(server.engine, signal.SIGCONT)
            await still_there(one)
            await ask(two)
            assert text_of(await answered(two)) == WHOLE
            # One that does not end ends the process, and with it all calls.
            await ask(two, "hang")
            for caller in (one, two):
                errors = [await caller.error() for _ in range(2)]
                assert [error.code for error in errors] == ["engine_busy", "engine_hung"]
                assert errors[1].type == "server_error"
                assert "the engine process said nothing for " in errors[1].message
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD
        await until_health(server, "ok")
        async with call(server) as three:
            await ask(three)
            assert text_of(await answered(three)) == WHOLE

    asyncio.run(scene())
    code, said = server.stop()
    assert code == 1  # calls were lost
    assert said.count("2 calls are told") == 2
    assert said.count("the engine's silence is over") == 1
    assert "and was ended: calls are closed and new ones refused until it is back" in said
    found = read_report(server.folder).results
    assert (found["engine_busy"], found["engine_hangs"], found["engine_restarts"]) == (2, 1, 1)


def test_callers_of_every_gateway_are_told(start: Start, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"}
    more = "gateways = 2\nhang_s = 2"
    server = start(
        kind="hangs:Hangs", mode="turn", frame_s=0.05, max_sessions=40, blocks=2000, more=more, env=env
    )

    async def scene() -> None:
        async with on_both(server) as callers:
            await ask(callers["2"], "hang")
            for caller in callers.values():
                codes = [(await caller.error()).code for _ in range(2)]
                assert codes == ["engine_busy", "engine_hung"]
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD
        await until_health(server, "ok")

    asyncio.run(scene())
    server.stop()
