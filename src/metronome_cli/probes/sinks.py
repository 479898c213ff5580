"""`probe sinks`: how much attention rests on the first tokens of a call, and how many are worth pinning.

Knows:   shares of attention mass by place, layer and head; the rule that makes a suggestion of them.
Ignores: how attention is watched (models/attention_mass.py), files, pictures, terminals.

The rule. A sink draws more attention than an ordinary place: what each of the first 64 places draws above the
median of the places after them is its excess. S is the smallest number of first tokens that hold 95 % of
all that excess, because whoever evicts a sink takes its mass to tokens that were never meant to have it; and
S = 0 when the excess is under 2 % of all attention. It never reaches past the chat header: a pinned
question is answered for ever, and a pinned answer is said again (paper, "Quality").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError

if TYPE_CHECKING:
    from ..models.attention_mass import AttentionMass

KEPT = (1, 2, 4, 8, 16, 32, 64)
STRONG = 0.3  # a head that rests so much on the first k places counts as leaning on them
CURVE = 256  # places on the picture, and up to where ordinary ones are looked for

_ENOUGH = 0.95
_NO_SINK = 0.02
_STRONGEST = 5
_DIGITS = 5  # of what a report keeps of each head


def excerpt(text: str, tokens: int, seed: int) -> str:
    """A seeded part of a text, from a line's beginning on, with room for `tokens` tokens after it."""
    # English has about four characters a token; twice that leaves room for other texts.
    room = len(text) - 8 * tokens
    if room <= 0:
        return text
    start = int(np.random.default_rng(seed).integers(0, room))
    return text[text.find("\n", start, start + 4 * tokens) + 1 or start :]


def results(found: AttentionMass) -> dict[str, Any]:
    """What a report keeps: shares by k, by layer and head, by place, the marks and the suggestion."""
    if found.mass.shape[2] <= CURVE:
        raise FieldError("tokens", found.mass.shape[2], f"use more than {CURVE}")
    place = found.mass.mean((0, 1))
    pinned, why = suggest(place, found.header)
    queries = np.arange(found.first_query, len(place))
    return {
        "tokens": len(place),
        "queries": len(queries),
        "kept": [_kept(found.mass, k, queries) for k in KEPT],
        "heads": {
            str(k): np.round(found.mass[:, :, :k].sum(2), _DIGITS).tolist()
            for k in sorted({pinned or 1, 4, 64})
        },
        "places": np.round(place[:CURVE], _DIGITS + 2).tolist(),
        "strongest": [
            {"place": int(at), "token": found.spelled[at], "share": float(place[at])}
            for at in np.argsort(-place, kind="stable")[:_STRONGEST]
        ],
        "spelled": found.spelled[: KEPT[-1]],
        "marks": {
            "header": found.header,
            "content": found.marks.content,
            "generated": found.marks.generated,
            "text": found.marks.text,
        },
        "suggested": pinned,
        "verdict": why,
    }


def suggest(place: NDArray[np.float64], header: int) -> tuple[int, str]:
    """S and the reason, of the mean share of each place and the header's length in tokens."""
    most = KEPT[-1]
    ordinary = float(np.median(place[most:CURVE]))
    excess = np.maximum(place[:most] - ordinary, 0).cumsum()
    if excess[-1] < _NO_SINK:
        return (
            0,
            f"S = 0: the first {most} places draw only {excess[-1]:.1%} of all attention above others",
        )
    pinned = int(np.argmax(excess >= _ENOUGH * excess[-1])) + 1
    held = f"{excess[min(pinned, header) - 1] / excess[-1]:.0%} of what the first {most} draw above others"
    if pinned > header:
        return header, (
            f"S = {header}, the chat header: it holds {held}; the rest, up to place {pinned - 1}, is "
            "content, which is not to be pinned"
        )
    first = "the first token holds" if pinned == 1 else f"the first {pinned} tokens hold"
    return pinned, f"S = {pinned} or more: {first} {held}; up to {header} pins the chat header and no content"


def _kept(mass: NDArray[np.float64], k: int, queries: NDArray[np.int64]) -> dict[str, Any]:
    share = mass[:, :, :k].sum(2)
    return {
        "k": k,
        "share": float(share.mean()),
        "heads_above": float((share > STRONG).mean()),
        "most": float(share.max()),
        "even": float((k / (queries + 1)).mean()),  # what it would be if every place drew the same
    }
