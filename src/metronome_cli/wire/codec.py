"""Events to JSON and back, and how a malformed one is explained.

Knows:   msgspec, its error messages, and what field, value and cure they come down to.
Ignores: what any event sets in motion.
"""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec

from ..errors import NOTHING, InputError
from .client import ClientEvent
from .server import Refusal, ServerEvent

_encoder = msgspec.json.Encoder()
_client_decoder = msgspec.json.Decoder(ClientEvent)
_server_decoder = msgspec.json.Decoder(ServerEvent)
_any_decoder = msgspec.json.Decoder(float_hook=float)  # 1e400 is JSON, though no double holds it
_CLIENT_TYPES = ", ".join(str(kind.__struct_config__.tag) for kind in get_args(ClientEvent))
_SERVER_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in get_args(ServerEvent))
_SHOWN = 60  # characters of a caller's value that an error message repeats


def encode(event: ClientEvent | ServerEvent | Refusal) -> bytes:
    """`event` as one JSON document."""
    return _encoder.encode(event)


def decode_client_event(text: str | bytes) -> ClientEvent:
    """What a client sent; InputError names the field, its value and the cure."""
    try:
        return _client_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _explain(text, str(error)) from None


def decode_server_event(text: str | bytes) -> ServerEvent | None:
    """What a server sent; None for an event that we do not know. InputError when it is malformed."""
    try:
        return _server_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raw = _raw(text)
        if isinstance(raw, dict) and raw.get("type") not in _SERVER_TAGS and "type" in raw:
            return None
        raise InputError("invalid_event", "event", str(text)[:_SHOWN], str(error)) from None


def event_id_of(text: str | bytes) -> str | None:
    """The event_id of an event that could not be taken, as far as it has one."""
    raw = _raw(text)
    found = raw.get("event_id") if isinstance(raw, dict) else None
    return found[:512] if isinstance(found, str) else None


def _raw(text: str | bytes) -> Any:
    try:
        return _any_decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _explain(text: str | bytes, problem: str) -> InputError:
    """msgspec's message as code, field, value and cure."""
    raw = _raw(text)
    if not isinstance(raw, dict):
        return InputError(
            "invalid_json", "event", text[:_SHOWN], f"send one JSON object per text frame ({problem})"
        )
    if "type" not in raw:
        return InputError("missing_parameter", "type", NOTHING, f"use one of {_CLIENT_TYPES}")
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if path == "type":
        return InputError("unknown_event", "type", _shown(raw["type"]), f"use one of {_CLIENT_TYPES}")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return InputError("missing_parameter", _join(path, missing[1]), NOTHING, "add it")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL):
        field = _join(path, unknown[1])
        return InputError("unknown_parameter", field, _shown(_dig(raw, field)), "leave it out")
    code = "invalid_base64" if "base64" in what else "invalid_value"
    return InputError(code, path, _shown(_dig(raw, path)), what[:1].lower() + what[1:])


def _join(path: str, field: str) -> str:
    return f"{path}.{field}"[:200] if path else field[:200]


def _dig(raw: Any, path: str) -> Any:
    """The value at a path such as item.content[0].type; None where there is none."""
    for part in re.findall(r"[^.\[\]]+", path):
        try:
            raw = raw[int(part)] if isinstance(raw, list) else raw.get(part)
        except (ValueError, IndexError, AttributeError):
            return None
    return raw


def _shown(value: Any) -> Any:
    """A caller's value, short enough to send back."""
    if isinstance(value, bool | int | float | None):
        return value
    return (value if isinstance(value, str) else repr(value))[:_SHOWN]
