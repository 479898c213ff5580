"""A caller's connection as uvicorn keeps it, less three faults in how it speaks of an ordinary end.

Knows:   uvicorn's WebSocket protocol, and where it blames the application for what others did.
Ignores: events, sessions, what is said.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol


class Connection(WebSocketsSansIOProtocol):
    """Give it to uvicorn as `ws`."""

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn says 1005 of a connection that broke off: the same as of a goodbye that gives no code.
        self.handshake_complete = False
        super().connection_lost(exc)

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
