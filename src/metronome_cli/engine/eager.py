"""Steps computed as the decoder is written, operation by operation: the CPU's way, and others' reference.

Knows:   rows, their layout, rotations and sampling.
Ignores: graphs and kernels of one kind of device (cuda.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention import plan
from .crew import Crew
from .decoder import Decoder
from .kv_pool import KvPool
from .rope import Turns, anchored
from .rows import Row
from .sampling import choose


@dataclass(frozen=True, slots=True)
class Done:
    """A step that is over."""

    hidden: Tensor
    sampled: list[int]

    def ids(self) -> list[int]:
        return self.sampled


class EagerSteps:
    """Steps of one decoder over one pool. No row sees another's keys, so threads compute some rows each."""

    can_run_ahead = False
    most_of_a_row = 2**62  # as many as there is memory for

    def __init__(self, decoder: Decoder, memory: KvPool) -> None:
        self._decoder = decoder
        self._memory = memory
        self._crew = Crew()

    def begin(self, rows: Sequence[Row]) -> Done:
        shares = self._crew.shares([row.tokens for row in rows])
        hidden_TE = torch.cat(self._crew.run(lambda share: self._compute(rows[share]), shares))
        return Done(hidden_TE, self._choose(rows, hidden_TE))

    def _compute(self, rows: Sequence[Row]) -> Tensor:
        lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
        config, rope = self._decoder.config, self._decoder.rope
        layout = plan(lanes, lengths, self._memory, config.heads // config.kv_heads)
        rotary_TA = torch.cat([row.positions(rope.axes) for row in rows])
        is_anchored_T = torch.cat(
            [torch.full((row.tokens,), row.session.positions == "anchored") for row in rows]
        )
        at_sinks_TA = anchored(rotary_TA, layout.index_T, layout.window_T, layout.sinks_T)
        turns = Turns(
            rope.at(rotary_TA), rope.at(torch.where(is_anchored_T.unsqueeze(1), at_sinks_TA, rotary_TA))
        )
        return self._decoder.forward(self._embed(rows), turns, layout, self._memory)

    def _embed(self, rows: Sequence[Row]) -> Tensor:
        """[T, hidden]; ids of all rows at once where there is nothing else."""
        if any(row.embedded is not None for row in rows):
            return torch.cat([row.embed(self._decoder) for row in rows])
        return self._decoder.embed_ids([token for row in rows for token in row.ids])

    def _choose(self, rows: Sequence[Row], hidden_TE: Tensor) -> list[int]:
        ends = torch.tensor([row.tokens for row in rows]).cumsum(0) - 1
        asking = [(row, end) for row, end in zip(rows, ends.tolist(), strict=True) if row.sample]
        if not asking:
            return []
        logits_BV = self._decoder.logits(hidden_TE[[end for _, end in asking]])
        ids: list[int] = choose(logits_BV, [row.session.chooser for row, _ in asking]).tolist()
        return ids
