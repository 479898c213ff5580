"""Requests that are never whole, against uvicorn on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from metronome_cli.server.opening import Opening

from .running import PATIENCE_S

WHOLE = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: here\r\n"


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse("good day")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        app = Starlette(routes=[Route("/", answer)])
        config = uvicorn.Config(app, http=Opening, lifespan="off", log_config=None, timeout_keep_alive=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield reader, writer
        finally:
            writer.close()
            server.should_exit = True
            await serving


def side_by_side(scenes: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Play scenes that mostly wait, each with a server of its own, at once."""

    async def all_of_them() -> None:
        async with asyncio.TaskGroup() as playing:
            for scene in scenes:
                playing.create_task(scene)

    asyncio.run(all_of_them())


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What came until the connection ended, with or without a goodbye."""
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while more := await reader.read(4096):
            heard += more
    return heard


def test_a_request_that_is_never_whole_gives_its_connection_back() -> None:
    async def scene(begun: bytes) -> None:
        async with connected() as (reader, writer):
            writer.write(begun)
            assert await ended(reader) == b"", begun

    side_by_side(scene(begun) for begun in (b"", WHOLE[:1], WHOLE[:-2]))


def test_a_body_that_never_ends_gives_its_connection_back() -> None:
    async def scene(pause_s: float | None) -> None:
        async with connected() as (reader, writer):
            writer.write(POST + b"Content-Length: 999\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\nMethod Not Allowed")).startswith(b"HTTP/1.1 405")
            over = asyncio.create_task(ended(reader))
            while not over.done():  # no drop begins a wait of its own
                writer.write(b"x")
                await asyncio.wait({over}, timeout=pause_s)

    side_by_side(scene(pause_s) for pause_s in (0.05, None))


@pytest.mark.parametrize("answered", [False, True])
def test_a_body_gone_bad_ends_its_connection_and_is_no_fault_of_ours(
    answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        surprises: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, told: surprises.append(told))
        async with connected() as (reader, writer):
            head, no_chunk = POST + b"Transfer-Encoding: chunked\r\n\r\n", b"rubbish\r\n"
            if answered:
                writer.write(head)
                await reader.readuntil(b"\r\n\r\nMethod Not Allowed")
                writer.write(no_chunk)
                assert await ended(reader) == b""
            else:
                writer.write(head + no_chunk)
                assert (await ended(reader)).startswith(b"HTTP/1.1 400")
        assert surprises == []

    asyncio.run(scene())
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


def test_the_second_request_of_a_connection_may_not_take_for_ever_either() -> None:
    async def scene() -> None:
        async with connected() as (reader, writer):
            writer.write(WHOLE)
            assert (await reader.readuntil(b"good day")).startswith(b"HTTP/1.1 200")
            writer.write(WHOLE[:-2])
            assert await ended(reader) == b""

    asyncio.run(scene())
