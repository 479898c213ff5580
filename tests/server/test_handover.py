"""Whom a connection concerns, and how it gets there: two gateways' worth of uvicorn in one process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from metronome_cli import wire
from metronome_cli.server.gateway import _Server
from metronome_cli.server.handover import FIRST, Handover, Sorted, mark_of, owner

from .running import PATIENCE_S

SECOND = FIRST + 1
RESUME = f"{wire.REALTIME_PATH}?resume={{}}secret&after=event_1_2"


@pytest.mark.parametrize(
    ("target", "number"),
    [
        (wire.REALTIME_PATH, None),
        (f"{wire.REALTIME_PATH}?model=any", None),
        (RESUME.format(mark_of(2)), 2),
        (RESUME.format(mark_of(16)), 16),
        (f"{wire.REALTIME_PATH}?after=event_1_2&resume=3%2Esecret", 3),
        ("http://here" + RESUME.format(mark_of(2)), 2),
        (RESUME.format(""), None),
        (RESUME.format("-2."), None),
        (RESUME.format("99999999."), None),
        ("/v1/realtime%2F", FIRST),
        ("/metrics", FIRST),
        ("/", FIRST),
        ("*", FIRST),
        ("http://[/", None),
    ],
)
def test_a_request_line_tells_whom_it_concerns(target: str, number: int | None) -> None:
    assert owner(f"GET {target} HTTP/1.1\r".encode()) == number


@pytest.mark.parametrize("line", [b"", b"\r", b"GET /metrics", b"GET /\xff HTTP/1.1", b"\x16\x03\x01"])
def test_what_is_no_request_line_concerns_whoever_has_it(line: bytes) -> None:
    assert owner(line) is None


@contextlib.asynccontextmanager
async def gateway(cell: Path, number: int) -> AsyncIterator[tuple[Any, ...]]:
    """The address of one that answers each request with its own number."""

    async def answer(_: Request) -> PlainTextResponse:
        return PlainTextResponse(f"gateway {number}")

    with socket.create_server(("127.0.0.1", 0)) as listener, Handover(cell, number) as handover:
        app = Starlette(routes=[Route("/{any:path}", answer)])
        http: Any = partial(Sorted, handover=handover)
        server = _Server(uvicorn.Config(app, http=http, lifespan="off", log_config=None))
        handover.receive(server.adopt)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield listener.getsockname()
        finally:
            server.should_exit = True
            await serving


async def asked(address: tuple[Any, ...], *targets: str, cut: int = 0) -> list[str]:
    """What is answered to requests that follow each other on one connection; "" when it ends."""
    reader, writer = await asyncio.open_connection(*address)
    answers = []
    for target in targets:
        request = f"GET {target} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
        for piece in (request[:cut], request[cut:]):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01 if cut else 0)  # a packet of its own
        try:
            await reader.readuntil(b"\r\n\r\n")
            answers.append((await reader.readexactly(len("gateway 1"))).decode())
        except (asyncio.IncompleteReadError, ConnectionError):
            answers.append("")
    writer.close()
    return answers


@pytest.mark.parametrize("cut", [0, 1, 20, 60])
def test_a_connection_is_answered_by_whom_it_concerns(tmp_path: Path, cut: int) -> None:
    async def scene() -> None:
        async with gateway(tmp_path, FIRST) as first, gateway(tmp_path, SECOND) as second:
            for address in (first, second):
                for number in (FIRST, SECOND):
                    target = RESUME.format(mark_of(number))
                    assert await asked(address, target, cut=cut) == [f"gateway {number}"]
            assert await asked(second, "/metrics", "/health", cut=cut) == ["gateway 1", "gateway 1"]
            assert await asked(second, wire.REALTIME_PATH, "/health", cut=cut) == ["gateway 2", "gateway 1"]
            assert await asked(first, "/health", RESUME.format(mark_of(2)), cut=cut) == [
                "gateway 1",
                "gateway 2",
            ]

    asyncio.run(scene())


def test_what_concerns_a_gateway_that_is_gone_is_answered_where_it_came(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway(tmp_path, FIRST) as first:
            assert await asked(first, RESUME.format(mark_of(2))) == ["gateway 1"]

    asyncio.run(scene())


def test_numbers_are_nobody_elses_to_tell_when_the_first_gateway_is_gone(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway(tmp_path, SECOND) as second:
            assert await asked(second, "/metrics") == [""]

    asyncio.run(scene())


def test_a_gateway_of_the_same_number_takes_the_place_of_one_that_was_killed(tmp_path: Path) -> None:
    async def scene() -> None:
        killed = Handover(tmp_path, SECOND)
        killed.__enter__()
        killed._listener.close()  # and its place is still there
        async with gateway(tmp_path, FIRST) as first, gateway(tmp_path, SECOND):
            assert await asked(first, RESUME.format(mark_of(2))) == ["gateway 2"]

    asyncio.run(scene())


def test_many_connections_at_once_all_arrive(tmp_path: Path) -> None:
    async def scene() -> None:
        async with gateway(tmp_path, FIRST), gateway(tmp_path, SECOND) as second:
            answers = await asyncio.gather(*(asked(second, "/metrics") for _ in range(200)))
            assert answers == [["gateway 1"]] * 200

    asyncio.run(scene())
