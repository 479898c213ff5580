"""Sessions on one device: open, step, cancel, close.

Knows:   the decoder, the pool, each session's policy, positions and sampling.
Ignores: text, audio, beats and sockets. One thread calls it.

A sampled token is not in the cache until the next step of its session, which puts it before that
step's own input: the caller never feeds a sampled token back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ..errors import ProfileError
from ..window import Policy, Positions, Recycle
from .blocks import BlockHook, BlockPool
from .decoder import Decoder
from .device import check_kernels, check_narrow, check_row
from .eager import EagerSteps
from .kv_pool import KvPool, Narrow
from .rows import Computed, Row, Session, Steps
from .sampling import Chooser, Sampling


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one step brought, session by session in the order asked."""

    ids: list[int | None]  # the sampled token; None where none was asked for, or the session stalled
    stalled: list[bool]
    appended: list[int]  # tokens that went into the cache, the previously sampled one included
    hidden: Tensor  # [sum(appended), hidden]: final states of what was appended


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that was begun, by the sessions' numbers; `computed`: None when nobody had anything to do."""

    rows: dict[int, Row]
    going: dict[int, Row]  # those of them that append something
    computed: Computed | None

    def sampling(self) -> list[int]:
        """Who samples, in order."""
        return [number for number, row in self.going.items() if row.sample]

    def ids(self) -> dict[int, int]:
        """What they sampled. Waits for the step to be done."""
        return dict(zip(self.sampling(), self.computed.ids(), strict=True)) if self.computed else {}


