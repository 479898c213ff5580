"""What a call leaves in its gateway: nothing that waits for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.server import ServerProtocol

from metronome_cli import wire
from metronome_cli.clock import SystemClock
from metronome_cli.profile import load_profile
from metronome_cli.server import gateway
from metronome_cli.server.connection import Connection
from metronome_cli.server.realtime import Call

from .running import PATIENCE_S, write_profile

OF_A_CALL = (Call, Connection, ServerProtocol)
WAYS = ("goodbye", "reset", "never back", "idle")
NOTICED_S = 5.0  # a bound: until the last of them is over
LOOK_S = 0.05
SPEECH = wire.encode(wire.AudioAppend(audio=bytes(3200))).decode()
NO_EVENT = "rubbish"
RESUME = '{"type": "session.update", "session": {"type": "realtime", "metronome": {"resume": true}}}'


@pytest.fixture
def no_collector() -> Iterator[None]:
    """In this test, what nobody refers to goes, and what goes round in circles stays."""
    gc.collect()
    gc.disable()
    yield
    gc.unfreeze()  # a gateway freezes what it finds
    gc.enable()


def left() -> Counter[str]:
    """What there is of calls in this process, by type."""
    return Counter(type(one).__name__ for one in gc.get_objects() if isinstance(one, OF_A_CALL))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """A gateway in this process; where to call it."""
    more = "grace_s = 0.2"
    profile = load_profile(str(write_profile(folder, max_sessions=len(WAYS), idle_s=0.5, more=more)))
    ready = asyncio.Event()
    with gateway.listen("127.0.0.1", 0) as listener:
        serve = gateway.serve(profile, listener, None, SystemClock(), lambda _: ready.set())
        server = asyncio.create_task(serve)
        await asyncio.wait_for(ready.wait(), PATIENCE_S)
        yield gateway.url_of(listener).replace("http", "ws") + wire.REALTIME_PATH
        server.cancel()
        with suppress(asyncio.CancelledError):
            await server


async def vanish(address: str, how: str, all_in: asyncio.Barrier) -> None:
    """One call that says all sorts of things, and its end, once the server is full."""
    async with connect(address, compression=None, proxy=None, close_timeout=0.5) as line:
        await line.recv()
        for text in (SPEECH, NO_EVENT, RESUME if how == "never back" else SPEECH):
            await line.send(text)
        await line.recv()
        await all_in.wait()
        if how == "idle":
            with suppress(ConnectionClosed):
                async for _ in line:
                    pass
        elif how != "goodbye":
            line.transport.abort()


async def be_refused(address: str, all_in: asyncio.Barrier) -> None:
    """A call for which there is no room."""
    await all_in.wait()
    with pytest.raises(InvalidStatus):
        async with connect(address, compression=None, proxy=None):
            pass


async def until_none_is_left() -> None:
    clock = SystemClock()
    latest = clock.now() + NOTICED_S
    while left() and clock.now() < latest:
        await clock.sleep_until(clock.now() + LOOK_S)


@pytest.mark.usefixtures("no_collector")
def test_nothing_of_a_call_waits_for_the_garbage_collector_however_it_ends(tmp_path: Path) -> None:
    async def scene() -> None:
        async with serving(tmp_path) as address:
            all_in = asyncio.Barrier(len(WAYS) + 1)
            calls = [vanish(address, how, all_in) for how in WAYS]
            await asyncio.gather(be_refused(address, all_in), *calls)
            await until_none_is_left()
            assert left() == {}

    with asyncio.Runner(loop_factory=gateway.new_loop) as runner:
        runner.run(scene())
