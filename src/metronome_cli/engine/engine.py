"""Sessions on one device: open, step, cancel, close.

Knows:   the decoder, the pool, each session's policy, positions and sampling.
Ignores: text, audio, beats and sockets. One thread calls it.

A sampled token is not in the cache until the next step of its session, which puts it before that
step's own input: the caller never feeds a sampled token back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ProfileError
from ..window import Policy, Positions, Recycle
from .attention import plan
from .blocks import BlockHook, BlockPool, Lane
from .crew import Crew
from .decoder import Decoder
from .kv_pool import KvPool
from .rope import Turns, anchored
from .sampling import Chooser, Sampling, choose


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step brought, session by session in the order asked."""

    ids: list[int | None]  # the sampled token; None where none was asked for, or the session stalled
    stalled: list[bool]
    appended: list[int]  # tokens that went into the cache, the previously sampled one included
    hidden: Tensor  # [sum(appended), hidden]: final states of what was appended


@dataclass(slots=True)
class _Session:
    lane: Lane
    positions: Positions
    chooser: Chooser
    pending: int | None = None  # sampled, not yet appended
    rotary_end: int = 0  # where the next token stands unless the caller says otherwise
    recent: Tensor | None = None  # [<= carry, hidden]: what a Recycle policy will prefill again


@dataclass(slots=True)
class _Row:
    """One session's share of a step: what is appended, and how much of it is new."""

    session: _Session
    embeddings: Tensor  # [n, hidden]
    rotary: Tensor  # [n, axes]
    rotary_end: int  # where the session's next token will stand
    fresh: int  # the last so many are new; before them a recycled session's carried tokens
    sample: bool
    stalled: bool = False

    def __len__(self) -> int:
        return len(self.embeddings)