_NOTHING = _Step({}, {}, None)


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
        kv_dtype: torch.dtype | Narrow | None = None,
        on_release: BlockHook | None = None,
    ) -> None:
        config = decoder.config
        self.decoder = decoder
        self.max_append = max_append
        with decoder.device:
            self.memory = KvPool(
                config.layers, blocks, block_size, config.kv_heads, config.head_dim, kv_dtype or decoder.dtype
            )
        self._steps = _steps(decoder, self.memory)
        if max_append > self._steps.most_of_a_row:
            raise ProfileError("beat.prefill_tokens", max_append, f"use at most {self._steps.most_of_a_row}")
        # Kernels never read what a mask hides; who reads whole blocks wants them clean.
        on_lease = None if self._steps.can_run_ahead else self.memory.wipe
        pinned = kv_dtype.pinned if isinstance(kv_dtype, Narrow) else 0
        self.pool = BlockPool(blocks, block_size, on_lease=on_lease, on_release=on_release, pinned=pinned)
        self._ahead: _Step | None = None  # begun, and not asked for yet
        self._sessions: dict[int, Session] = {}
        self._last_number = 0

    def open(
        self, policy: Policy, positions: Positions = "anchored", sampling: Sampling | None = None
    ) -> int | None:
        """A new session's number, never used twice; None when its bound does not fit the pool now."""
        check_row(policy, self.max_append, self._steps.most_of_a_row)
        lane = self.pool.open(policy, self.max_append)
        if lane is None:
            return None
        self._last_number += 1
        self._sessions[self._last_number] = Session(lane, positions, Chooser(sampling or Sampling()))
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
        ahead: bool = False,
    ) -> StepOutput:
        """Append tokens to sessions and compute them, all in one batch.

        `inputs`: flat, session after session: token ids int64 [sum(lengths)], or embeddings
        [sum(lengths), hidden]. A length of 0 with `sample` decodes on from the last sampled token;
        without, the session rests. `rotary`: integer positions [sum(lengths)] or [sum(lengths), axes];
        by default each session counts on. `sample`: who samples after its last token; by default nobody.
        `ahead`: those who sample are likely to decode on in the next step; where the device allows, it begins
        that step at once. Nothing changes by it, but that a session that does not decode on has its sampled
        token in the cache already.
        A session without blocks stalls alone: its input is dropped and nothing else of it changes.
        ValueError, with nothing changed, when the request does not fit together.
        """
        asked, wanted = sample or [False] * len(sessions), set(sessions)
        self._check(sessions, lengths, inputs, asked)
        step = self._take_up(sessions, lengths, asked)
        if step is None:
            step = self._begin(sessions, lengths, inputs, rotary, asked)
        if ahead and self._steps.can_run_ahead:
            self._run_ahead(step, wanted)
        ids = step.ids()
        for number in wanted & ids.keys():
            self._sessions[number].pending = ids[number]
        self._learn(ids)
        rows = [step.rows[number] for number in sessions]
        return StepOutput(
            ids=[ids.get(number) for number in sessions],
            stalled=[row.stalled for row in rows],
            appended=[0 if row.stalled else row.fresh for row in rows],
            hidden=_hidden(step.going, wanted, step.computed.hidden)
            if step.computed
            else self.decoder.nothing(),
        )

    def _begin(
        self,
        sessions: Sequence[int],
        lengths: Sequence[int],
        inputs: Tensor,
        rotary: Tensor | None,
        sample: Sequence[bool],
    ) -> _Step:
        """Begin what was asked for, whatever was begun ahead."""
        rows = dict(zip(sessions, self._rows(sessions, lengths, inputs, rotary, sample), strict=True))
        self._drop_ahead()  # not before it is known that all of the request can be done
        step = self._compute(rows)
        for row in step.going.values():
            row.session.pending = None
        return step

    def _compute(self, rows: dict[int, Row]) -> _Step:
        for row in rows.values():
            if row.tokens:
                self._make_room(row)
        going = {number: row for number, row in rows.items() if row.tokens and not row.stalled}
        computed = self._steps.begin(list(going.values())) if going else None
        for row in going.values():
            self._settle(row)
        return _Step(rows, going, computed)

    def _run_ahead(self, step: _Step, wanted: set[int]) -> None:
        """Begin the step in which those `wanted` that sample now decode on, before it is known what."""
        if any(_is_full(row.session) for row in step.rows.values()):
            return  # it would take up again what is not known yet
        rows = {}
        for place, number in enumerate(step.sampling()):
            if number in wanted:
                session = self._sessions[number]
                start = session.rotary_end
                rows[number] = Row(session, [0], None, None, start, start + 1, 1, True, after=place)
        self._ahead = self._compute(rows)

    def _learn(self, ids: dict[int, int]) -> None:
        """What rows begun ahead append, now that it is known."""
        for number, row in (self._ahead or _NOTHING).going.items():
            row.ids = [ids[number]]
            self._remember(row)

    def _take_up(
        self, sessions: Sequence[int], lengths: Sequence[int], sample: Sequence[bool]
    ) -> _Step | None:
        """The step begun ahead, if it is what is asked for: that some of its sessions decode on."""
        step = self._ahead
        if step is None or not sessions or any(lengths) or not all(sample):
            return None
        if not all(self._is_ahead(number) for number in sessions):
            return None
        left = step.rows.keys() - set(sessions)
        self._ahead = None
        self._drop([step.rows[number] for number in left])
        return step

    def _is_ahead(self, number: int) -> bool:
        return self._sessions[number].pending is not None and number in (self._ahead or _NOTHING).rows

    def _pending(self, number: int) -> int | None:
        """The sampled token that its next step puts in front: none where a step begun ahead has done so."""
        ahead = (self._ahead or _NOTHING).going
        return None if number in ahead else self._sessions[number].pending

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._drop(list(self._ahead.rows.values()))
            self._ahead = None

    def _drop(self, rows: Sequence[Row]) -> None:
        """Of rows begun ahead: their one token is in the cache, and what they sampled was never said."""
        for row in rows:
            if not row.stalled:
                row.session.pending = None
                row.session.chooser.put_back()

    def _check(
        self, sessions: Sequence[int], lengths: Sequence[int], inputs: Tensor, sample: Sequence[bool]
    ) -> None:
        """ValueError where the parts of a request do not belong together."""
        if not len(sessions) == len(lengths) == len(sample) or len(inputs) != sum(lengths):
            raise ValueError(
                f"{len(sessions)} sessions, {len(lengths)} lengths of {sum(lengths)} in all, "
                f"{len(sample)} sample flags and {len(inputs)} inputs do not fit together"
            )
        if len(set(sessions)) < len(sessions) or not self._sessions.keys() >= set(sessions):
            raise ValueError(f"sessions {list(sessions)}: each must be open and named once")

    def _rows(
        self,
        sessions: Sequence[int],
        lengths: Sequence[int],
        inputs: Tensor,
        rotary: Tensor | None,
        sample: Sequence[bool],
    ) -> list[Row]:
        """The request with sampled tokens put in front. ValueError, with nothing changed, where it cannot be
        done."""
        embedded: Sequence[Tensor | None] = [None] * len(sessions)
        ids: list[list[int]] = [[] for _ in sessions]
        if inputs.is_floating_point():
            embedded = _cut(inputs, lengths)
        else:
            ids = _cut_list(inputs.tolist(), lengths)
        stands = [None] * len(sessions) if rotary is None else _cut(rotary.view(len(inputs), -1), lengths)
        return [
            self._row(number, some, given, stand, asked)
            for number, some, given, stand, asked in zip(sessions, ids, embedded, stands, sample, strict=True)
        ]

    def _row(
        self, number: int, ids: list[int], embedded: Tensor | None, rotary: Tensor | None, sample: bool
    ) -> Row:
        session, pending = self._sessions[number], self._pending(number)
        given = len(ids) if embedded is None else len(embedded)
        if pending is not None and (sample or given):
            ids = [pending, *ids]
        tokens = len(ids) + (given if embedded is not None else 0)
        if sample and not tokens:
            raise ValueError("a session with nothing sampled and nothing to append cannot sample")
        if tokens > self.max_append:
            raise ValueError(f"append of {tokens} tokens; at most {self.max_append} go in one step")
        start, end = session.rotary_end, session.rotary_end + tokens
        if rotary is not None:
            if isinstance(session.lane.policy, Recycle):
                raise ValueError("rotary: a recycled session counts its own positions")
            axes = self.decoder.rope.axes
            counted = torch.arange(start, end - len(rotary)).unsqueeze(1).expand(-1, axes)
            rotary = torch.cat((counted, rotary.expand(-1, axes)))
            end = int(rotary.max()) + 1 if tokens else end
        return Row(session, ids, embedded, rotary, start, end, fresh=tokens, sample=sample)

    def _make_room(self, row: Row) -> None:
        """Lease the row's blocks; a full Recycle session first drops all and takes up what it carries."""
        session = row.session
        policy = session.lane.policy
        if isinstance(policy, Recycle) and session.lane.length + row.tokens > policy.window:
            session.lane.restart()
            session.rotary_end = 0
            recent = session.recent
            if isinstance(recent, list):
                row.ids = recent + row.ids
            else:
                row.embedded, row.ids = torch.cat((recent, row.embed(self.decoder))), []
            row.rotary_start, row.rotary_end = 0, row.tokens
        row.stalled = not session.lane.extend(row.tokens)

    def _settle(self, row: Row) -> None:
        """Once it is begun: blocks behind the window go back, the next step's start is noted."""
        session = row.session
        session.rotary_end = row.rotary_end
        session.lane.retire()
        if row.after is None:
            self._remember(row)

    def _remember(self, row: Row) -> None:
        """Keep the last `carry` of what a recycled session appended, as ids as long as it is ids alone."""
        session = row.session
        if not isinstance(session.lane.policy, Recycle):
            return
        carry = session.lane.policy.carry
        recent = session.recent if row.tokens == row.fresh else []
        if row.embedded is None and isinstance(recent, list):
            session.recent = (recent + row.ids)[-carry:] if carry else []
            return
        before = self.decoder.embed_ids(recent) if isinstance(recent, list) else recent
        held = torch.cat((before, row.embed(self.decoder)))
        session.recent = held[max(0, len(held) - carry) :]


