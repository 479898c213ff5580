"""One page over HTTP, whole within one deadline and in bounded bytes, whatever the server sends and when.

Knows:   HTTP and TLS, and the clock by which a page is late.
Ignores: what stands on a page (pages.py), and how often it is asked for (live.py).
"""

from __future__ import annotations

import io
import socket
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, cast
from urllib.parse import SplitResult

from ..clock import Clock
from ..errors import TargetUnreachable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MOST_BYTES = 4 * 2**20  # status line, headers and all
LONGEST_S = 10.0  # for all of it
_QUIET_S = 5.0  # for a connection, and between two pieces
_CHUNK = 2**16


def fetch(parts: SplitResult, shown: str, clock: Clock) -> str:
    """The page at an address, /metrics where it has no path. TargetUnreachable names `shown` and says why."""
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    latest = clock.now() + LONGEST_S
    line = kind(parts.hostname or "", parts.port, timeout=_QUIET_S)
    try:
        query = f"?{parts.query}" if parts.query else ""
        line.request("GET", (parts.path or "/metrics") + query, headers={"Accept": "text/plain"})
        answer = HTTPResponse(cast("socket.socket", _Incoming(line.sock, clock, latest)), method="GET")
        answer.begin()
        if answer.status != 200:
            raise TargetUnreachable(f"{shown} answers {answer.status}: expected a metrics page")
        return _body(answer).decode()
    except (OSError, HTTPException, UnicodeError) as error:
        why = str(error) or type(error).__name__
        raise TargetUnreachable(f"{shown}: no metrics page ({why})") from None
    finally:
        line.close()


def _body(answer: HTTPResponse) -> bytes:
    """The whole body, piece by piece: read at once it would take the memory that a header asks for."""
    body = b"".join(iter(lambda: answer.read1(_CHUNK), b""))
    if answer.length:
        raise HTTPException(f"it ends {answer.length} bytes early")
    return body


class _Incoming(io.RawIOBase):
    """What a server sends, and what http.client takes for its connection: it only asks for a file of it.

    A timeout of the socket would count anew for every byte.
    """

    def __init__(self, line: socket.socket, clock: Clock, latest: float) -> None:
        self._line = line
        self._clock = clock
        self._latest = latest
        self._bytes = 0

    def makefile(self, _: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, into: WriteableBuffer, /) -> int:
        """OSError when the page is late or too long."""
        late = TimeoutError(f"it takes more than {LONGEST_S:g} s")
        if (left := self._latest - self._clock.now()) <= 0:
            raise late
        self._line.settimeout(min(left, _QUIET_S))
        try:
            count = self._line.recv_into(into)
        except TimeoutError:
            raise late if left < _QUIET_S else TimeoutError(f"nothing came for {_QUIET_S:g} s") from None
        self._bytes += count
        if self._bytes > MOST_BYTES:
            raise OSError(f"more than {MOST_BYTES >> 20} MiB")
        return count
