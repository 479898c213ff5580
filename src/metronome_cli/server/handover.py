"""Several gateways on one port: a connection that concerns another one is handed over to it, socket and all.

Knows:   which gateway a request concerns by its first line, and how a process gives a socket to another.
Ignores: what is answered, who may ask, how many gateways there are.

The kernel shares new connections out among the gateways by their ports. A new call may stay wherever it
came. One that is taken up again belongs to the gateway that holds it, which its token names; pages of
numbers are the first gateway's, who knows everybody's. Nothing was answered yet, so the other goes on as if
the connection had come to it in the first place: there is no hop that would stay.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import h11

from .. import wire
from .opening import Opening

FIRST = 1  # the number of the gateway that was started by hand; the others count on from there
_BACKLOG = 2048
_LONGEST_LINE = 16_384  # bytes of a request's first line; h11 takes no more either
_MOST_BEGUN = 262_144  # bytes; a packet between processes may not even have so many
_PAUSE_S = 1.0  # before another try where the system has no files left

_log = logging.getLogger(__name__)

Adopt = Callable[[socket.socket, bytes], None]


def mark_of(number: int) -> str:
    """What the tokens of a gateway's calls begin with."""
    return f"{number}."


def owner(line: bytes) -> int | None:
    """Whom a request with this first line concerns; None: whoever has it."""
    try:
        _, target, _ = line.decode("ascii").split(" ", 2)
        parts = urlsplit(target)
    except ValueError:
        return None
    if unquote(parts.path) != wire.REALTIME_PATH:
        return FIRST
    number, dot, _ = parse_qs(parts.query).get("resume", [""])[-1].partition(".")
    return int(number) if dot and number.isdecimal() and len(number) < 3 else None


class Handover:
    """One gateway's place where others give it connections. Use it as `with`.

    `cell` is a folder that nobody else may enter; every gateway of a server has a socket there.
    """

    def __init__(self, cell: Path, number: int) -> None:
        self.number = number
        self._cell = cell
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Handover:
        path = self._place(self.number)
        path.unlink(missing_ok=True)  # of a gateway of this number that was killed
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        self._place(self.number).unlink(missing_ok=True)

    def receive(self, adopt: Adopt) -> None:
        """From now on call `adopt` with every connection that is given to us, and what was read from it."""
        self._loop.add_reader(self._listener, self._accept, adopt)

    def give(self, number: int, given: int, begun: bytes) -> bool:
        """Give the connection with file number `given` to another gateway; False when it is not there."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
            line.setblocking(False)
            try:
                line.connect(str(self._place(number)))
                socket.send_fds(line, [begun], [given])
            except OSError:
                return False
        return True

    def _place(self, number: int) -> Path:
        return self._cell / f"gateway-{number}"

    def _accept(self, adopt: Adopt) -> None:
        try:
            line, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE_S, self._go_on, adopt)
            return
        line.setblocking(False)
        self._loop.add_reader(line, self._take, line, adopt)

    def _go_on(self, adopt: Adopt) -> None:
        if self._listener.fileno() >= 0:
            self.receive(adopt)

    def _take(self, line: socket.socket, adopt: Adopt) -> None:
        self._loop.remove_reader(line)
        with line:
            try:
                begun, files, *_ = socket.recv_fds(line, _MOST_BEGUN, 1)
            except OSError as error:
                _log.error("a connection that another gateway gave is lost: %s", error)
                return
        if files:  # else nothing was given after all
            adopt(socket.socket(fileno=files[0]), begun)


class Sorted(Opening):
    """A connection that stays only if it concerns this gateway. Give it to uvicorn as `http`.

    `begun` is what another gateway had read of one that it gave.
    """

    def __init__(self, *arguments: Any, handover: Handover, begun: bytes = b"", **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handover = handover
        self._begun = begun  # of a request, before its first line is whole
        self._stays = False  # the request that is on its way

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._begun:  # before anything else can be read
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        if not self._stays and self.conn.their_state is h11.IDLE:
            data, self._begun = self._begun + data, b""
            line, whole, _ = data.partition(b"\n")
            if not whole and len(data) <= _LONGEST_LINE:
                self._begun = data
                return
            if self._is_gone(line, data):
                return
        super().data_received(data)
        self._stays = self.conn.their_state is h11.IDLE  # until its head is whole

    def _is_gone(self, line: bytes, begun: bytes) -> bool:
        """Whether the connection is not ours any more."""
        number = owner(line)
        if number in (None, self._handover.number):
            return False
        file = self.transport.get_extra_info("socket").fileno()
        if not self._handover.give(number, file, begun) and number != FIRST:
            return False  # its gateway died, and the call with it: as anybody we can say so
        self.transport.abort()
        return True
