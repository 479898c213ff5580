"""What is said over /v1/realtime: OpenAI's Realtime events (GA form) and our tick event.

Knows:   event names, their fields, JSON, and how a malformed event is explained.
Ignores: sockets, sessions, audio contents, and what any event sets in motion.

`input_audio_buffer.append` carries PCM16 little-endian mono; `bytes` fields are base64 in JSON.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .errors import InputError

REALTIME_PATH = "/v1/realtime"
HEALTH_PATH = "/health"
RATES = (24_000, 16_000, 8_000)  # samples per second a client may send; the first is the default
PCM = "audio/pcm"

# WebSocket close codes that follow a fatal `error` event of the same name.
CLOSE_ENGINE_DEAD = 1011
CLOSE_SESSION_IDLE = 4408
CLOSE_TOO_SLOW = 4429


def _always(value: str) -> str:
    """A default that is written out all the same: others read these events too."""
    field: str = msgspec.field(default_factory=lambda: value)
    return field


# ---- What a session is set to ------------------------------------------------------------------
# Keys of OpenAI's session object that we do not use are ignored; our own are checked.


class AudioFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`rate` is one of RATES; None means the default."""

    type: str = _always(PCM)
    rate: int | None = None


class AudioInput(msgspec.Struct, kw_only=True, omit_defaults=True):
    format: AudioFormat | None = None


class AudioSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    input: AudioInput | None = None


class MetronomeSettings(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Our extension. `ticks` asks for a `metronome.tick` event per frame; None leaves it as it is."""

    ticks: bool | None = None


class SessionSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `session` of `session.update`; None leaves a setting as it is."""

    type: str = _always("realtime")
    audio: AudioSettings | None = None
    output_modalities: list[str] | None = None
    metronome: MetronomeSettings | None = None


class SessionInfo(msgspec.Struct, kw_only=True):
    """The `session` of `session.created` and `session.updated`. `id` ends in the number that traces use."""

    id: str
    model: str
    audio: AudioSettings
    metronome: MetronomeSettings
    type: str = "realtime"
    object: str = "realtime.session"
    output_modalities: list[str] = msgspec.field(default_factory=lambda: ["text"])


# ---- What a client says ------------------------------------------------------------------------


class _ClientEvent(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    event_id: str | None = None


class SessionUpdate(_ClientEvent, tag="session.update"):
    session: SessionSettings


class AudioAppend(_ClientEvent, tag="input_audio_buffer.append"):
    audio: bytes


class AudioCommit(_ClientEvent, tag="input_audio_buffer.commit"):
    """The utterance is over."""


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    text: str = ""


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A typed message: type "message", role "user", content parts "input_text"."""

    content: list[ContentPart]
    type: str = _always("message")
    role: str = _always("user")

    @classmethod
    def message(cls, text: str) -> Item:
        """One typed message."""
        return cls(content=[ContentPart(type="input_text", text=text)])


class ItemCreate(_ClientEvent, tag="conversation.item.create"):
    item: Item


class ResponseCancel(_ClientEvent, tag="response.cancel"):
    """Abandon the reply in progress; the call goes on."""


ClientEvent = SessionUpdate | AudioAppend | AudioCommit | ItemCreate | ResponseCancel


# ---- What the server says ----------------------------------------------------------------------


class _ServerEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    event_id: str


class SessionCreated(_ServerEvent, tag="session.created"):
    session: SessionInfo


class SessionUpdated(_ServerEvent, tag="session.updated"):
    session: SessionInfo


class TextDelta(_ServerEvent, tag="response.output_text.delta"):
    """One token's text, sent as soon as it is decoded; empty while its character is incomplete."""

    response_id: str
    item_id: str
    delta: str
    output_index: int = 0
    content_index: int = 0


class TextDone(_ServerEvent, tag="response.output_text.done"):
    """The reply is complete, or was cancelled; `text` is all of it."""

    response_id: str
    item_id: str
    text: str
    output_index: int = 0
    content_index: int = 0


class ErrorDetail(msgspec.Struct, kw_only=True):
    """`code` is stable and meant for programs; `event_id` is the client's own, when it gave one."""

    type: str
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


class ErrorEvent(_ServerEvent, tag="error"):
    error: ErrorDetail


class TickEvent(_ServerEvent, tag="metronome.tick"):
    """Closes a frame: the deltas since the previous tick event belong to it.

    `due` and `done` are monotonic seconds of the server; `audio_end_ms` is the audio of this call, at the
    client's pace, consumed up to and including this frame; `kv_*` count blocks.
    """

    tick: int  # the server's count of beats
    frame: int  # the session's own count, from 0
    audio_end_ms: float
    due: float
    done: float
    stalled: bool  # no block was free; this frame's input is lost
    speaking: bool  # whether the session was to speak in this frame
    tokens_in: int
    tokens_out: int
    kv_blocks: int  # held by this session
    kv_leased: int  # held by all sessions
    kv_total: int
    skipped: int  # beats left out just before this one
    heard: str  # words handed on by the ears in this frame


ServerEvent = SessionCreated | SessionUpdated | TextDelta | TextDone | ErrorEvent | TickEvent


class RefusalDetail(msgspec.Struct, kw_only=True):
    """`code` is the machine-readable reason."""

    code: str
    message: str
    type: str = "server_overloaded"


class Refusal(msgspec.Struct, kw_only=True):
    """Body of the HTTP 503 that stands in place of an upgrade."""

    error: RefusalDetail


# ---- JSON --------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_client_decoder = msgspec.json.Decoder(ClientEvent)
_server_decoder = msgspec.json.Decoder(ServerEvent)
_CLIENT_TYPES = (
    "session.update, input_audio_buffer.append, input_audio_buffer.commit, "
    "conversation.item.create, response.cancel"
)
_SERVER_TAGS = frozenset(
    str(kind.__struct_config__.tag)
    for kind in (SessionCreated, SessionUpdated, TextDelta, TextDone, ErrorEvent, TickEvent)
)
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
        return msgspec.json.decode(text)
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
        return InputError("missing_parameter", "type", None, f"use one of {_CLIENT_TYPES}")
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if path == "type":
        return InputError("unknown_event", "type", _shown(raw["type"]), f"use one of {_CLIENT_TYPES}")
    if missing := re.fullmatch(r"Object missing required field `(\w+)`", what):
        return InputError("missing_parameter", _join(path, missing[1]), None, "add it")
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
