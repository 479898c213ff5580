"""How far a model's weights are read: on one line of a terminal, and as signs of life to the gateways.

Knows:   bytes read and to be read, how often a glance is worth a line, and a gateway a sign.
Ignores: who reads them. Where the stream is no terminal it writes nothing.
"""

from __future__ import annotations

from typing import TextIO

import zmq

from ..clock import Clock
from . import messages

_EVERY_S = 0.2
_SIGN_S = 1.0  # from one sign to the next, at least
_HELLO = messages.pack(messages.Hello(messages.PROTOCOL))
_WIDTH = 30  # characters of the bar


class Bar:
    """A bar on `stream`, drawn over itself and wiped when all is read."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._is_watched = stream.isatty()
        self._next = clock.now() + _EVERY_S  # what is read sooner needs no bar

    def show(self, done: int, total: int) -> None:
        """So many bytes are read of all."""
        now = self._clock.now()
        if not self._is_watched or (now < self._next and done < total):
            return
        self._next = now + _EVERY_S
        share = done / total
        filled = round(share * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        line = f"reading weights [{bar}] {share:4.0%} of {total / 1e9:.1f} GB"
        self._stream.write("\r" + (line if done < total else " " * len(line) + "\r"))
        self._stream.flush()


class Signs:
    """Tells every gateway that has said hello that the load gets on.

    Call it where the socket is used. `taken`: what was said meanwhile, gateway first, for whoever reads next.
    """

    def __init__(self, socket: zmq.Socket[bytes], clock: Clock) -> None:
        self.taken: list[list[bytes]] = []
        self._socket = socket
        self._clock = clock
        self._next = clock.now()

    def give(self) -> None:
        """Something more is read."""
        if self._clock.now() < self._next:
            return
        self._next = self._clock.now() + _SIGN_S
        while self._socket.poll(0):
            self.taken.append(self._socket.recv_multipart())
        sign = messages.pack(messages.Loading())
        for gateway in {gateway for gateway, *parts in self.taken if _HELLO in parts}:
            self._socket.send_multipart([gateway, sign], zmq.NOBLOCK)
