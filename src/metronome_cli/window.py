"""Which tokens of its past a session can still see, and how many blocks that can take.

Knows:   token indexes, the window W, the sinks S, block sizes.
Ignores: tensors, sessions, rotary positions, time.

One definition (design, section 2): a token at index t sees exactly { p < S } and { t-W < p <= t }.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .errors import ProfileError

Positions = Literal["anchored", "absolute"]


@dataclass(frozen=True, slots=True)
class Window:
    """The last `window` tokens (the token itself included) and the first `sinks` ones."""

    window: int
    sinks: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ProfileError("window.window", self.window, "use 1 or more tokens")
        if self.sinks < 0:
            raise ProfileError("window.sinks", self.sinks, "use 0 or more tokens")


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Everything a session ever heard and said."""


@dataclass(frozen=True, slots=True)
class Recycle:
    """At `window` tokens drop all and prefill the last `carry` ones again, at positions 0.. .

    What a server without an engine-side window can do (paper, "The bound"); kept as a baseline.
    """

    window: int
    carry: int = -1  # default: half of the window

    def __post_init__(self) -> None:
        if self.window < 2:
            raise ProfileError("window.window", self.window, "use 2 or more tokens")
        if self.carry == -1:
            object.__setattr__(self, "carry", self.window // 2)
        if not 0 <= self.carry < self.window:
            raise ProfileError(
                "window.carry", self.carry, f"use 0 to {self.window - 1}, less than the window W"
            )


Policy = Window | Unbounded | Recycle

# Wider than any call, so that one formula serves all policies; leaves room to add to it in 64 bits.
EVERYTHING = 2**62


def reach(policy: Policy) -> tuple[int, int]:
    """(W, S) of the attention mask; policies without a sliding window see everything they hold."""
    match policy:
        case Window(window, sinks):
            return window, sinks
        case _:
            return EVERYTHING, 0


def sees(policy: Policy, t: int, p: int) -> bool:
    """Whether the token at index `t` attends to the one at index `p`."""
    window, sinks = reach(policy)
    return 0 <= p <= t and (p < sinks or p > t - window)


def oldest_needed(policy: Policy, length: int) -> int:
    """The smallest index past the sinks that a token at index `length` or later can still see."""
    window, sinks = reach(policy)
    return max(sinks, length - window + 1)


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` consecutive tokens starting at a block's first place."""
    return -(-tokens // block_size)


def most_blocks(policy: Policy, block_size: int, max_append: int) -> int | None:
    """Most blocks a session can ever hold when it appends at most `max_append` tokens at a time.

    None for a policy without a bound. A window's run of blocks starts and ends anywhere in a block,
    hence the one block more than its tokens need (design, section 4).
    """
    match policy:
        case Window(window, sinks):
            return blocks_for(sinks, block_size) + blocks_for(window - 1 + max_append, block_size) + 1
        case Recycle(window, _):
            return blocks_for(window, block_size)
        case Unbounded():
            return None
