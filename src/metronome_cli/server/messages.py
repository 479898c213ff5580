"""What the gateway and the engine process say to each other.

Knows:   every message, its packing, and the protocol number.
Ignores: sockets on either side, and what a message sets in motion.

A session's messages carry a running `mark`: the bytes sent for it so far. The engine returns the last
one it took with every frame, so the gateway knows how much is still on the way and can bound it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..frame import SessionId
from ..wire import TickEvent

PROTOCOL = 1  # raised whenever a message below changes


class _Message(msgspec.Struct, array_like=True, tag=True, frozen=True):
    pass


# ---- What the gateway says ---------------------------------------------------------------------


class Hello(_Message, frozen=True):
    """First of all; its shape never changes, so that any two versions can tell each other apart."""

    protocol: int


class Open(_Message, frozen=True):
    """Asks for a session; `request` comes back with the answer."""

    request: int


class Audio(_Message, frozen=True):
    """float32 samples in native byte order, mono, HEARING_RATE."""

    session: SessionId
    mark: int
    samples: bytes
    event_id: str | None


class Text(_Message, frozen=True):
    """A typed message."""

    session: SessionId
    mark: int
    text: str
    event_id: str | None


class Commit(_Message, frozen=True):
    """The utterance is over."""

    session: SessionId
    mark: int


class Cancel(_Message, frozen=True):
    """Abandon the reply; answered by Cancelled."""

    session: SessionId
    mark: int


class Close(_Message, frozen=True):
    """The caller is gone."""

    session: SessionId


class Heartbeat(_Message, frozen=True):
    """The gateway lives, though its callers may be silent."""


class Stop(_Message, frozen=True):
    """End the engine process."""


# ---- What the engine says ----------------------------------------------------------------------


class Ready(_Message, frozen=True):
    """Answers Hello once the model is loaded."""


class Failed(_Message, frozen=True):
    """Answers Hello when there will be no engine: what to tell the user, and the exit code."""

    message: str
    exit_code: int


class Opened(_Message, frozen=True):
    request: int
    session: SessionId


class TurnedAway(_Message, frozen=True):
    """The session that was asked for cannot be had."""

    request: int
    reason: str
    retry_after_s: float


class Word(_Message, frozen=True):
    """One decoded token."""

    session: SessionId
    text: str
    start: bool
    end: bool


class FrameDone(_Message, frozen=True):
    """A frame is closed. The gateway fills in the event's `event_id`."""

    session: SessionId
    mark: int
    event: TickEvent


class Cancelled(_Message, frozen=True):
    """From here on words belong to a new reply."""

    session: SessionId


class Rejected(_Message, frozen=True):
    """Input that was not taken; the session goes on."""

    session: SessionId
    code: str
    field: str
    message: str
    event_id: str | None


class Ended(_Message, frozen=True):
    """The session is over, and not because its caller wished so."""

    session: SessionId
    code: str
    message: str


ToEngine = Hello | Open | Audio | Text | Commit | Cancel | Close | Heartbeat | Stop
ToCaller = Word | FrameDone | Cancelled | Rejected | Ended
ToGateway = Ready | Failed | Opened | TurnedAway | ToCaller

_encoder = msgspec.msgpack.Encoder()
_engine_decoder: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_gateway_decoder: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)


def pack(message: ToEngine | ToGateway) -> bytes:
    """`message` as bytes."""
    return _encoder.encode(message)


def to_engine(data: bytes) -> ToEngine:
    """What a gateway said; msgspec.DecodeError when it is none of our messages."""
    return _engine_decoder.decode(data)


def to_gateway(data: bytes) -> ToGateway:
    """What the engine said; msgspec.DecodeError when it is none of our messages."""
    return _gateway_decoder.decode(data)


class Setup(msgspec.Struct):
    """First line, as JSON, of the engine process's standard input; the end of that input ends the process."""

    address: str  # zmq endpoint to bind
    profile: dict[str, Any]
    folder: str | None  # of the run; None records nothing
