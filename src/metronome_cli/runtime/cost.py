"""What a tick costs, as a line in what it has to do.

Knows:   calls, resident blocks and tokens of a tick, how far ticks lay from the line, a file that tells it.
Ignores: how the line was fitted (fit/capacity.py), and who asks.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import msgspec

from ..errors import ProfileError
from ..files import read_whole

HELD_OUT = 0.1  # most error of a prediction for an N that was left out, of a fit that is to be relied on
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
_MOST_BYTES = 16 * 2**20


class Cost(msgspec.Struct, frozen=True):
    """Seconds of a tick with calls: fixed_s + session_s n + block_s blocks + token_in_s in + token_out_s out.

    `ratios` are quantiles, evenly spaced from the 0th to the 100th, of what a tick took over what the line
    says; one alone stands for all.
    """

    fixed_s: _Amount
    session_s: _Amount
    block_s: _Amount = 0.0
    token_in_s: _Amount = 0.0
    token_out_s: _Amount = 0.0
    ratios: Annotated[tuple[_Amount, ...], msgspec.Meta(min_length=1)] = (1.0,)

    def seconds(self, sessions: float, blocks: float, tokens_in: float, tokens_out: float) -> float:
        """The line itself. All counts are of the whole tick; blocks are those held when it is over."""
        return (
            self.fixed_s
            + self.session_s * sessions
            + self.block_s * blocks
            + self.token_in_s * tokens_in
            + self.token_out_s * tokens_out
        )

    def ratio(self, share: float) -> float:
        """The quantile at `share`, 0..1, of what ticks took over the line."""
        place = share * (len(self.ratios) - 1)
        below = self.ratios[int(place)]
        return below + (self.ratios[math.ceil(place)] - below) * (place - int(place))


class PerSession(msgspec.Struct, frozen=True):
    """Tokens that one session brought to a tick and said in it, in the mean."""

    tokens_in: _Amount
    tokens_out: _Amount


class Fitted(msgspec.Struct, frozen=True):
    """What `metronome fit capacity --json` prints, as far as a simulator needs it."""

    cost: Cost
    per_session: PerSession
    worst_error: _Amount = 0.0  # of every N, told from the others: a share of what was measured


def read_fitted(path: Path) -> Fitted:
    """FieldError names the file, and the field that is missing or wrong."""
    try:
        return msgspec.json.decode(read_whole(path, "cost", _MOST_BYTES), type=Fitted)
    except (msgspec.MsgspecError, RecursionError) as error:
        cure = f"give a file that `metronome fit capacity --json` printed ({error})"
        raise ProfileError("cost", str(path), cure) from None
