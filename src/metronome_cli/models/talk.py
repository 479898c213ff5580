"""What calls read and say, in lock-step over one windowed engine: the half that every talking model shares.

Knows:   what each call has still to read (ids and embeddings), pieces of it, tau tokens a frame, end tokens.
Ignores: what is to be read and who is to speak (text.py, omni.py), audio, time.

Shape letters: T tokens, E hidden size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..engine.decoder import Decoder
from ..engine.engine import Engine, StepOutput
from ..engine.sampling import Sampling
from ..frame import KvUsage, Prefilled, Refused, Said, SessionId, Stalled, TickEvent
from ..profile import Profile, Terms
from ..window import Policy
from .chat import After, Chat, Stream
from .room import kept_as

Piece = list[int] | Tensor  # token ids, or embeddings [T, E]


class Inbox:
    """What a call has still to append, in order."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self._pieces: deque[Piece] = deque([list(ids)] if ids else [])
        self._waiting = len(ids)

    def __len__(self) -> int:
        return self._waiting

    @property
    def ids(self) -> int:
        """How many of its tokens are ids."""
        return sum(len(piece) for piece in self._pieces if isinstance(piece, list))

    def add(self, piece: Piece) -> None:
        if len(piece):
            self._pieces.append(piece)
            self._waiting += len(piece)

    def take(self, most: int) -> list[Piece]:
        """The first `most` tokens, which are no longer in it."""
        taken: list[Piece] = []
        while most and self._pieces:
            piece = self._pieces.popleft()
            if len(piece) > most:
                self._pieces.appendleft(piece[most:])
                piece = piece[:most]
            taken.append(piece)
            most -= len(piece)
            self._waiting -= len(piece)
        return taken

    def own(self) -> None:
        """Hold what waits in memory of its own: a piece may be a view of what all calls heard in a tick."""
        self._pieces = deque(owned(piece) for piece in self._pieces)


def owned(piece: Piece) -> Piece:
    """`piece` in memory that holds nothing else."""
    if isinstance(piece, list) or piece.untyped_storage().nbytes() == piece.nbytes:
        return piece
    return piece.clone()


@dataclass(slots=True)
class Talk:
    """One session: what it has still to read, and what it is saying."""

    session: SessionId
    engine_session: int
    policy: Policy
    beginning: list[int]  # what it reads before anything else
    stream: Stream
    speaking: bool
    after: After  # what the next turn will follow
    inbox: Inbox = field(init=False)  # to append before it may speak
    settled: After | None = None  # what is in the cache, as `after`; None when nothing is
    said: int = 0  # tokens of the current reply
    most: int = 0  # of them
    rests: bool = False  # it says no more in this frame

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.beginning)


