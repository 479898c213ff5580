"""A connection fed bytes by hand, so that every cut of them can be tried."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from starlette.websockets import WebSocket
from uvicorn.server import ServerState
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from metronome_cli.server.connection import Connection, listening, span

MOST = 300_000
SIZES = (0, 1, 5, 125, 126, 127, 1348, 65_535, 65_536, 200_000)


class Pipe(asyncio.Transport):
    """A transport that remembers what was written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Line:
    """A connection after its handshake; `heard` is what the application got, in order."""

    def __init__(self, takes: Callable[[str], bool]) -> None:
        self.heard: list[str | bytes] = []
        self._takes = takes
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            ws_max_size=MOST,
            lifespan="off",
            log_config=None,
            log_level="critical",
        )
        config.load()
        self.pipe, self._client = Pipe(), ClientProtocol(parse_uri("ws://localhost/"))
        self.connection = Connection(config, ServerState(), {}, asyncio.get_running_loop())
        self.connection.connection_made(self.pipe)

    async def begin(self) -> None:
        self._client.send_request(self._client.connect())
        self.connection.data_received(b"".join(self._client.data_to_send()))
        await settle()
        self._client.receive_data(self.pipe.written)
        assert self._client.handshake_exc is None
        self.pipe.written = b""

    def feed(self, data: bytes) -> None:
        """As an event loop would: nothing while reading is paused or after the end."""
        if not self.pipe.closed:
            self.connection.data_received(data)

    def close_code(self) -> int | None:
        """With which code the server closed."""
        self._client.receive_data(self.pipe.written)
        self.pipe.written = b""
        return self._client.close_rcvd.code if self._client.close_rcvd else None

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        socket = WebSocket(scope, receive, send)
        await socket.accept()
        with listening(socket, self._take):
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                self.heard.append(message["bytes"] if "bytes" in message else message["text"])

    def _take(self, text: str) -> bool:
        if taken := self._takes(text):
            self.heard.append(text)
        return taken


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def scene(
    play: Callable[[Line], Coroutine[Any, Any, None]], takes: Callable[[str], bool] = lambda _: True
) -> None:
    async def play_it() -> None:
        line = Line(takes)
        await line.begin()
        await play(line)
        line.connection.connection_lost(None)
        await settle()

    asyncio.run(play_it())


def framed(data: bytes, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def conversation(draw: random.Random) -> tuple[list[str | bytes], bytes]:
    """What is said, and its bytes: texts of all sizes, one in pieces with a ping inside, one binary frame."""
    said: list[str | bytes] = []
    stream = b""
    for size in draw.sample(SIZES, len(SIZES)):
        said.append("é" * (size // 2) + "x" * (size % 2))
        stream += framed(str(said[-1]).encode())
        if draw.random() < 0.4:
            stream += framed(b"one ", fin=False) + framed(b"beat", Opcode.PING) + framed(b"two", Opcode.CONT)
            said.append("one two")
        if draw.random() < 0.4:
            stream += framed(b"\x00\xff", Opcode.BINARY)
            said.append(b"\x00\xff")
    return said, stream


@pytest.mark.parametrize("seed", range(12))
def test_what_is_said_does_not_depend_on_how_its_bytes_are_cut(seed: int) -> None:
    draw = random.Random(seed)
    said, stream = conversation(draw)

    async def play(line: Line) -> None:
        at = 0
        while at < len(stream):
            size = draw.choice((1, 2, 3, 5, 7, 100, 1_400, 70_000))
            line.feed(stream[at : at + size])
            at += size
            if draw.random() < 0.1:
                await settle()
        await settle()
        assert line.heard == said
        assert line.pipe.reading

    scene(play)


def test_what_a_listener_leaves_comes_later_and_in_order() -> None:
    draw = random.Random(1)
    texts = [str(number) for number in range(200)]

    async def play(line: Line) -> None:
        for text in texts:
            line.feed(framed(text.encode()))
            if draw.random() < 0.3:
                await settle()
        await settle()
        assert line.heard == texts

    scene(play, takes=lambda _: draw.random() < 0.7)


def test_one_callers_flood_is_taken_in_turns() -> None:
    texts = [str(number) for number in range(100)]

    async def play(line: Line) -> None:
        line.feed(b"".join(framed(text.encode()) for text in texts))
        assert 0 < len(line.heard) < 50
        assert not line.pipe.reading
        line.feed(framed(b"afterwards"))  # a loop may have it already
        await settle()
        assert line.heard == [*texts, "afterwards"]
        assert line.pipe.reading

    scene(play)


UNMASKED = Frame(Opcode.TEXT, b"{}").serialize(mask=False)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        pytest.param(UNMASKED, 1002, id="not masked"),
        pytest.param(framed(b"\xff{}"), 1007, id="not UTF-8"),
        pytest.param(framed(bytes(MOST + 1)), 1009, id="too large"),
        pytest.param(framed(b"{}", Opcode.CONT), 1002, id="goes on with nothing"),
        pytest.param(bytes([0xC1]) + framed(b"{}")[1:], 1002, id="reserved bit"),
        pytest.param(framed(b"1", fin=False) + framed(b"2"), 1002, id="text within a text"),
        pytest.param(framed(b"\x03\xe8", Opcode.CLOSE), 1000, id="goodbye"),
    ],
)
def test_a_broken_frame_ends_the_connection_with_its_code(bad: bytes, code: int) -> None:
    async def play(line: Line) -> None:
        line.feed(framed(b"before") + bad + framed(b"after"))
        await settle()
        assert line.heard == ["before"]
        assert line.close_code() == code
        assert line.pipe.closed

    scene(play)


@pytest.mark.parametrize("size", SIZES)
def test_a_frame_is_measured_as_soon_as_its_header_is_there(size: int) -> None:
    frame = framed(bytes(size))
    start = len(frame) - size
    assert [span(frame[:have], 0) for have in range(start)] == [None] * start
    assert span(frame[:start], 0) == (start, start + size)
    assert span(b"ab" + frame, 2) == (2 + start, 2 + start + size)
