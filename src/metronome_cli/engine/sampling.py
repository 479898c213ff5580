"""From logits to the next token: greedy, temperature, top-p, each session by its own seed.

Knows:   logits, and one uniform number per row.
Ignores: sessions' caches. A row's choice depends on its own logits and number, not on its neighbours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import ProfileError
from ..profile import LEAST_TOP_P, LEAST_WARM, MOST_WARM


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one session chooses. Temperature 0 is greedy; `suppress` lists ids it never says."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    suppress: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature != 0 and not LEAST_WARM <= self.temperature <= MOST_WARM:
            cure = f"use 0 (greedy), or {LEAST_WARM:g} to {MOST_WARM:g}"
            raise ProfileError("model.temperature", self.temperature, cure)
        if not LEAST_TOP_P <= self.top_p <= 1:
            raise ProfileError("model.top_p", self.top_p, f"use {LEAST_TOP_P:g} to 1")


@dataclass(slots=True)
class Chooser:
    """A session's sampling and where its random numbers have got to."""

    sampling: Sampling
    _random: random.Random = field(init=False)
    _drawn: float | None = field(init=False, default=None)
    _returned: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._random = random.Random(self.sampling.seed)  # noqa: S311 (a dice, not a secret)

    def uniform(self) -> float:
        returned, self._returned = self._returned, None
        self._drawn = self._random.random() if returned is None else returned
        return self._drawn

    def put_back(self) -> None:
        """The last number chose a token that was never said: it will choose the next one."""
        self._returned, self._drawn = self._drawn, None


def choose(logits_BV: Tensor, choosers: list[Chooser]) -> Tensor:
    """One token id per row, int64 [B]."""
    logits_BV = logits_BV.float()
    for suppress in {chooser.sampling.suppress for chooser in choosers} - {()}:
        rows = [row for row, chooser in enumerate(choosers) if chooser.sampling.suppress == suppress]
        logits_BV[torch.tensor(rows).unsqueeze(1), torch.tensor(suppress)] = float("-inf")
    ids_B = logits_BV.argmax(-1)
    warm = [row for row, chooser in enumerate(choosers) if chooser.sampling.temperature > 0]
    if warm:
        ids_B[warm] = _nucleus(logits_BV[warm], [choosers[row] for row in warm])
    return ids_B


def _nucleus(logits_BV: Tensor, choosers: list[Chooser]) -> Tensor:
    temperature_B1, top_p_B1, uniform_B1 = (
        torch.tensor(column, dtype=torch.float32, device=logits_BV.device).unsqueeze(1)
        for column in zip(
            *((c.sampling.temperature, c.sampling.top_p, c.uniform()) for c in choosers), strict=True
        )
    )
    return nucleus(logits_BV / temperature_B1, top_p_B1, uniform_B1)


def nucleus(logits_BV: Tensor, top_p: Tensor | float, uniform_B1: Tensor) -> Tensor:
    """Inverse-CDF draw, in the order of ids, from the smallest set whose probability reaches top-p.

    Of ids that are as likely as the last of that set, all are in it. int64 [B]. `uniform_B1`: float32,
    0 <= u <= 1: a number just below 1 may be rounded to it. Where the sum of all does not pass that share of
    itself, or is none (an infinite logit), it is the likeliest id. Waits for nothing on the host, so that a
    graph can hold it.
    """
    shares_BV = logits_BV.softmax(-1)
    sorted_BV = shares_BV.sort(-1, descending=True).values
    is_beyond_BV = sorted_BV.cumsum(-1) - sorted_BV >= top_p
    least_B1 = sorted_BV.masked_fill(is_beyond_BV, 1.0).amin(-1, keepdim=True)
    shares_BV = torch.where(shares_BV >= least_B1, shares_BV, 0.0)
    reached_BV = shares_BV.cumsum(-1)
    wanted_B1 = uniform_B1 * reached_BV[:, -1:]
    is_past_BV = (reached_BV > wanted_B1) & (shares_BV > 0)
    return torch.where(is_past_BV.any(-1), is_past_BV.to(torch.uint8).argmax(-1), logits_BV.argmax(-1))