def _steps(decoder: Decoder, memory: KvPool) -> Steps:
    """How steps are computed where `decoder` lives. ProfileError when no kernel is written for it."""
    if decoder.device.type == "cuda":
        check_kernels(decoder.config, memory.keys.dtype)
        from triton import OutOfResources

        from .cuda import CudaSteps

        try:
            return CudaSteps(decoder, memory)
        except OutOfResources as error:  # known when a kernel is first loaded, and no sooner
            cure = f"a kernel needs {error.required} of its {error.name}, and it has {error.limit}"
            cure = f"{cure}; use a smaller pool.block_size, model.dtype = bfloat16, another card or cpu"
            raise ProfileError("run.device", "cuda", cure) from error
    if memory.key_scales is not None:
        check_narrow(decoder.device)
    return EagerSteps(decoder, memory)


def _is_full(session: Session) -> bool:
    """Whether its next token makes a recycled session begin anew."""
    lane = session.lane
    return isinstance(lane.policy, Recycle) and lane.length + 1 > lane.policy.window


def _cut(flat: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Consecutive shares of the given lengths."""
    return list(flat.split(list(lengths))) if lengths else []


def _cut_list(flat: list[int], lengths: Sequence[int]) -> list[list[int]]:
    ends = list(accumulate(lengths))
    return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def _hidden(going: dict[int, Row], wanted: set[int], hidden_TE: Tensor) -> Tensor:
    """States of what those `wanted` appended."""
    if going.keys() <= wanted:
        return _fresh(list(going.values()), hidden_TE)
    # Some of a step begun ahead, of one token each.
    return hidden_TE[[place for place, number in enumerate(going) if number in wanted]]


def _fresh(rows: list[Row], hidden_TE: Tensor) -> Tensor:
    """The states of new tokens: what a recycled session carried was answered before."""
    if all(row.fresh == row.tokens for row in rows):
        return hidden_TE
    shares = _cut(hidden_TE, [row.tokens for row in rows])
    return torch.cat([share[-row.fresh :] for row, share in zip(rows, shares, strict=True)])
