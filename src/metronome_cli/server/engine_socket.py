"""One gateway's socket to one life of the engine process.

Knows:   zmq, and how what is said goes out in few messages and comes in one by one.
Ignores: what is said, who runs the process, and whether it lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq

from . import messages

_GATHER_S = 0.002  # that audio waits for other calls' audio

_log = logging.getLogger(__name__)


class EngineSocket:
    """`heed` is called with each message of the engine. Connect it first, and once."""

    def __init__(self, heed: Callable[[messages.ToGateway], None]) -> None:
        self._heed = heed
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[bytes] = []
        self._later: asyncio.Handle | None = None  # when they leave,
        self._soon: asyncio.Handle | None = None  # or, with something urgent among them, much earlier

    def connect(self, address: str) -> None:
        """Say hello to the engine that binds `address`, or will soon."""
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        # What may be on the way is bounded per session (see messages.py), so that one caller's
        # flood cannot take the room of another's audio.
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.connect(address)
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self.post(messages.Hello(messages.PROTOCOL))

    def post(self, message: messages.ToEngine) -> None:
        """Say something; nobody hears it when the process is dead. Audio waits a moment for more of it."""
        self._outgoing.append(messages.pack(message))
        if isinstance(message, messages.Audio):
            self._later = self._later or self._loop.call_later(_GATHER_S, self._send)
        else:
            self._soon = self._soon or self._loop.call_soon(self._send)

    def close(self) -> None:
        """Give back the socket."""
        self._call_off()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()

    def _send(self) -> None:
        """Let everything go that was said, as the parts of one message: each message wakes two threads."""
        self._call_off()
        parts, self._outgoing = self._outgoing, []
        self._socket.send_multipart(parts, zmq.NOBLOCK)
        # zmq tells of a message once, and a send may be what it tells it to: look for ourselves.
        self._drain()

    def _call_off(self) -> None:
        for handle in (self._soon, self._later):
            if handle:
                handle.cancel()
        self._soon = self._later = None

    def _drain(self) -> None:
        """Pass on every message that has come."""
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._heed(messages.to_gateway(data))
            except Exception:  # whatever it is, the other callers' messages must go on
                _log.exception("a message of the engine could not be passed on")
