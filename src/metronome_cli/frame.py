"""The nouns of one beat: what a session brings to a tick, and what a tick tells.

Knows:   sessions by number, audio samples, typed text, tokens as text and sound, blocks as counts, and what a
         model must be able to do with them.
Ignores: who hears, thinks and speaks, and when.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .profile import OWN, Profile, Terms
from .window import Policy

SessionId = int  # never used twice: a late reply cannot reach the next tenant of a slot

SPEAKING_RATE = 24_000  # samples per second of all speech that a model gives back


@dataclass(frozen=True, slots=True)
class Frame:
    """What one session brings to one tick."""

    session: SessionId
    audio: NDArray[np.float32]  # mono, model.rate of the profile, -1..1; may be empty
    texts: tuple[str, ...] = ()  # typed messages, oldest first
    commit: int = 0  # utterances that the caller ended
    clear: bool = False  # what was heard of the utterance before this frame is to be forgotten
    duplex: bool = True  # the model answers whenever it sees fit; otherwise only when `reply` asks
    most: int = 0  # tokens of a reply to nobody's asking; 0 leaves that to the model
    reply: int | None = None  # answer now, in at most so many tokens

    def most_tokens(self, limit: int) -> int:
        """Tokens that a reply to it may have, from a model that gives at most `limit`."""
        return min((self.most if self.reply is None else self.reply) or limit, limit)


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
    pcm: bytes = b""  # its sound, where the model speaks: PCM16 little-endian mono, SPEAKING_RATE


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
    retry_after_s: float | None = 1.0  # None: nobody will be there


@dataclass(frozen=True, slots=True)
class KvUsage:
    """Blocks of the pool. `reserved` counts what windowed sessions were promised, held or not."""

    leased: int
    reserved: int
    total: int
    room: int | None = None  # calls of the profile's own terms that it can still promise; None: unbounded


class TickEngine(Protocol):
    """A model that can hold many calls. One thread calls it; between two events of `tick` it may be
    asked to open, cancel or close any session."""

    def __init__(self, profile: Profile) -> None:
        """Load everything that the profile names.

        AssetError when weights are missing; ProfileError when one session does not fit the pool.
        """
        ...

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        """Take a new call on its terms, with its blocks reserved; None when it is in.

        ProfileError when the profile does not give so much.
        """
        ...

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        """Encode and prefill all frames in one batch, decode in lock-step, telling each event at once."""
        ...

    def cancel(self, session: SessionId) -> None:
        """Abandon the reply in progress; the session and its cache stay."""
        ...

    def close(self, session: SessionId) -> None:
        """Give back all blocks; a session that is not open is no error."""
        ...

    def blocks(self, session: SessionId) -> int:
        """Blocks that the session holds."""
        ...

    def policy(self, session: SessionId) -> Policy:
        """The retention that an open session is held on; long instructions take from its window."""
        ...

    def usage(self) -> KvUsage:
        """The pool as it stands."""
        ...