class Talks:
    """All calls of one model over one engine. `blocks`: of its pool, where `pool_blocks` has told how many.

    `rests`: tokens after which a call says no more in a frame, though its reply goes on. `says`: special
    tokens that it may say in mode `free`, beside those.
    ProfileError when one session does not fit the pool, or the engine cannot hold what the profile asks for.
    """

    def __init__(
        self,
        profile: Profile,
        chat: Chat,
        decoder: Decoder,
        rests: frozenset[int] = frozenset(),
        says: frozenset[int] = frozenset(),
        blocks: int | None = None,
    ) -> None:
        self._profile = profile
        self._chat = chat
        self._rests = rests
        self._free = profile.model.mode == "free"
        unsaid = {*chat.special, *chat.ends} - rests - says if self._free else set()
        # What a model has no logit for it cannot say anyhow.
        self._unsaid = tuple(sorted(token for token in unsaid if 0 <= token < decoder.config.vocab))
        self._start: After = "answer" if self._free else "header"
        self._policy = profile.check_fit(len(chat.header))
        self.engine = Engine(
            decoder,
            profile.pool.count if blocks is None else blocks,
            profile.pool.block_size,
            max_append=profile.beat.prefill_tokens,
            kv_dtype=kept_as(profile, self._policy),
        )
        self._live: dict[SessionId, Talk] = {}

    def open(self, session: SessionId, seed: int, terms: Terms) -> Talk | Refused:
        """A new call on its terms, with its header to read; in mode `free` it speaks from then on.

        ProfileError when the profile does not give so much.
        """
        model, chat = self._profile.model, self._chat
        header = chat.header if terms.instructions is None else chat.instruct(terms.instructions)
        policy = self._profile.session_policy(terms, len(chat.header), len(header))
        sampling = Sampling(model.temperature, model.top_p, seed, self._unsaid)
        number = self.engine.open(policy, self._profile.on(terms).window.positions, sampling)
        if number is None:
            return Refused("pool_full")
        beginning = header + (chat.opening if self._free else [])
        talk = Talk(session, number, policy, beginning, chat.stream(), self._free, self._start)
        self._live[session] = talk
        return talk

    def find(self, session: SessionId) -> Talk | None:
        """The call of that number, if it is open."""
        return self._live.get(session)

    def speak(self, talks: list[Talk]) -> Iterator[TickEvent]:
        """One frame: append what each has to read, a piece at most; then those that speak, in lock-step."""
        speakers = yield from self._prefill(talks)
        for left in range(self._profile.beat.tau - 1, 0, -1):
            speakers = yield from self._decode(speakers, ahead=left > 1)
            if not speakers:
                return

    def answer(self, talk: Talk, most: int) -> None:
        """Let a call begin a reply of at most `most` tokens, once it has read its inbox."""
        talk.speaking, talk.after, talk.stream = True, "answer", self._chat.stream()
        talk.said, talk.most = 0, most

    def cancel(self, session: SessionId) -> None:
        """Abandon the reply in progress, if there is one; the cache stays."""
        if (talk := self._live.get(session)) and talk.speaking:
            self.engine.cancel(talk.engine_session)
            talk.speaking, talk.said, talk.stream = self._free, 0, self._chat.stream()

    def close(self, session: SessionId) -> None:
        """Give back a call's blocks; one that is not open is no error."""
        if talk := self._live.pop(session, None):
            self.engine.close(talk.engine_session)

    def blocks(self, session: SessionId) -> int:
        """Blocks that a call holds."""
        talk = self._live.get(session)
        return self.engine.held(talk.engine_session) if talk else 0

    def policy(self, session: SessionId) -> Policy:
        """What an open call is held on."""
        return self._live[session].policy

    def usage(self) -> KvUsage:
        """The pool as it stands."""
        pool = self.engine.pool
        return KvUsage(
            pool.leased, pool.reserved, pool.total, pool.room(self._policy, self.engine.max_append)
        )

    def _prefill(self, talks: list[Talk]) -> Generator[TickEvent, None, list[Talk]]:
        """Append what each session has to read; those that have read all speak. Returns who spoke."""
        most = self._profile.beat.prefill_tokens - 1  # the last sampled token goes in front
        for talk in talks:
            talk.rests = False
            if talk.speaking and not talk.inbox and not self.engine.has_pending(talk.engine_session):
                # Cancelled, or lost in a stall: begin the reply anew.
                talk.inbox.add(list(self._chat.opening))
        pieces = [talk.inbox.take(most) for talk in talks]
        asks = [talk.speaking and not talk.inbox for talk in talks]
        output = self._step(talks, pieces, asks, ahead=self._profile.beat.tau > 1)
        speakers = []
        for talk, piece, ask, stalled, token in zip(
            talks, pieces, asks, output.stalled, output.ids, strict=True
        ):
            count = sum(map(len, piece))
            if stalled:
                yield self._stall(talk, count)
                continue
            if piece:
                talk.settled = "answer" if talk.inbox else talk.after
            yield Prefilled(talk.session, count, speaking=ask)
            if token is not None and self._goes_on(talk):
                yield self._say(talk, token)
                speakers.append(talk)
        return speakers

    def _decode(self, speakers: list[Talk], ahead: bool) -> Generator[TickEvent, None, list[Talk]]:
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

    def _step(
        self, talks: list[Talk], pieces: list[list[Piece]], asks: list[bool], ahead: bool
    ) -> StepOutput:
        sessions = [talk.engine_session for talk in talks]
        lengths = [sum(map(len, piece)) for piece in pieces]
        return self.engine.step(
            sessions,
            lengths,
            self._inputs([some for piece in pieces for some in piece]),
            sample=asks,
            ahead=ahead,
        )

    @torch.inference_mode()
    def _inputs(self, pieces: list[Piece]) -> Tensor:
        """Ids [T], or embeddings [T, E] as soon as there are any among them."""
        ids: list[int] = []
        places: list[int] = []
        embedded: list[Tensor] = []
        for piece in pieces:
            if isinstance(piece, list):
                ids += piece
            else:
                places += range(len(ids), len(ids) + len(piece))
                embedded.append(piece)
                ids += [0] * len(piece)
        if not embedded:
            return torch.tensor(ids, dtype=torch.long)
        decoder = self.engine.decoder
        inputs_TE = decoder.embed_ids(ids)
        inputs_TE[torch.tensor(places, device=decoder.device)] = torch.cat(embedded).to(inputs_TE)
        return inputs_TE

    def _goes_on(self, talk: Talk) -> bool:
        here = self._live.get(talk.session) is talk  # not closed, nor opened anew on other terms
        return here and talk.speaking and not talk.rests and self.engine.has_pending(talk.engine_session)

    def _say(self, talk: Talk, token: int) -> Said:
        talk.said += 1
        start = talk.said == 1
        if token in self._rests:
            talk.rests = True
        elif token in self._chat.ends:
            talk.speaking, talk.after, talk.settled = False, "end", "end"
            return Said(talk.session, "", end=True, start=start)
        end = not self._free and talk.said >= talk.most
        talk.speaking = not end
        return Said(talk.session, talk.stream.text(token), end, start, cut=end)

    def _stall(self, talk: Talk, taken: int) -> Stalled:
        """What it was reading is lost; a reply in progress is not, nor is the header."""
        kept = talk.beginning if talk.settled is None else []
        lost = taken + len(talk.inbox) - len(kept)
        talk.inbox = Inbox(kept)
        talk.after = talk.settled or self._start
        unbegun = talk.speaking and lost > 0 and not self._free
        talk.speaking = talk.speaking and not unbegun
        return Stalled(talk.session, lost, reply=unbegun)