class Engine:
    """The windowed engine (design, section 4; paper, "The bound").

    `max_append` is the most tokens a session may append in one step, its sampled one included.
    """

    def __init__(
        self,
        decoder: Decoder,
        blocks: int,
        block_size: int,
        max_append: int,
        kv_dtype: torch.dtype | None = None,
        on_release: BlockHook | None = None,
    ) -> None:
        config = decoder.config
        self.decoder = decoder
        self.max_append = max_append
        self.memory = KvPool(
            config.layers, blocks, block_size, config.kv_heads, config.head_dim, kv_dtype or decoder.dtype
        )
        self.pool = BlockPool(blocks, block_size, on_lease=self.memory.wipe, on_release=on_release)
        self._crew = Crew()
        self._sessions: dict[int, _Session] = {}
        self._last_number = 0

    def open(
        self, policy: Policy, positions: Positions = "anchored", sampling: Sampling | None = None
    ) -> int | None:
        """A new session's number, never used twice; None when its bound does not fit the pool now."""
        if isinstance(policy, Recycle) and policy.carry + self.max_append > policy.window:
            raise ProfileError("window.carry", policy.carry, f"use at most {policy.window - self.max_append}")
        lane = self.pool.open(policy, self.max_append)
        if lane is None:
            return None
        self._last_number += 1
        self._sessions[self._last_number] = _Session(lane, positions, Chooser(sampling or Sampling()))
        return self._last_number

    def cancel(self, session: int) -> None:
        """Forget the token that was sampled and is not yet in the cache; the cache stays."""
        self._sessions[session].pending = None

    def close(self, session: int) -> None:
        """Give back the session's blocks. Closing twice is no error."""
        if (found := self._sessions.pop(session, None)) is not None:
            found.lane.close()

    def held(self, session: int) -> int:
        """Blocks the session holds."""
        return self._sessions[session].lane.held

    def has_pending(self, session: int) -> bool:
        """Whether a sampled token waits to be appended, so that the session can decode on without input."""
        return self._sessions[session].pending is not None

    @torch.inference_mode()
    def step(
        self,
        sessions: Sequence[int],
        lengths: Sequence[int],
        inputs: Tensor,
        *,
        rotary: Tensor | None = None,
        sample: Sequence[bool] | None = None,
    ) -> StepOutput:
        """Append tokens to sessions and compute them, all in one batch.

        `inputs`: flat, session after session: token ids int64 [sum(lengths)], or embeddings
        [sum(lengths), hidden]. A length of 0 with `sample` decodes on from the last sampled token;
        without, the session rests. `rotary`: integer positions [sum(lengths)] or [sum(lengths), axes];
        by default each session counts on. `sample`: who samples after its last token; by default nobody.
        A session without blocks stalls alone: its input is dropped and nothing else of it changes.
        ValueError, with nothing changed, when the request does not fit together.
        """
        rows = self._rows(sessions, lengths, inputs, rotary, sample or [False] * len(sessions))
        for row in rows:
            if len(row):
                self._make_room(row)
        going = [row for row in rows if len(row) and not row.stalled]
        hidden_TE = self._compute(going) if going else self.decoder.nothing()
        ids = self._choose(going, hidden_TE)
        for row in going:
            self._settle(row, ids.get(id(row)))
        return StepOutput(
            ids=[ids.get(id(row)) for row in rows],
            stalled=[row.stalled for row in rows],
            appended=[0 if row.stalled else row.fresh for row in rows],
            hidden=_fresh(going, hidden_TE),
        )

    def _rows(
        self,
        sessions: Sequence[int],
        lengths: Sequence[int],
        inputs: Tensor,
        rotary: Tensor | None,
        sample: Sequence[bool],
    ) -> list[_Row]:
        """The request, checked whole before anything changes, with sampled tokens put in front."""
        if not len(sessions) == len(lengths) == len(sample) or len(inputs) != sum(lengths):
            raise ValueError(
                f"{len(sessions)} sessions, {len(lengths)} lengths of {sum(lengths)} in all, "
                f"{len(sample)} sample flags and {len(inputs)} inputs do not fit together"
            )
        if len(set(sessions)) < len(sessions) or not self._sessions.keys() >= set(sessions):
            raise ValueError(f"sessions {list(sessions)}: each must be open and named once")
        embedded = inputs if inputs.is_floating_point() else self.decoder.embed(inputs)
        shares = _cut(embedded, lengths)
        stands = [None] * len(sessions) if rotary is None else _cut(rotary.view(len(inputs), -1), lengths)
        return [
            self._row(self._sessions[number], share, stand, asked)
            for number, share, stand, asked in zip(sessions, shares, stands, sample, strict=True)
        ]

    def _row(self, session: _Session, share: Tensor, rotary: Tensor | None, sample: bool) -> _Row:
        pending = session.pending is not None and (sample or len(share) > 0)
        if pending:
            share = torch.cat((self.decoder.embed(torch.tensor([session.pending])), share))
        if sample and not len(share):
            raise ValueError("a session with nothing sampled and nothing to append cannot sample")
        if len(share) > self.max_append:
            raise ValueError(f"append of {len(share)} tokens; at most {self.max_append} go in one step")
        end = session.rotary_end + len(share)
        counted = torch.arange(session.rotary_end, end)
        counted = counted.unsqueeze(1).expand(-1, self.decoder.rope.axes)
        if rotary is not None:
            if isinstance(session.lane.policy, Recycle):
                raise ValueError("rotary: a recycled session counts its own positions")
            counted = torch.cat((counted[: len(share) - len(rotary)], rotary.expand(-1, counted.shape[1])))
            end = int(counted.max()) + 1 if len(counted) else end
        return _Row(session, share, counted, end, len(share), sample)

    def _make_room(self, row: _Row) -> None:
        """Lease the row's blocks; a full Recycle session first drops all and takes up what it carries."""
        session = row.session
        policy = session.lane.policy
        if isinstance(policy, Recycle) and session.lane.length + len(row) > policy.window:
            session.lane.restart()
            session.rotary_end = 0
            if session.recent is not None:
                row.embeddings = torch.cat((session.recent, row.embeddings))
            row.rotary = torch.arange(len(row)).unsqueeze(1).expand(-1, self.decoder.rope.axes)
            row.rotary_end = len(row)
        row.stalled = not session.lane.extend(len(row))

    def _compute(self, rows: list[_Row]) -> Tensor:
        """Final hidden states [T, hidden] of all rows; their keys and values are in the pool after.

        No row sees another's keys, so threads can compute some rows each.
        """
        shares = self._crew.shares([len(row) for row in rows])
        return torch.cat(self._crew.run(lambda share: self._compute_share(rows[share]), shares))

    def _compute_share(self, rows: list[_Row]) -> Tensor:
        lanes, lengths = [row.session.lane for row in rows], [len(row) for row in rows]
        config = self.decoder.config
        layout = plan(lanes, lengths, self.memory, config.heads // config.kv_heads)
        rotary_TA = torch.cat([row.rotary for row in rows])
        is_anchored_T = torch.cat(
            [torch.full((len(row),), row.session.positions == "anchored") for row in rows]
        )
        at_sinks_TA = anchored(rotary_TA, layout.index_T, layout.window_T, layout.sinks_T)
        rope = self.decoder.rope
        turns = Turns(
            rope.at(rotary_TA), rope.at(torch.where(is_anchored_T.unsqueeze(1), at_sinks_TA, rotary_TA))
        )
        return self.decoder.forward(torch.cat([row.embeddings for row in rows]), turns, layout, self.memory)

    def _choose(self, rows: list[_Row], hidden_TE: Tensor) -> dict[int, int]:
        """The sampled token of each row that asked for one, by the row's identity."""
        ends = torch.tensor([len(row) for row in rows]).cumsum(0) - 1
        asking = [(row, end) for row, end in zip(rows, ends.tolist(), strict=True) if row.sample]
        if not asking:
            return {}
        logits_BV = self.decoder.logits(hidden_TE[[end for _, end in asking]])
        ids = choose(logits_BV, [row.session.chooser for row, _ in asking]).tolist()
        return {id(row): token for (row, _), token in zip(asking, ids, strict=True)}

    def _settle(self, row: _Row, sampled: int | None) -> None:
        """After the step: blocks behind the window go back, the next step's start is noted."""
        session = row.session
        session.pending = sampled
        session.rotary_end = row.rotary_end
        session.lane.retire()
        if isinstance(session.lane.policy, Recycle):
            held = (
                row.embeddings
                if session.recent is None or len(row) > row.fresh
                else torch.cat((session.recent, row.embeddings))
            )
            session.recent = held[max(0, len(held) - session.lane.policy.carry) :]


def _cut(flat: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Consecutive shares of the given lengths."""
    return list(flat.split(list(lengths))) if lengths else []


def _fresh(rows: list[_Row], hidden_TE: Tensor) -> Tensor:
    """The states of new tokens: what a recycled session carried was answered before."""
    if all(row.fresh == len(row) for row in rows):
        return hidden_TE
    shares = _cut(hidden_TE, [len(row) for row in rows])
    return torch.cat([share[-row.fresh :] for row, share in zip(rows, shares, strict=True)])
