"""Typed text in, text out: the thinking half of a call, under the windowed engine.

Knows:   whose turn it is, what waits to be appended, and lock-step decoding.
Ignores: audio (cascade.py brings words as texts), sockets, time.

In mode `turn` a session answers each text and rests at its end token. In mode `free` it never rests:
`tau` tokens every frame, no end token, and a text interrupts whatever it was saying.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..engine.checkpoint import count_weights
from ..engine.decoder import Decoder
from ..engine.device import block_bytes, device_of, fit_pool
from ..engine.engine import Engine, StepOutput
from ..engine.kv_pool import FP8, Narrow
from ..engine.linear import products_of
from ..engine.sampling import Sampling
from ..engine.weights import dtype_of, load_decoder, read_decoder_config
from ..frame import Frame, KvUsage, Prefilled, Refused, Said, SessionId, Stalled, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy, blocks_for, reach
from .assets import locate
from .chat import After, Chat, Stream

# Characters that wait until a reply is asked for. Typed ones are refused long before; of a call that is
# heard for hours and never asks, the oldest words go, which no window would hold either.
MOST_HELD = 131_072


@dataclass(frozen=True, slots=True)
class _Turn:
    """What a reply answers, and the most tokens that it may have."""

    text: str
    most: int


@dataclass(slots=True)
class _Talk:
    """One session: what it has still to read, and what it is saying."""

    session: SessionId
    engine_session: int
    policy: Policy
    inbox: list[int]  # ids to append before it may speak
    beginning: list[int]  # the same before anything was said
    stream: Stream
    speaking: bool
    after: After  # what the next turn will follow
    settled: After | None = None  # the same, of what is in the cache; None when nothing is
    held: deque[str] = field(default_factory=deque)  # said to it, until a reply is asked for
    turns: deque[_Turn] = field(default_factory=deque)  # wait for the reply to end
    said: int = 0  # tokens of the current reply
    most: int = 0  # of them

    @property
    def unread(self) -> int:
        """Characters, at least, that wait to be read: a token has one or more. An empty text counts too."""
        texts = [*(turn.text for turn in self.turns), *self.held]
        return len(self.inbox) + sum(map(len, texts)) + len(texts)


class TextModel:
    """A `TickEngine` over one checkpoint. Loads it, so creating one takes seconds.

    AssetError when weights are missing; ProfileError when one session does not fit the pool.
    """

    def __init__(self, profile: Profile) -> None:
        torch.set_num_threads(profile.run.threads)
        folder = locate(profile.model.thinker)
        self._profile = profile
        self._free = profile.model.mode == "free"
        self._start: After = "answer" if self._free else "header"
        self._chat = Chat(folder, profile.model.header)
        self._policy = profile.check_fit(len(self._chat.header))
        kv = self._kv()
        decoder, blocks = _load(folder, profile, kv)
        self._engine = Engine(
            decoder, blocks, profile.pool.block_size, max_append=profile.beat.prefill_tokens, kv_dtype=kv
        )
        self._talks: dict[SessionId, _Talk] = {}

    def _kv(self) -> torch.dtype | Narrow | None:
        """What the pool holds. Sinks apart have room for as many calls as are ever let in on these terms."""
        profile = self._profile
        if profile.pool.kv == "model":
            return None
        each = blocks_for(reach(self._policy)[1], profile.pool.block_size)
        return Narrow(each * profile.admission.max_sessions, dtype_of(profile.model.dtype))

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        model = self._profile.model
        header = self._chat.header if terms.instructions is None else self._chat.instruct(terms.instructions)
        policy = self._profile.session_policy(terms, len(self._chat.header), len(header))
        suppressed = (*self._chat.special, *self._chat.ends) if self._free else ()
        sampling = Sampling(model.temperature, model.top_p, seed, suppressed)
        positions = self._profile.on(terms).window.positions
        number = self._engine.open(policy, positions, sampling)
        if number is None:
            return Refused("pool_full")
        beginning = header + (self._chat.opening if self._free else [])
        self._talks[session] = _Talk(
            session,
            number,
            policy,
            inbox=list(beginning),
            beginning=beginning,
            stream=self._chat.stream(),
            speaking=self._free,
            after=self._start,
        )
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        talks = []
        for frame in frames:
            if talk := self._talks.get(frame.session):
                self._take(talk, frame)
                self._take_turns(talk)
                talks.append(talk)
        speakers = yield from self._prefill(talks)
        for left in range(self._profile.beat.tau - 1, 0, -1):
            speakers = yield from self._decode(speakers, ahead=left > 1)

    def cancel(self, session: SessionId) -> None:
        if (talk := self._talks.get(session)) and talk.speaking:
            self._engine.cancel(talk.engine_session)
            talk.speaking, talk.said, talk.stream = self._free, 0, self._chat.stream()

    def close(self, session: SessionId) -> None:
        if talk := self._talks.pop(session, None):
            self._engine.close(talk.engine_session)

    def blocks(self, session: SessionId) -> int:
        talk = self._talks.get(session)
        return self._engine.held(talk.engine_session) if talk else 0

    def policy(self, session: SessionId) -> Policy:
        return self._talks[session].policy

    def usage(self) -> KvUsage:
        pool = self._engine.pool
        room = pool.room(self._policy, self._engine.max_append)
        return KvUsage(pool.leased, pool.reserved, pool.total, room)

    def _take(self, talk: _Talk, frame: Frame) -> None:
        """Make turns of a frame's texts: at once in a duplex call, else when a reply is asked for."""
        limit = self._profile.model.max_reply
        most = min((frame.most if frame.reply is None else frame.reply) or limit, limit)
        talk.held.extend(frame.texts)
        if self._free or frame.duplex:
            turns = list(talk.held)
        elif frame.reply is not None:
            turns = ["\n".join(talk.held)]
        else:
            while sum(map(len, talk.held)) > MOST_HELD:
                talk.held.popleft()
            return
        talk.held.clear()
        if frame.reply is not None and not self._free:
            turns = turns or [""]
        talk.turns.extend(_Turn(turn, most) for turn in turns)

    def _take_turns(self, talk: _Talk) -> None:
        """Move turns to the inbox: all of them in free mode, else the next one once the reply is over."""
        while talk.turns and (self._free or not talk.speaking):
            turn = talk.turns.popleft()
            talk.inbox += self._chat.turn(turn.text, talk.after)
            talk.speaking, talk.after, talk.stream = True, "answer", self._chat.stream()
            talk.said, talk.most = 0, turn.most

    def _prefill(self, talks: list[_Talk]) -> Generator[TickEvent, None, list[_Talk]]:
        """Append what each session has to read; those that have read all speak. Returns who spoke."""
        most = self._profile.beat.prefill_tokens - 1  # the last sampled token goes in front
        for talk in talks:
            if talk.speaking and not talk.inbox and not self._engine.has_pending(talk.engine_session):
                talk.inbox = list(self._chat.opening)  # cancelled, or lost in a stall: begin the reply anew
        pieces = [talk.inbox[:most] for talk in talks]
        asks = [talk.speaking and len(talk.inbox) <= most for talk in talks]
        output = self._step(talks, pieces, asks, ahead=self._profile.beat.tau > 1)
        speakers = []
        for talk, piece, ask, stalled, token in zip(
            talks, pieces, asks, output.stalled, output.ids, strict=True
        ):
            if stalled:
                yield self._stall(talk)
                continue
            talk.inbox = talk.inbox[most:]
            if piece:
                talk.settled = "answer" if talk.inbox else talk.after
            yield Prefilled(talk.session, len(piece), speaking=ask, unread=talk.unread)
            if token is not None and self._goes_on(talk):
                yield self._say(talk, token)
                speakers.append(talk)
        return speakers

    def _decode(self, speakers: list[_Talk], ahead: bool) -> Generator[TickEvent, None, list[_Talk]]:
        """One token more for those whose reply goes on. Returns who spoke."""
        going = [talk for talk in speakers if self._goes_on(talk)]
        output = self._step(going, [[] for _ in going], [True for _ in going], ahead)
        spoke = []
        for talk, token in zip(going, output.ids, strict=True):
            if not self._goes_on(talk):
                continue  # closed or cancelled while others were being told
            if token is None:
                yield Stalled(talk.session, dropped=0)
            else:
                yield self._say(talk, token)
                spoke.append(talk)
        return spoke

    def _step(self, talks: list[_Talk], pieces: list[list[int]], asks: list[bool], ahead: bool) -> StepOutput:
        ids = torch.tensor([token for piece in pieces for token in piece], dtype=torch.long)
        sessions = [talk.engine_session for talk in talks]
        return self._engine.step(sessions, [len(piece) for piece in pieces], ids, sample=asks, ahead=ahead)

    def _goes_on(self, talk: _Talk) -> bool:
        here = self._talks.get(talk.session) is talk  # not closed, nor opened anew on other terms
        return here and talk.speaking and self._engine.has_pending(talk.engine_session)

    def _say(self, talk: _Talk, token: int) -> Said:
        talk.said += 1
        start = talk.said == 1
        if token in self._chat.ends:
            talk.speaking, talk.after, talk.settled = False, "end", "end"
            return Said(talk.session, "", end=True, start=start)
        end = not self._free and talk.said >= talk.most
        talk.speaking = not end
        return Said(talk.session, talk.stream.text(token), end, start, cut=end)

    def _stall(self, talk: _Talk) -> Stalled:
        """What it was reading is lost; a reply in progress is not, nor is the header."""
        kept = list(talk.beginning) if talk.settled is None else []
        lost, talk.inbox = len(talk.inbox) - len(kept), kept
        talk.after = talk.settled or self._start
        unbegun = talk.speaking and lost > 0 and not self._free
        talk.speaking = talk.speaking and not unbegun
        return Stalled(talk.session, lost, reply=unbegun)


def _load(folder: Path, profile: Profile, kv: torch.dtype | Narrow | None) -> tuple[Decoder, int]:
    """The thinker on the profile's device, where it and its pool fit, and how many blocks that pool gets."""
    device, dtype = device_of(profile.run.device), dtype_of(profile.model.dtype)
    config, size = read_decoder_config(folder), profile.pool.block_size
    taken, block = count_weights(folder) * dtype.itemsize, block_bytes(config, size, dtype)
    if isinstance(kv, Narrow):
        taken, block = taken + kv.pinned * block, block_bytes(config, size, FP8)
    blocks = fit_pool(profile.pool.blocks, taken, block, device)
    return load_decoder(folder, dtype, products_of(profile.model.products), device), blocks
