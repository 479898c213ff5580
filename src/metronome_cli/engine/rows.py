"""A step's work, session by session, and who computes it.

Knows:   what a session is to the engine, what one step appends to it, the interface of what computes steps.
Ignores: how they are computed (eager.py, cuda.py) and when (engine.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..window import Positions
from .blocks import Lane
from .decoder import Decoder
from .sampling import Chooser


@dataclass(slots=True)
class Session:
    lane: Lane
    positions: Positions
    chooser: Chooser
    pending: int | None = None  # sampled, not yet appended
    rotary_end: int = 0  # where the next token stands unless the caller says otherwise
    # What a Recycle policy will prefill again, at most `carry`: ids, or embeddings once it was given some.
    recent: list[int] | Tensor = field(default_factory=list)


@dataclass(slots=True)
class Row:
    """One session's share of a step: what is appended, and how much of it is new."""

    session: Session
    ids: list[int]  # come first
    embedded: Tensor | None  # [n, hidden]: follow them
    rotary: Tensor | None  # [len, axes]; None: from `rotary_start` on
    rotary_start: int
    rotary_end: int  # where the session's next token will stand
    fresh: int  # the last so many are new; before them a recycled session's carried tokens
    sample: bool
    stalled: bool = False
    after: int | None = None  # its one token is what this row of the step before samples, not yet known

    @property
    def tokens(self) -> int:
        return len(self.ids) + (0 if self.embedded is None else len(self.embedded))

    def embed(self, decoder: Decoder) -> Tensor:
        """All of it as embeddings [tokens, hidden]."""
        ids = decoder.embed_ids(self.ids)
        return ids if self.embedded is None else torch.cat((ids, self.embedded))

    def positions(self, axes: int) -> Tensor:
        """Rotary positions [tokens, axes]."""
        if self.rotary is not None:
            return self.rotary
        return torch.arange(self.rotary_start, self.rotary_end).unsqueeze(1).expand(-1, axes)


class Computed(Protocol):
    """A step that was begun, and may still be going on."""

    @property
    def hidden(self) -> Tensor:
        """Final hidden states [T, hidden] of all rows; their keys and values are in the pool after."""
        ...

    def ids(self) -> list[int]:
        """Of the rows that sample, in order, what they sampled. Waits for the step to be done."""
        ...


class Steps(Protocol):
    """Computes steps, one after the other."""

    can_run_ahead: bool  # whether a step can begin whose tokens the step before has not sampled yet
    most_of_a_row: int  # tokens

    def begin(self, rows: Sequence[Row]) -> Computed:
        """Compute `rows`, whose lanes have just been extended; at least one."""
        ...
