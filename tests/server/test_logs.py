"""Callers cannot flood the log, and what matters is still seen in it."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import os
import random
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from metronome_cli import wire
from metronome_cli.server.logs import QUIET_S, OncePerKind

from .running import PATIENCE_S, Server, call

Start = Callable[..., Server]

KEY = base64.b64encode(bytes(16)).decode()
UPGRADE = (
    f"GET {wire.REALTIME_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    f"Sec-WebSocket-Key: {KEY}\r\nSec-WebSocket-Version: 13\r\n\r\n"
).encode()
TICKS = b'{"type":"session.update","session":{"type":"realtime","metronome":{"ticks":true}}}'


def frame(opcode: int, contents: bytes) -> bytes:
    """A WebSocket frame under 126 bytes, masked with zeros."""
    return bytes([0x80 | opcode, 0x80 | len(contents)]) + bytes(4) + contents


# ---- The filter alone ----


@pytest.fixture
def page() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A logger whose lines, filtered, can be read."""
    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    handler.addFilter(OncePerKind())
    logger = logging.getLogger("tests.page")
    logger.addHandler(handler)
    logger.propagate = False
    yield logger, shown
    logger.removeHandler(handler)


def record(created: float, text: str = "a call of %s", *values: object) -> logging.LogRecord:
    found = logging.LogRecord("somewhere", logging.WARNING, __file__, 1, text, values, None)
    found.created = created
    return found


def test_a_kind_is_shown_once_and_then_with_the_count_of_what_was_left_out() -> None:
    once = OncePerKind()
    shown = [once.filter(record(100 + second / 10, "a call of %s", second)) for second in range(100)]
    assert shown == [True] + [False] * 99
    later = record(100 + QUIET_S, "a call of %s", "another")
    assert once.filter(later)
    assert later.getMessage() == "a call of another (99 more like it)"
    assert not once.filter(record(101 + QUIET_S))
    last = record(200, "a call of %s", 7)
    assert once.filter(last)
    assert last.getMessage() == "a call of 7 (1 more like it)"


def test_what_was_left_out_last_can_be_told_at_the_end() -> None:
    once = OncePerKind()
    for second in range(5):
        once.filter(record(100 + second, "a call of %s", second))
    once.filter(record(100, "once only"))
    assert once.rest() == ["a call of 4 (4 more like it)"]


def test_another_kind_is_shown_at_once() -> None:
    once = OncePerKind()
    assert [once.filter(record(100, text)) for text in ("one", "two", "one")] == [True, True, False]


def test_a_wall_clock_that_is_set_back_silences_nothing() -> None:
    once = OncePerKind()
    assert once.filter(record(1000))
    assert once.filter(record(500))


def test_kinds_without_end_cost_no_memory() -> None:
    once = OncePerKind()
    assert all(once.filter(record(100, f"caller {number} is gone")) for number in range(2000))
    assert len(once._kinds) < 500


def test_errors_raised_in_two_places_are_both_shown_with_their_tracebacks(
    page: tuple[logging.Logger, io.StringIO],
) -> None:
    logger, shown = page

    def first() -> None:
        raise ValueError("the first")

    def second() -> None:
        raise ValueError("the second")

    for fault in (first, first, second, first, second):
        try:
            fault()
        except ValueError:
            logger.exception("an error of the application")
    text = shown.getvalue()
    assert text.count("Traceback") == 2
    assert (text.count("ValueError: the first"), text.count("ValueError: the second")) == (1, 1)


def test_what_a_caller_sent_wrong_gets_no_traceback(page: tuple[logging.Logger, io.StringIO]) -> None:
    logger, shown = page
    try:
        b"\xff".decode()
    except UnicodeDecodeError:
        logger.exception("no UTF-8")
    assert shown.getvalue() == "no UTF-8\n"


# ---- A server and its callers ----


def vanish(server: Server, chance: random.Random) -> None:
    """Call, misbehave in one of many ways, and be gone; half the time without a goodbye."""
    port = int(server.url.rpartition(":")[2])
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), PATIENCE_S) as line:
        if chance.random() < 0.5:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        way = chance.randrange(8)
        if way < 3:
            line.sendall((b"", UPGRADE[:60], b"\x16\x03\x01 no HTTP\r\n\r\n")[way])
            return
        line.sendall(UPGRADE)
        if way == 3:
            return
        line.recv(1000)
        line.sendall(frame(1, TICKS))
        ends = (frame(1, b"\xff\xfe"), frame(3, b"no such kind"), frame(1, b"half")[:8], frame(1, TICKS) * 50)
        line.sendall(ends[way - 4])
        if chance.random() < 0.5:
            line.recv(1000)


async def be_refused(server: Server, times: int) -> None:
    for _ in range(times):
        with pytest.raises(InvalidStatus):
            async with connect(server.address, proxy=None):
                pass


def test_200_refused_and_200_vanished_callers_leave_a_few_lines_and_a_real_error_is_still_seen(
    start: Start,
) -> None:
    server = start(max_sessions=16, reaper_s=0.2)
    chance = random.Random(7)

    async def scene() -> None:
        for _ in range(200):
            await asyncio.to_thread(vanish, server, chance)
        async with asyncio.TaskGroup() as calls:
            full, over = asyncio.Barrier(17), asyncio.Event()
            for _ in range(16):
                calls.create_task(_hold(server, full, over))
            await full.wait()
            await be_refused(server, 200)
            over.set()

    asyncio.run(scene())
    os.kill(server.engine, signal.SIGKILL)
    _wait_for_the_end_of_the_engine(server)
    _, said = server.stop()
    assert "signal SIGKILL" in said
    assert "Traceback" not in said
    assert "without completing handshake" not in said
    assert "socket.send()" not in said
    assert re.search(r"Invalid HTTP request received\. \(\d+ more like it\)", said)
    assert said.count("\n") <= 8, said


async def _hold(server: Server, full: asyncio.Barrier, over: asyncio.Event) -> None:
    """Be one of the calls that fill the server, as soon as a vanished caller's place is free."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with call(server):
                    await full.wait()
                    await over.wait()
                    return
            except InvalidStatus:
                await asyncio.sleep(0.05)


def _wait_for_the_end_of_the_engine(server: Server) -> None:
    end = time.monotonic() + PATIENCE_S
    while server.health()[0] == 200 and time.monotonic() < end:
        time.sleep(0.02)
