"""What is no call at all: HTTP requests of all sorts, and WebSocket frames that no client may send.

Knows:   sockets, and the bytes of requests and frames.
Ignores: events (mutate.py), what comes of a call (witness.py).
"""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from .watched import Watched

AT_A_TIME = 16
PATIENCE_S = 10.0
PATHS = (
    "/", "/health", "/metrics", "/capacity", "/v1/models", "/v1/realtime", "/v1/realtime/", "//", "/%", "*",
    "/\u00e9", "/v1/../health", "/v1/realtime?resume=x", "/v1/realtime?resume=&after=event_1_1", "/health#x",
    "/v1/realtime?resume=%00%ff", "/health?" + "a" * 3000, "http://127.0.0.1/health",
    "/v1/realtime?resume=x&resume=y",
)  # fmt: skip
METHODS = ("GET", "GET", "GET", "POST", "HEAD", "PUT", "OPTIONS", "CONNECT", "get", "G\u00cbT", "", "PRI")
VERSIONS = ("HTTP/1.1", "HTTP/1.1", "HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/9", "", "ICY")
HEADERS = (
    "Host: 127.0.0.1", "Host: evil.example", "Host:", "Connection: Upgrade", "Upgrade: websocket",
    "Upgrade: h2c", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Version: 8", "Sec-WebSocket-Version: x",
    "Sec-WebSocket-Key: x", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Extensions: permessage-deflate; x=" + "y" * 99,
    "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.x", "Content-Length: 5", "Content-Length: -1",
    "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked", "Expect: 100-continue",
    "Origin: null", "Origin: https://evil.example", "Authorization: Bearer", "Authorization: Basic \u00ff",
    "Accept: */*;q=x", "Range: bytes=0-", "Cookie: " + "c=1; " * 200, "X: " + "a" * 20_000, ": nameless",
    "No colon", " folded: yes", "X\x00Y: z", "Accept: application/openmetrics-text; version=1.0.0",
    "Connection: keep-alive, close",
)  # fmt: skip
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


async def requests(server: Watched, seed: int, count: int) -> dict[str, Any]:
    """Requests, each on a connection of its own; every answer must be one of HTTP, and none a 5xx of ours."""
    answers: Counter[str] = Counter()
    faults: list[str] = []

    async def one(number: int) -> None:
        sent = request(random.Random(f"http {seed} {number}"))
        line = Line(server)
        await line.open(sent)
        line.finish()
        if not await line.ended():
            faults.append(f"request {number}: the connection stayed open after {sent[:200]!r}")
        said, status = line.said, _STATUS.match(line.said)
        answers[status[1].decode() if status else "closed" if not said else "no HTTP"] += 1
        if (said and not status) or (status and status[1] in (b"500", b"101")):
            faults.append(f"request {number}: {said[:120]!r} to {sent[:200]!r}")

    await _all(one, count)
    return {"count": count, "answers": dict(answers), "faults": faults}


def request(draw: random.Random) -> bytes:
    """A request, more or less."""
    if draw.random() < 0.1:
        return draw.randbytes(draw.randint(0, 3000))
    lines = [f"{draw.choice(METHODS)} {draw.choice(PATHS)} {draw.choice(VERSIONS)}"]
    lines += draw.choices(HEADERS, k=draw.randint(0, 9))
    if draw.random() < 0.4:
        lines += ["Host: x", *HEADERS[3:5], HEADERS[6], HEADERS[10]]
    end = draw.choice(("\r\n", "\r\n", "\r\n", "\n", "\r"))
    whole = (
        end.join(lines).encode("latin-1") + end.encode() * 2 + draw.choice((b"", b"hello", b"5\r\nhello\r\n"))
    )
    return whole[: draw.randint(0, len(whole))] if draw.random() < 0.1 else whole


# ---- Frames ------------------------------------------------------------------------------------


def _frame(first: int, payload: bytes, *, masked: bool = True, length: int | None = None) -> bytes:
    """One frame by its first byte; `length` may lie."""
    size = len(payload) if length is None else length
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes([first, bit | size])
    elif size < 65_536:
        head = bytes([first, bit | 126]) + size.to_bytes(2, "big")
    else:
        head = bytes([first, bit | 127]) + size.to_bytes(8, "big")
    return head + (bytes(4) if masked else b"") + payload


