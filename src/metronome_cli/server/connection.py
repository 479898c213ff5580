"""A caller's connection as uvicorn keeps it, with a short way for text, and less three faults.

Knows:   uvicorn's WebSocket protocol, where it blames the application for what others did, and what the frame
         of a whole text looks like.
Ignores: events, sessions, what is said.

A packet of 20 ms comes as a whole text in one frame. Parsed by `websockets`, put into a queue, awaited
there, its connection paused and resumed, it costs five times as much as what is done with it. Such a frame is
unmasked here and given to who listens, in the moment in which it comes. All other frames go their usual way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.websockets import WebSocket
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiler where it was built
    from websockets.utils import apply_mask

Take = Callable[[str], bool]

_EXTENSION = "metronome.text"
_WHOLE_TEXT = 0x81  # first byte of a frame: text, the last of its message, nothing reserved
_TURN = 16  # frames of one connection that are taken before others have their turn
_MASKED = 0x80  # in the second


@contextmanager
def listening(socket: WebSocket, take: Take) -> Iterator[None]:
    """In this block `take` is called with each text as it comes; what it returns False for waits in `socket`.

    It is not called while anything waits there: the order stays.
    """
    connection: Connection = socket.scope["extensions"][_EXTENSION]["connection"]
    connection.take = take
    try:
        yield
    finally:
        connection.take = None


def span(data: bytes, at: int) -> tuple[int, int] | None:
    """Where the payload of the masked frame at `at` starts and ends; None while its header is not whole."""
    start, size = at + 6, 0
    if len(data) < start:
        return None
    length = data[at + 1] & 0x7F
    if length > 125:
        size = 2 if length == 126 else 8
        length = int.from_bytes(data[at + 2 : at + 2 + size], "big")
    start += size
    return (start, start + length) if len(data) >= start else None


class Connection(WebSocketsSansIOProtocol):
    """Give it to uvicorn as `ws`."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.take: Take | None = None
        self._most = self.config.ws_max_size
        self._begun = b""  # a frame of which not even the header is whole
        self._missing = 0  # bytes of a frame whose first part `websockets` has
        self._later = b""  # what came with it and waits for its turn

    def data_received(self, data: bytes) -> None:
        if self._later:
            self._later += data
            return
        if self._missing:
            rest, data = data[: self._missing], data[self._missing :]
            self._missing -= len(rest)
            super().data_received(rest)
        if self._begun:
            data, self._begun = self._begun + data, b""
        at = 0
        for _ in range(_TURN):
            if at >= len(data):
                return
            at = self._frame(data, at)
        if at < len(data):
            self._later = data[at:]
            self.transport.pause_reading()
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        data, self._later = self._later, b""
        self.data_received(data)
        if not self._later and not self.read_paused:
            self.transport.resume_reading()

    def _frame(self, data: bytes, at: int) -> int:
        """Take one frame, or what there is of it; where the next begins."""
        if self.conn.state is not State.OPEN or (at + 1 < len(data) and data[at + 1] < _MASKED):
            if not self.transport.is_closing():
                super().data_received(data[at:])  # a handshake, what follows a goodbye, or an error
            return len(data)
        found = span(data, at)
        if found is None:
            self._begun = data[at:]
            return len(data)
        start, end = found
        whole = data[at] == _WHOLE_TEXT and end <= len(data) and end - start <= self._most
        if not (whole and self._taken(data[start - 4 : start], data[start:end])):
            self._missing = max(0, end - len(data))
            super().data_received(data[at:end])
        return end

    def _taken(self, mask: bytes, payload: bytes) -> bool:
        """Whether somebody listens, nothing else is to come first, and it was taken."""
        if self.take is None or self.frames or self.close_sent or not self.queue.empty():
            return False
        try:
            text = apply_mask(payload, mask).decode()
        except UnicodeDecodeError:
            return False
        return self.take(text)

    async def run_asgi(self) -> None:
        self.scope["extensions"][_EXTENSION] = {"connection": self}
        try:
            await super().run_asgi()
        finally:
            # A connection that holds itself would wait for the garbage collector, with all that came over it.
            del self.scope["extensions"][_EXTENSION]

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn says 1005 of a connection that broke off: the same as of a goodbye that gives no code.
        self.handshake_complete = False
        self._later = b""
        super().connection_lost(exc)
        self.conn.parser.close()  # it waits for the rest of a frame, and holds the protocol that holds it

    async def send(self, message: Any) -> None:
        # A caller who vanished, a broken frame or a ping without answer has closed the connection, and the
        # application hears of it a moment later. What it sends until then would be written all the same, with
        # a warning each, or fail as if the application had closed it: RuntimeError and traceback.
        if self.transport.is_closing():
            raise ClientDisconnected
        await super().send(message)
        # A refusal that was sent is a whole handshake. uvicorn forgets to say so, and then writes that the
        # application "returned without completing handshake", once per refused call.
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
