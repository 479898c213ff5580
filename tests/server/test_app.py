from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from metronome_cli import wire

from .running import Server, call

Start = Callable[..., Server]


async def refusal(server: Server, beyond: str = "") -> tuple[wire.RefusalDetail, InvalidStatus]:
    """How the server turns away a caller, before the upgrade; `beyond`: added to the path."""
    with pytest.raises(InvalidStatus) as caught:
        async with connect(server.address + beyond, proxy=None):
            pass
    body = caught.value.response.body
    assert body
    return msgspec.json.decode(body, type=wire.Refusal).error, caught.value


def test_a_call_beyond_the_cap_is_refused_before_the_upgrade(start: Start) -> None:
    server = start(max_sessions=1)

    async def scene() -> None:
        async with call(server) as first:
            error, answer = await refusal(server)
            assert answer.response.status_code == 503
            assert answer.response.headers["Retry-After"] == "1"
            assert answer.response.headers["Content-Type"] == "application/json"
            assert (error.type, error.code) == ("server_overloaded", "max_sessions")
            await first.updated()
        await _place_is_free(server)

    asyncio.run(scene())


def test_a_call_beyond_a_cap_that_moves_is_refused_with_its_reason(start: Start) -> None:
    """Until a beat with one call was measured, one is let in; and this beat is long."""
    server = start(frame_s=30.0, max_sessions=3, options=["--admit", "forecast"])

    async def scene() -> None:
        async with call(server):
            error, answer = await refusal(server)
            assert answer.response.status_code == 503
            assert error.code == "ramp"
            assert "a few per beat" in error.message

    asyncio.run(scene())


def test_a_call_whose_blocks_do_not_fit_is_refused_by_that_reason(start: Start) -> None:
    """One session of the profile can need 22 blocks of the 30."""
    server = start(blocks=30)

    async def scene() -> None:
        async with call(server):
            error, _ = await refusal(server)
            assert error.code == "pool_full"

    asyncio.run(scene())


def test_a_call_to_another_path_is_told_the_right_one(start: Start) -> None:
    """A client that adds /realtime by itself, given the whole address, calls /v1/realtime/realtime."""
    error, answer = asyncio.run(refusal(start(), "/realtime"))
    assert (answer.response.status_code, error.code) == (404, "not_found")
    assert error.message == "no calls are taken at /v1/realtime/realtime: call /v1/realtime"


def test_calls_that_come_at_once_never_exceed_the_cap(start: Start) -> None:
    server = start(max_sessions=3)

    async def attempt(over: asyncio.Event) -> bool:
        try:
            async with connect(server.address, proxy=None):
                await over.wait()
                return True
        except InvalidStatus:
            return False

    async def scene() -> list[bool]:
        over = asyncio.Event()
        attempts = [asyncio.create_task(attempt(over)) for _ in range(20)]
        waiting = set(attempts)
        while len(waiting) > 3:
            _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        over.set()
        return await asyncio.gather(*attempts)

    assert sum(asyncio.run(scene())) == 3


def test_health_names_the_model(server: Server) -> None:
    assert server.health() == (200, {"status": "ok", "model": "null"})


async def _place_is_free(server: Server) -> None:
    """The place of a caller who left is free at once, as far as a network is at once."""
    async with asyncio.timeout(5):
        while True:
            try:
                async with call(server):
                    return
            except InvalidStatus:
                await asyncio.sleep(0.02)
