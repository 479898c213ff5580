"""Where calls go: the address of a server, and what it says to somebody who dials.

Knows:   URLs, the WebSocket upgrade, and how a server turns a caller away.
Ignores: what is said once the line is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, InvalidURI, WebSocketException

from ..errors import ProfileError, TargetUnreachable
from ..report import without_login
from ..wire import REALTIME_PATH, Refusal
from .protocols import MOSHI_PATH

DEFAULT_URL = "http://127.0.0.1:8765"

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_OPEN_TIMEOUT_S = 30.0
_HANG_UP_TIMEOUT_S = 2.0
# A send never waits until this much is unread: an open loop must not slow down with the server.
_UNREAD_BYTES = 2**23


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """The server answered and said no, with its machine-readable reason."""

    reason: str
    retry_after_s: float | None = None  # when to come again; None: it does not say


def endpoint(url: str, protocol: str = "auto") -> str:
    """The WebSocket address that `url` stands for: http(s) or ws(s), the usual path when it names none."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        known = parts.scheme in _SCHEMES and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no port, a bracket without its other half
        known = None
    if not known:
        raise ProfileError("url", url, f"use an address such as {DEFAULT_URL} (http, https, ws or wss)")
    usual = MOSHI_PATH if protocol == "moshi" else REALTIME_PATH
    path = usual if parts.path in ("", "/") else parts.path
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, path, parts.query, ""))


class _Direct(connect):
    """Follows no redirect: the place that was named is measured, and nobody else is shown its key."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def dial(address: str, api_key: str = "") -> ClientConnection | TurnedAway:
    """Open a call at a WebSocket `address`. TargetUnreachable when nobody answers in our tongue."""
    try:
        return await _Direct(
            address,
            additional_headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
            open_timeout=_OPEN_TIMEOUT_S,
            close_timeout=_HANG_UP_TIMEOUT_S,
            write_limit=_UNREAD_BYTES,
            compression=None,  # base64 of sound hardly shrinks, and the CPU is ours
            proxy=None,  # the server is to be measured, not what stands before it
        )
    except InvalidStatus as error:
        return _answer(address, error)
    # UnicodeError: a name or a key that cannot be sent.
    except (TimeoutError, OSError, UnicodeError, WebSocketException, InvalidURI) as error:
        why = f"no answer within {_OPEN_TIMEOUT_S:g} s" if isinstance(error, TimeoutError) else _plain(error)
        raise TargetUnreachable(
            f"cannot call {without_login(address)}: {why}; is `metronome serve` running there?"
        ) from None


def _answer(address: str, error: InvalidStatus) -> TurnedAway:
    """503 and 429 are a server's no; any other status says that this is no place to call."""
    status, again = error.response.status_code, _seconds(error.response.headers.get("Retry-After"))
    if status not in (429, 503):
        place = error.response.headers.get("Location")
        elsewhere = f"call {without_login(place)!r} if that is meant" if place else "check the path"
        cure = "give its --api-key-file" if status in (401, 403) else elsewhere
        raise TargetUnreachable(
            f"cannot call {without_login(address)}: it answers HTTP {status} instead of opening a WebSocket; "
            f"{cure}"
        ) from None
    try:
        return TurnedAway(msgspec.json.decode(error.response.body or b"", type=Refusal).error.code, again)
    except msgspec.DecodeError:
        return TurnedAway(f"http_{status}", again)


def _seconds(retry_after: str | None) -> float | None:
    """A Retry-After in seconds; one that gives a date, as it may, needs a clock that both sides share."""
    return float(retry_after) if retry_after and retry_after.isdecimal() and len(retry_after) < 10 else None


def _plain(error: Exception) -> str:
    """The first cause in plain words: asyncio joins the failures of all addresses of a name."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
