"""Which tongue a server speaks, and what its messages mean to a caller.

Knows:   the events that a call counts, the protocol chosen by name, path or first message.
Ignores: sockets, clocks, what is concluded. Each protocol's own words stand in a module of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec
import numpy as np

from ..errors import TargetUnreachable
from ..frame import SPEAKING_RATE
from ..speech import SOUND
from ..wire import TickEvent

MOSHI_PATH = "/api/chat"
NAMES = ("auto", "metronome", "openai", "vllm", "moshi")
CANNOT_CANCEL = ("vllm", "moshi")
MODALITIES = ("auto", "text", "audio")  # of replies; auto: our own server's default, of others text
CANNOT_CHOOSE = ("vllm", "moshi")  # in what they reply

Message = str | bytes


@dataclass(frozen=True, slots=True)
class Begun:
    """The session is there. `frame_s` is the server's beat, `bounded` whether its cache is, `window` to how
    many tokens, sinks included, where a window of tokens bounds it."""

    server_id: str = ""
    frame_s: float | None = None
    bounded: bool | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """Something was said: the text of one delta, and the reply it belongs to where replies have names."""

    text: str
    reply: str = ""


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """A reply is complete or was cut off: there is nothing left of it to cancel."""

    reply: str


@dataclass(frozen=True, slots=True)
class Sound:
    """Speech given back: PCM16 little-endian mono at SPEAKING_RATE, and the reply as a Token has it."""

    pcm: bytes
    reply: str = ""

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / SPEAKING_RATE

    @property
    def audible(self) -> bool:
        """Whether somebody would call it sound: a model that never rests sends its silence too."""
        samples = np.frombuffer(self.pcm[: len(self.pcm) // 2 * 2], "<i2").astype(np.float32) / 32768
        return len(samples) > 0 and float(samples @ samples) > SOUND * len(samples)


@dataclass(frozen=True, slots=True)
class Heard:
    """Words that the server understood."""

    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The server objects."""

    code: str


Event = Begun | Token | ReplyDone | Sound | Heard | Fault | TickEvent


class Tongue(Protocol):
    """One call's side of a protocol; it may keep state, such as a codec's."""

    name: str
    binary: bool  # whether messages travel in binary frames

    def opening(self) -> Sequence[Message]:
        """What is said before the first sound."""
        ...

    def packet(self, pcm: bytes) -> Message | None:
        """20 ms of PCM16 at speech.RATE as a message; None while a codec gathers more."""
        ...

    def closing(self) -> Sequence[Message]:
        """What is said before hanging up."""
        ...

    def cancel(self) -> Message | None:
        """Abandon the reply in progress; None where there is no way to."""
        ...

    def hear(self, message: Message) -> Sequence[Event]:
        """What a message of the server means; InputError when it is malformed."""
        ...


def recognise(asked: str, address: str, first: Message) -> str:
    """The name of the protocol: as asked, else by the address's path, else by the server's first message."""
    if asked != "auto":
        return asked
    if urlsplit(address).path.rstrip("/") == MOSHI_PATH:
        return "moshi"
    event = _json(first)
    if not isinstance(event, dict):
        raise TargetUnreachable(
            f"cannot call {address}: it greets with nothing we know; name its tongue with --protocol"
        )
    if event.get("type") != "session.created":
        return "openai"
    session = event.get("session")
    if not isinstance(session, dict):
        return "vllm"
    return "metronome" if isinstance(session.get("metronome"), dict) else "openai"


def tongue(name: str, model: str, modality: str = "auto") -> Tongue:
    """A caller's side of protocol `name`, for one call. TargetUnreachable says what it lacks."""
    if name == "vllm":
        from .vllm import Vllm

        if not model:
            raise TargetUnreachable("this server asks for a model: name the one it serves with --model")
        return Vllm(model)
    if name == "moshi":
        from .moshi import Moshi

        return Moshi()
    from .openai import Metronome, OpenAI

    return Metronome(modality) if name == "metronome" else OpenAI(modality)


def _json(message: Message) -> Any:
    try:
        return msgspec.json.decode(message)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
