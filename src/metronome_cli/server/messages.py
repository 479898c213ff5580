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
from ..trace import TickRecord
from ..wire import TickEvent

PROTOCOL = 8  # raised whenever a message below changes


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
    """float32 samples in native byte order, mono, model.rate of the profile."""

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


class Clear(_Message, frozen=True):
    """Forget the utterance so far; answered by Cleared."""

    session: SessionId
    mark: int


class Turns(_Message, frozen=True):
    """Whether the model may answer without being asked, and in how many tokens; 0 leaves that to it."""

    session: SessionId
    mark: int
    duplex: bool
    most: int


class Reply(_Message, frozen=True):
    """Answer now, in at most `most` tokens; 0 leaves that to the model."""

    session: SessionId
    mark: int
    most: int


class Settle(_Message, frozen=True):
    """Terms of its own for a session in which nothing was said yet; answered by Settled or Rejected."""

    session: SessionId
    mark: int
    terms: dict[str, Any]  # of profile.Terms
    event_id: str | None


class Close(_Message, frozen=True):
    """The caller is gone."""

    session: SessionId


class Heartbeat(_Message, frozen=True):
    """The gateway lives, though its callers may be silent."""


class Stop(_Message, frozen=True):
    """End the engine process."""


# ---- What the engine says ----------------------------------------------------------------------


class Loading(_Message, frozen=True):
    """The model loads still, and more of it is read than when this was said last."""


class Ready(_Message, frozen=True):
    """Answers Hello once the model is loaded. Who may join is said here for the time before the next Beat."""

    sessions: int  # live now, in all gateways
    cap: int  # most sessions at this moment,
    cap_reason: str  # and what binds it
    room: int | None  # as in Beat
    unrecorded: str  # as in Beat


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
    retry_after_s: float | None


class Beat(_Message, frozen=True):
    """A tick is over, with calls or without; said to every gateway, after the tick's other messages."""

    tick: TickRecord
    speaking: int  # frames in which the session was to speak
    sessions: int  # live now, in all gateways
    room: int | None  # calls of the profile's own terms that the pool can still promise; None: unbounded
    mute: int  # sessions that are spoken to and say nothing
    fell_mute: int  # of them, for the first time
    firsts: list[float]  # seconds from the tick's due time to the first token of each frame that has one
    lasts: list[float]  # the same to its last token
    unrecorded: str = ""  # why nothing is written down any more


class Word(_Message, frozen=True):
    """One decoded token."""

    session: SessionId
    text: str
    start: bool
    end: bool
    cut: bool
    pcm: bytes = b""  # as of frame.Said


class Heard(_Message, frozen=True):
    """A frame is in the cache: words of its audio, how many utterances end with them, tokens appended."""

    session: SessionId
    text: str
    over: int
    tokens: int


class ReplyLost(_Message, frozen=True):
    """The reply that was to begin will not: its session got no block."""

    session: SessionId


class Settled(_Message, frozen=True):
    """The session's terms hold. `window` in tokens: what the instructions leave of the one asked for."""

    session: SessionId
    window: int | None = None


class FrameDone(_Message, frozen=True):
    """A frame is closed. The gateway fills in the event's `event_id`."""

    session: SessionId
    mark: int
    event: TickEvent


class Cancelled(_Message, frozen=True):
    """From here on words belong to a new reply."""

    session: SessionId


class Cleared(_Message, frozen=True):
    """From here on words were heard after the oldest Clear that this was not said of yet."""

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


ToSession = Audio | Text | Commit | Cancel | Clear | Turns | Reply | Settle
ToEngine = Hello | Open | ToSession | Close | Heartbeat | Stop
Answer = Cancelled | Cleared | Settled | Rejected | Ended
ToCaller = Word | Heard | FrameDone | ReplyLost | Answer
ToGateway = Loading | Ready | Failed | Opened | TurnedAway | Beat | ToCaller

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
    opened: int = 0  # sessions before this process; its own are numbered on from there
    must_record: bool = True  # whether a folder that cannot be written is a reason not to start
