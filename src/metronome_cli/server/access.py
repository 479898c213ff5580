"""Access: who may call, and how often.

Knows:   API keys and where they are kept, the headers Authorization, Origin and Host, token buckets.
Ignores: what a call is and whether there is room for it. No key is ever shown, logged or written down.

Every path wants a key where keys are set, and a page's permission where a browser calls, but those of OPEN.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import math
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from .. import wire
from ..clock import Clock
from ..errors import FieldError

OPEN = frozenset({"/health", "/metrics"})  # what watches a server holds no key
ANY_ORIGIN = "*"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Denied:
    """An answer in place of what was asked for: `code` is stable and meant for programs."""

    status: int
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    type: str = "invalid_request_error"


# ---- Keys --------------------------------------------------------------------------------------


def read_keys(typed: str | None, file: Path | None) -> tuple[str, ...]:
    """The keys from an option or the environment, and those of a file: one a line, `#` begins a comment.

    FieldError when the file cannot be read or a key cannot be sent in a header; it never shows a key.
    """
    keys = [] if typed is None else [_checked(typed, "api_key", "the key")]
    if file is not None:
        lines = enumerate(_lines(file), 1)
        written = [(number, line.strip()) for number, line in lines]
        found = [
            _checked(line, "api_key_file", f"{file} line {number}")
            for number, line in written
            if line and not line.startswith("#")
        ]
        if not found:
            raise FieldError("api_key_file", str(file), "write at least one key into it, one a line")
        keys += found
    return tuple(dict.fromkeys(keys))


def _lines(file: Path) -> list[str]:
    try:
        others = file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no path at all
        raise FieldError("api_key_file", str(file), f"give a readable text file ({error})") from None
    if others:
        _log.warning("%s can be read by other users of this machine: chmod 600 it", file)
    return lines


def _checked(key: str, name: str, where: str) -> str:
    if not key or not all("!" <= letter <= "~" for letter in key):
        raise FieldError(name, where, "use one or more visible ASCII characters, without spaces")
    return key


def warn_if_exposed(address: str, keys: tuple[str, ...]) -> None:
    """One line where anybody on the network may call. `address` is the listening socket's own."""
    if not keys and not ipaddress.ip_address(address).is_loopback:
        _log.warning("anybody who reaches %s may call: set --api-key-file, or listen on 127.0.0.1", address)


# ---- Headers -----------------------------------------------------------------------------------


def authorized(authorization: str | None, keys: tuple[str, ...]) -> bool:
    """Whether an Authorization header carries one of `keys`; without keys everybody may."""
    if not keys:
        return True
    scheme, _, token = (authorization or "").partition(" ")
    sent = token.strip().encode("utf-8", "replace")
    # All of them, always: how long it takes must not tell which key is near.
    matches = [hmac.compare_digest(sent, key.encode()) for key in keys]
    return scheme.lower() == "bearer" and any(matches)


def origin_allowed(origin: str | None, host: str | None, origins: tuple[str, ...], keyed: bool) -> bool:
    """Whether a page may call: it is no page, it comes from our own host, or `origins` lists it.

    Somebody else's name can be made to point at us (DNS rebinding), and its pages would then seem our own. A
    key keeps them out; without one, only an address or localhost counts as our own host.
    """
    if origin is None or ANY_ORIGIN in origins:
        return True
    if origin.lower() in (listed.lower() for listed in origins):
        return True
    theirs, ours = _host_name(origin), _host_name(f"//{host}")
    return theirs is not None and theirs == ours and (keyed or _cannot_be_rebound(theirs))


def _host_name(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _cannot_be_rebound(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return True


def denial(headers: Mapping[str, str], keys: tuple[str, ...], origins: tuple[str, ...]) -> Denied | None:
    """Why a request with these headers (names in lower case) is turned away; None when it may come in."""
    if not origin_allowed(headers.get("origin"), headers.get("host"), origins, bool(keys)):
        why = "pages of this origin may not call: list it in the profile's server.origins"
        return Denied(403, "origin_not_allowed", why)
    if not authorized(headers.get("authorization"), keys):
        why = "no valid API key was sent: send the header Authorization: Bearer YOUR_KEY"
        return Denied(401, "invalid_api_key", why, {"WWW-Authenticate": "Bearer"})
    return None


# ---- Rates -------------------------------------------------------------------------------------


class _Bucket:
    """Tokens that come back at `rate` per second; a second's worth, but at least one, can be saved."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate)
        self._tokens = self._most
        self._at = now

    def _refill(self, now: float) -> None:
        self._tokens = min(self._most, self._tokens + (now - self._at) * self._rate)
        self._at = now


class OpenRate(_Bucket):
    """How many calls a gateway lets in per second. Those beyond are refused, and cost nothing."""

    def take(self, now: float) -> Denied | None:
        """Count one call; Denied, and not counted, when there are too many."""
        self._refill(now)
        if self._tokens >= 1:
            self._tokens -= 1
            return None
        wait = {"Retry-After": str(math.ceil((1 - self._tokens) / self._rate))}
        why = "more calls came in this second than this server takes: come again later"
        return Denied(503, "too_many_opens", why, wait, "server_overloaded")


class EventRate(_Bucket):
    """How many events per second a caller may send. It is slowed down, not refused: nothing is lost."""

    def take(self, now: float) -> float:
        """Count one event that has come; for how many seconds no more should be read."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self._rate)


# ---- At the door -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rules:
    """Who may call a gateway, and how often in a second."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    origins: tuple[str, ...] = ()
    opens_per_s: float = 500.0


class Door:
    """ASGI middleware that answers in place of the application where `rules` say no.

    `refused` counts by code.
    """

    def __init__(self, app: ASGIApp, rules: Rules, clock: Clock, refused: Counter[str]) -> None:
        self._app = app
        self._rules = rules
        self._clock = clock
        self._refused = refused
        self._opens = OpenRate(rules.opens_per_s, clock.now())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        denied = self._denied(scope)
        if denied is None:
            await self._app(scope, receive, send)
            return
        self._refused[denied.code] += 1
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(_answer(denied))
        else:
            await _answer(denied)(scope, receive, send)

    def _denied(self, scope: Scope) -> Denied | None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN:
            return None
        denied = denial(Headers(scope=scope), self._rules.keys, self._rules.origins)
        # Those without a key must not use up what the others may.
        if denied is None and scope["type"] == "websocket":
            denied = self._opens.take(self._clock.now())
        return denied


def _answer(denied: Denied) -> Response:
    """`denied` as OpenAI writes its errors."""
    detail = wire.RefusalDetail(code=denied.code, message=denied.message, type=denied.type)
    body = wire.encode(wire.Refusal(error=detail))
    return Response(body, denied.status, dict(denied.headers), "application/json")