CLEAR = b'{"type":"input_audio_buffer.clear"}'
FORBIDDEN: dict[str, Callable[[random.Random], bytes]] = {
    "not masked": lambda _: _frame(0x81, CLEAR, masked=False),
    "a reserved bit": lambda draw: _frame(0x81 | draw.choice((0x40, 0x20, 0x10)), CLEAR),
    "an unknown opcode": lambda draw: _frame(0x80 | draw.choice((3, 7, 11, 15)), b"x"),
    "no UTF-8": lambda draw: _frame(0x81, draw.choice((b"\xff", b'{"type":"\xc3"}', b"\xed\xa0\x80"))),
    "a long ping": lambda _: _frame(0x89, bytes(126)),
    "a ping in parts": lambda _: _frame(0x09, b"x"),
    "nothing to continue": lambda _: _frame(0x80, CLEAR),
    "a text within a text": lambda _: _frame(0x01, CLEAR[:9]) + _frame(0x81, CLEAR),
    "too large": lambda _: _frame(0x81, b"x" * 300_000),
    "endless by its length": lambda _: _frame(0x81, b"x" * 99, length=2**63 - 1),
    "a negative length": lambda _: _frame(0x81, b"x" * 99, length=2**64 - 1),
    "a close of one byte": lambda _: _frame(0x88, b"x"),
    "a close code that is none": lambda _: _frame(0x88, (999).to_bytes(2, "big")),
    "a close reason of no UTF-8": lambda _: _frame(0x88, b"\x03\xe8\xff"),
}
_PARTS = (
    _frame(0x01, CLEAR[:9]) + _frame(0x00, CLEAR[9:20]) + _frame(0x89, b"ping") + _frame(0x80, CLEAR[20:])
)
_PARTS = _PARTS + _frame(0x81, CLEAR)
_CLEARED = b"input_audio_buffer.cleared"
_CUT = 7  # bytes: frames come in such small pieces that every header is cut somewhere


async def frames(server: Watched, seed: int, count: int) -> dict[str, Any]:
    """Connections that send some good events, whole and in parts, and then what no client may send.

    The good ones must be answered, and the server must then end the connection.
    """
    faults: list[str] = []

    async def one(number: int) -> None:
        draw = random.Random(f"frames {seed} {number}")
        name, good = draw.choice(list(FORBIDDEN)), draw.randint(0, 3)
        line = Line(server)
        await line.open(_upgrade(draw), b"session.created")
        await line.send(_PARTS * good, cut=draw.choice((_CUT, 1000)))
        if not await line.answered(_CLEARED, 2 * good):
            faults.append(f"frames {number}: not all of {good} good ones were answered")
        await line.send(FORBIDDEN[name](draw), cut=100_000)
        if not await line.ended():
            faults.append(f"frames {number}: the connection stayed open after {name!r}")

    await _all(one, count)
    return {"count": count, "faults": faults}


def _upgrade(draw: random.Random) -> bytes:
    key = base64.b64encode(draw.randbytes(16)).decode()
    return (
        "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    ).encode()


# ---- Connections -------------------------------------------------------------------------------


async def _all(one: Callable[[int], Awaitable[None]], count: int) -> None:
    waiting = iter(range(count))

    async def place() -> None:
        for number in waiting:
            await one(number)

    await asyncio.gather(*(place() for _ in range(AT_A_TIME)))


class Line:
    """A TCP connection to a server, and what was said over it. Every wait is bounded."""

    def __init__(self, server: Watched) -> None:
        parts = urlsplit(server.url)
        self._place = parts.hostname, parts.port
        self.said = b""

    async def open(self, first: bytes, answer: bytes = b"") -> None:
        """Send what is first, and wait for an answer that holds this."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)
        self._writer.write(first)
        await self.answered(answer, 1)

    async def send(self, data: bytes, cut: int) -> None:
        """`data` in pieces of so many bytes, which may come apart."""
        for at in range(0, len(data), cut):
            self._writer.write(data[at : at + cut])
            await asyncio.sleep(0)

    async def answered(self, text: bytes, times: int) -> bool:
        """Whether `text` comes so often, those that came before included."""
        with suppress(TimeoutError):
            while self.said.count(text) < times:
                if not await self._more():
                    return False
            return True
        return False

    async def ended(self) -> bool:
        """Whether the other side ends the connection; after that it is gone in any case."""
        try:
            while await self._more():
                pass
        except TimeoutError:
            return False
        finally:
            self._writer.transport.abort()
        return True

    async def _more(self) -> bool:
        """Whether more was said; False at the end of the connection. TimeoutError after PATIENCE_S."""
        try:
            data = await asyncio.wait_for(self._reader.read(65_536), PATIENCE_S)
        except ConnectionError:  # we sent on while it was ended
            data = b""
        self.said += data
        return bool(data)

    def finish(self) -> None:
        """Say that nothing more will come."""
        with suppress(OSError):
            self._writer.write_eof()
