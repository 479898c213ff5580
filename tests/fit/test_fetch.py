"""A page over HTTP from servers that send what they like, when they like."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from urllib.parse import urlsplit

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import TargetUnreachable
from metronome_cli.fit.fetch import MOST_BYTES, fetch

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


class Server(VirtualClock):
    """A server that sends a piece whenever its client looks at the clock, which goes on by `apart_s`."""

    def __init__(self, pieces: Iterable[bytes], apart_s: float) -> None:
        super().__init__(500.0)
        self._pieces = iter(pieces)
        self._apart_s = apart_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._line: socket.socket | None = None
        self._looks = 0
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/metrics"

    def now(self) -> float:
        self._looks += 1
        if self._looks > 1:  # first it is asked before there is a connection
            self._send()
            self.advance(self._apart_s)
        return super().now()

    def _send(self) -> None:
        if self._line is None:
            self._line, _ = self._listener.accept()
        if (piece := next(self._pieces, None)) is not None:
            self._line.sendall(piece)
        else:
            self._line.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listener.close()
        if self._line is not None:
            self._line.close()


def page(pieces: Iterable[bytes], apart_s: float = 0.0) -> str:
    server = Server(pieces, apart_s)
    try:
        return fetch(urlsplit(server.url), server.url, server)
    finally:
        server.close()


def refusal(pieces: Iterable[bytes], apart_s: float = 0.0) -> str:
    with pytest.raises(TargetUnreachable, match=r"http://127\.0\.0\.1:\d+/metrics: no metrics page") as found:
        page(pieces, apart_s)
    return str(found.value)


def bytewise(start: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    """`start` at once, then one byte after another."""
    return chain([start] if start else [], (bytes([byte]) for piece in rest for byte in piece))


def test_a_page_in_pieces_is_put_together() -> None:
    assert page([OK, b"Content-Length: 6\r\n", b"\r\n", b"abc", b"def"], 1.0) == "abcdef"
    assert page([CHUNKED, b"3\r\nabc\r\n", b"3\r\ndef\r\n0\r\n\r\n"], 1.0) == "abcdef"
    assert page([OK + b"\r\n", b"abc", b"def"], 1.0) == "abcdef"  # to the end of the connection


@pytest.mark.parametrize(
    ("start", "rest"),
    [
        (b"", repeat(b"HTTP/1.1 200 OK and so on")),
        (OK, repeat(b"X-Header: a long one")),
        (b"", repeat(b"HTTP/1.1 100 Continue\r\n\r\n")),
        (CHUNKED, repeat(b"0000000000000000000000")),
        (CHUNKED, repeat(b"1\r\na\r\n")),
        (OK + b"Content-Length: 1000\r\n\r\n", repeat(b"metronome_sessions 1\n")),
    ],
)
def test_whatever_trickles_has_one_deadline(start: bytes, rest: Iterable[bytes]) -> None:
    assert "(it takes more than 10 s)" in refusal(bytewise(start, rest), apart_s=1.0)


def test_a_last_wait_is_cut_by_the_deadline_and_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metronome_cli.fit.fetch._QUIET_S", 0.01)
    assert "(nothing came for 0.01 s)" in refusal([OK, b""])
    assert "(it takes more than 10 s)" in refusal([OK, b""], apart_s=9.995)


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 300),
        (CHUNKED, (b"400\r\n" + b"a" * 1024 + b"\r\n") * 7),
        (OK + b"\r\n", b"#" * 8000),
    ],
)
def test_whatever_comes_without_end_has_one_bound(start: bytes, piece: bytes) -> None:
    assert len(piece) <= 8192  # what is read at once: the connection never fills up
    assert f"(more than {MOST_BYTES >> 20} MiB)" in refusal(chain([start] if start else [], repeat(piece)))


@pytest.mark.parametrize(
    "sent",
    [
        OK + b"Content-Length: 1000000000000000000\r\n\r\nabc",
        CHUNKED + b"FFFFFFFFFFFFFFF\r\nabc",
    ],
)
def test_a_page_that_ends_before_the_size_it_names_is_refused_and_takes_no_memory(sent: bytes) -> None:
    refusal([sent])
