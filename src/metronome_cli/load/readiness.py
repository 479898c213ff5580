"""Whether a server takes calls yet, asked before the first one dials.

Knows:   /health of our own servers, which others have too, and for how long one is patient.
Ignores: WebSockets, calls, who shows the user why it waits.

Only an address where nobody listens yet and an HTTP 503 are waited for. Whatever else answers is there, and
dialling it says the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import msgspec

from ..clock import Clock
from ..errors import TargetUnreachable
from ..report import without_login
from ..wire import HEALTH_PATH, REALTIME_PATH
from .targets import endpoint

_EVERY_S = 0.5
_ANSWER_S = 5.0
_DEAD = "engine_dead"  # what our own servers say when there will be no engine any more
_LONGEST = 65_536  # bytes of an answer that are read


class _Health(msgspec.Struct):
    status: str


def await_ready(url: str, patience_s: float, clock: Clock, tell: Callable[[str], None]) -> None:
    """Return once a server at `url` takes calls. `tell` hears why it waits, whenever that changes.

    TargetUnreachable when that is not so after `patience_s` seconds.
    """
    address, until, told = endpoint(url), clock.now() + patience_s, ""
    shown = without_login(address)
    while why := missing(address):
        if why != told:
            tell(f"waiting up to {patience_s:g} s for {shown}: {why}")
            told = why
        if clock.now() >= until:
            cure = "see that `metronome serve` runs there and gets ready, or be more patient (--wait)"
            if why.endswith(_DEAD):
                cure = "its engine is not started again: start the server anew"
            raise TargetUnreachable(f"cannot call {shown}: {why}, after {patience_s:g} s still; {cure}")
        clock.wait_until(min(until, clock.now() + _EVERY_S))


def missing(address: str) -> str:
    """What a server at a WebSocket `address` lacks to take calls, in words; nothing when one answers."""
    try:
        status, body = _ask(address)
    except ConnectionError as error:
        return error.strerror or "the connection was closed"
    except TimeoutError:
        return f"no answer within {_ANSWER_S:g} s"
    except (OSError, HTTPException, ValueError):  # no such name, no HTTP: dialling says it in plain words
        return ""
    if status != 503:
        return ""
    try:
        return f"the server says {msgspec.json.decode(body, type=_Health).status}"
    except (msgspec.DecodeError, UnicodeError):
        return "the server says HTTP 503"


def _ask(address: str) -> tuple[int, bytes]:
    """Status and body of the health page beside a WebSocket address."""
    parts = urlsplit(address)
    connect = HTTPSConnection if parts.scheme == "wss" else HTTPConnection
    line = connect(parts.hostname or "", parts.port, timeout=_ANSWER_S)
    above = parts.path.removesuffix(REALTIME_PATH)
    try:
        line.request("GET", (above if above != parts.path else "") + HEALTH_PATH)
        answer = line.getresponse()
        return answer.status, answer.read(_LONGEST)
    finally:
        line.close()
