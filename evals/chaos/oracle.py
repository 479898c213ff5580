"""What must be said to an event, known without the server's own decoder.

Knows:   JSON as RFC 8259 has it, and what no client event can do without.
Ignores: what the server can do beyond that: where the oracle is silent, one error event or none is right.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from metronome_cli.wire import ErrorDetail

from .mutate import TYPES

MOST_BYTES = 65_536  # fuzz.toml: server.max_event_bytes
LONGEST_ID = 512

# Errors that the engine sends some time after the event: they may come between the answers to later ones.
_LATE = re.compile(r"buffer_full (audio|text)|session_started session|\w+ session(\.metronome.*)?")
_REQUIRED: dict[str, tuple[str, type]] = {
    "session.update": ("session", dict),
    "input_audio_buffer.append": ("audio", str),
    "conversation.item.create": ("item", dict),
}


@dataclass(frozen=True)
class Expected:
    """`refused`: must be; None: the server decides. `event_id`: which an error has to repeat."""

    refused: bool | None
    event_id: str | None = None


def expected(text: str) -> Expected:
    """The oracle's word on one text."""
    if len(text.encode()) > MOST_BYTES:
        return Expected(True, _id_of(text))
    event = _parsed(text)
    if not isinstance(event, dict):
        return Expected(True)
    event_id = event.get("event_id")
    kind = event.get("type")
    if not isinstance(event_id, str | None):
        return Expected(True)
    name, wanted = _REQUIRED.get(kind, ("type", str)) if isinstance(kind, str) else ("type", str)
    wrong = not isinstance(kind, str) or kind not in TYPES or not isinstance(event.get(name), wanted)
    return Expected(True if wrong else None, event_id and event_id[:LONGEST_ID])


def judge(text: str, errors: list[ErrorDetail], earlier: set[str]) -> list[str]:
    """What is wrong with the errors that came between this text and the next; `earlier` ids may be late."""
    want = expected(text)
    mine = [error for error in errors if error.event_id == want.event_id]
    others = [error for error in errors if error.event_id != want.event_id]
    faults = [
        f"an error for nobody: {error}"
        for error in others
        if not (_late(error) and (error.event_id is None or error.event_id in earlier))
    ]
    prompt = [error for error in mine if not _late(error)]
    if len(prompt) > 1 or (want.refused and not mine):
        faults.append(f"{len(mine)} error events: {mine}")
    return faults + [fault for error in errors if (fault := _malformed(error))]


def _malformed(error: ErrorDetail) -> str | None:
    """Why an error event does not say what it should: field, value, where there is one, and cure."""
    if error.type != "invalid_request_error" or not error.code:
        return f"neither type nor code: {error}"
    if len(error.message) > 1000:
        return f"a message of {len(error.message)} characters"
    if error.code == "response_cancel_not_active":
        return None
    said = r".+: .+" if error.code == "missing_parameter" else r".+ = .+: .+"
    if not error.param or not re.match(said, error.message, re.DOTALL):
        return f"no field, value and cure: {error}"
    return None


def _late(error: ErrorDetail) -> bool:
    return _LATE.fullmatch(f"{error.code} {error.param}") is not None


def _id_of(text: str) -> str | None:
    event = _parsed(text)
    found = event.get("event_id") if isinstance(event, dict) else None
    return found[:LONGEST_ID] if isinstance(found, str) else None


def _parsed(text: str) -> Any:
    """The text as JSON; None for what is none, or cannot be put into UTF-8."""

    def never(constant: str) -> NoReturn:
        raise ValueError(constant)

    try:
        event = json.loads(text, parse_constant=never)
        json.dumps(event, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return event
