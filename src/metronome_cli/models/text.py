"""Typed text in, text out: the thinking half of a call, under the windowed engine.

Knows:   whose turn it is, and what each text makes a call read.
Ignores: audio (cascade.py brings words as texts), how calls read and speak (talk.py), sockets, time.

In mode `turn` a session answers each text and rests at its end token. In mode `free` it never rests:
`tau` tokens every frame, no end token, and a text interrupts whatever it was saying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ..engine.checkpoint import count_weights
from ..engine.decoder import Decoder
from ..engine.device import device_of
from ..engine.linear import products_of
from ..engine.weights import dtype_of, load_decoder, read_decoder_config
from ..frame import Frame, KvUsage, Prefilled, Refused, SessionId, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy
from .assets import here, locate
from .chat import Chat
from .room import pool_blocks
from .talk import Talk, Talks

# Characters that wait until a reply is asked for. Typed ones are refused long before; of a call that is
# heard for hours and never asks, the oldest words go, which no window would hold either.
MOST_HELD = 131_072


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a reply answers, and the most tokens that it may have."""

    text: str
    most: int


@dataclass(slots=True)
class _Call:
    """One session: what was said to it and is not in its inbox yet."""

    talk: Talk
    held: deque[str] = field(default_factory=deque)  # until a reply is asked for
    turns: deque[_Turn] = field(default_factory=deque)  # until the reply ends

    @property
    def unread(self) -> int:
        """Characters, at least, that wait to be read: a token has one or more. An empty text counts too."""
        texts = [*(turn.text for turn in self.turns), *self.held]
        return len(self.talk.inbox) + sum(map(len, texts)) + len(texts)


class TextModel:
    """A `TickEngine` over one checkpoint. Loads it, so creating one takes seconds.

    AssetError when weights are missing; ProfileError when one session does not fit the pool.
    """

    def __init__(self, profile: Profile) -> None:
        torch.set_num_threads(profile.run.threads)
        folder = locate(profile.model.thinker)
        self._profile = profile
        self._free = profile.model.mode == "free"
        self._chat, blocks = _prepare(profile, folder)
        self._talks = Talks(profile, self._chat, _load(folder, profile), blocks=blocks)
        self._engine = self._talks.engine
        self._calls: dict[SessionId, _Call] = {}

    @staticmethod
    def check(profile: Profile) -> None:
        """Of a checkpoint that is here: AssetError if it is not whole, ProfileError if it does not fit."""
        if folder := here(profile.model.thinker):
            _prepare(profile, folder)

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        talk = self._talks.open(session, seed, terms)
        if isinstance(talk, Refused):
            return talk
        self._calls[session] = _Call(talk)
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        due = {frame.session: self._calls[frame.session] for frame in frames if frame.session in self._calls}
        for frame in frames:
            if call := due.get(frame.session):
                self._take(call, frame)
                self._take_turns(call)
        for event in self._talks.speak([call.talk for call in due.values()]):
            if isinstance(event, Prefilled):
                yield replace(event, unread=due[event.session].unread)
            else:
                yield event

    def cancel(self, session: SessionId) -> None:
        self._talks.cancel(session)

    def close(self, session: SessionId) -> None:
        self._calls.pop(session, None)
        self._talks.close(session)

    def blocks(self, session: SessionId) -> int:
        return self._talks.blocks(session)

    def policy(self, session: SessionId) -> Policy:
        return self._talks.policy(session)

    def usage(self) -> KvUsage:
        return self._talks.usage()

    def _take(self, call: _Call, frame: Frame) -> None:
        """Make turns of a frame's texts: at once in a duplex call, else when a reply is asked for."""
        most = frame.most_tokens(self._profile.model.max_reply)
        call.held.extend(frame.texts)
        if self._free or frame.duplex:
            turns = list(call.held)
        elif frame.reply is not None:
            turns = ["\n".join(call.held)]
        else:
            while sum(map(len, call.held)) > MOST_HELD:
                call.held.popleft()
            return
        call.held.clear()
        if frame.reply is not None and not self._free:
            turns = turns or [""]
        call.turns.extend(_Turn(turn, most) for turn in turns)

    def _take_turns(self, call: _Call) -> None:
        """Move turns to the inbox: all of them in free mode, else the next one once the reply is over."""
        talk = call.talk
        while call.turns and (self._free or not talk.speaking):
            turn = call.turns.popleft()
            talk.inbox.add(self._chat.turn(turn.text, talk.after))
            self._talks.answer(talk, turn.most)


def _prepare(profile: Profile, folder: Path) -> tuple[Chat, int]:
    """How it chats, and the blocks of its pool: all that is known before anything large is read."""
    config = read_decoder_config(folder)  # first: a tokenizer's reader blames all that is wrong on itself
    chat = Chat(folder, profile.model.header)
    chat.check_known(config.vocab)
    policy = profile.check_fit(len(chat.header))
    weights = count_weights(folder) * dtype_of(profile.model.dtype).itemsize
    return chat, pool_blocks(profile, policy, config, weights)


def _load(folder: Path, profile: Profile) -> Decoder:
    device, dtype = device_of(profile.run.device), dtype_of(profile.model.dtype)
    return load_decoder(folder, dtype, products_of(profile.model.products), device)
