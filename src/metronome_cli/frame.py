"""The nouns of one beat: what a session brings to a tick, and what a tick tells.

Knows:   sessions by number, audio samples, typed text, tokens as text, blocks as counts.
Ignores: who hears, thinks and speaks, and when.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SessionId = int  # never used twice: a late reply cannot reach the next tenant of a slot

HEARING_RATE = 16_000  # samples per second of every frame's audio


@dataclass(frozen=True, slots=True)
class Frame:
    """What one session brings to one tick."""

    session: SessionId
    audio: NDArray[np.float32]  # mono, HEARING_RATE, -1..1; may be empty
    texts: tuple[str, ...] = ()  # typed messages, oldest first
    commit: int = 0  # utterances that the caller ended
    clear: bool = False  # what was heard of the utterance before this frame is to be forgotten
    duplex: bool = True  # the model answers whenever it sees fit; otherwise only when `reply` asks
    most: int = 0  # tokens of a reply to nobody's asking; 0 leaves that to the model
    reply: int | None = None  # answer now, in at most so many tokens


@dataclass(frozen=True, slots=True)
class Prefilled:
    """A session's frame is in its cache; from here on tokens are fresh."""

    session: SessionId
    tokens_in: int
    heard: str = ""  # words handed on by the ears in this frame
    over: int = 0  # utterances that end with them
    speaking: bool = True  # whether the session is to speak in this frame
    unread: int = 0  # characters of typed text, at least, that wait for a later tick


@dataclass(frozen=True, slots=True)
class Said:
    """One decoded token of one session. `text` is empty in a pause or while a character is incomplete."""

    session: SessionId
    text: str
    end: bool = False  # the reply is complete
    start: bool = False  # the first of a reply, whether or not the last one was complete
    cut: bool = False  # with `end`: it may not be longer
    pcm: bytes = b""  # its sound, where the model speaks: PCM16 little-endian mono, 24 kHz


@dataclass(frozen=True, slots=True)
class Stalled:
    """No block was free for a session; `dropped` tokens of its input are lost."""

    session: SessionId
    dropped: int
    reply: bool = False  # a reply that had not begun is lost with them


@dataclass(frozen=True, slots=True)
class Failed:
    """A session cannot go on, by something of its own; the others do. Nothing more is told of it."""

    session: SessionId
    why: str  # in words for its caller


TickEvent = Prefilled | Said | Stalled | Failed


@dataclass(frozen=True, slots=True)
class Refused:
    """An expected no: a stable reason, and when to come back."""

    reason: str
    retry_after_s: float = 1.0


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Blocks of the pool. `reserved` counts what windowed sessions were promised, held or not."""

    leased: int
    reserved: int
    total: int
    room: int | None = None  # calls of the profile's own terms that it can still promise; None: unbounded
