"""A connection until its request is whole: uvicorn's HTTP protocol, less its endless patience.

Knows:   when a request was begun, and how long it may take.
Ignores: what is asked for, WebSockets.

uvicorn waits for ever for the rest of a request, and of a body, which no path of ours has a use for. Callers
that vanish in the middle of one, or never mean to end it, keep a file each, until nobody else can connect.
A head that is too long is h11's to end: at 16 KiB, and what else came with the packet that passed them.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class Opening(H11Protocol):
    """Give it to uvicorn as `http`. A request may take as long as a connection may lie idle between two."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        upgraded = self.transport.get_protocol() is not self
        if upgraded or self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._wait_no_more()
        elif self._patience is None and self.timeout_keep_alive_task is None:
            self._wait()  # for the rest of a request that is not the first

    def send_400_response(self, msg: str) -> None:
        """Say so, unless the answer was given before the body turned out bad."""
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the application still says is no answer any more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._patience = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._patience:
            self._patience.cancel()
        self._patience = None
