"""The next token of every row, chosen on the device: greedy, or by temperature and top-p.

Knows:   logits, and a row's temperature, top-p, uniform number and what it may not say.
Ignores: sessions. The plain twin is `choose` in engine/sampling.py.

One program a row, which goes over its logits several times: they lie in the cache. What a pass looks for is
kept for each place of a tile and put together at its end, so that no tile waits for the one before.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_QUARTERINGS = 15  # of the range in which the smallest kept weight is looked for
_LOG2_E = 1.4426950408889634


@triton.jit
def _read(row_logits, banned, has_banned, tile, VOCAB: tl.constexpr, TILE: tl.constexpr):
    at = tile * TILE + tl.arange(0, TILE)
    x = tl.load(row_logits + at, mask=at < VOCAB, other=float("-inf")).to(tl.float32)
    is_banned = tl.load(banned + at, mask=(at < VOCAB) & has_banned, other=0) != 0
    return at, tl.where(is_banned, float("-inf"), x)


@triton.jit
def _bound(
    row_logits, banned, has_banned, best, scale, whole, top_p,
    VOCAB: tl.constexpr, TILE: tl.constexpr, QUARTERINGS: tl.constexpr,
):  # fmt: skip
    """What every weight of the smallest set that reaches top-p lies above, and the sum of those weights."""
    low, width, kept = 0.0, 1.0, whole
    for _quartering in range(QUARTERINGS):
        width /= 4
        above_1 = tl.zeros([TILE], tl.float32)
        above_2 = tl.zeros([TILE], tl.float32)
        above_3 = tl.zeros([TILE], tl.float32)
        for tile in tl.range((VOCAB + TILE - 1) // TILE, loop_unroll_factor=4):
            _at, x = _read(row_logits, banned, has_banned, tile, VOCAB, TILE)
            weight = tl.exp2((x - best) * scale)
            above_1 += tl.where(weight > low + width, weight, 0.0)
            above_2 += tl.where(weight > low + 2 * width, weight, 0.0)
            above_3 += tl.where(weight > low + 3 * width, weight, 0.0)
        sum_1, sum_2, sum_3 = tl.sum(above_1, 0), tl.sum(above_2, 0), tl.sum(above_3, 0)
        if sum_3 >= top_p * whole:
            low += 3 * width
            kept = sum_3
        elif sum_2 >= top_p * whole:
            low += 2 * width
            kept = sum_2
        elif sum_1 >= top_p * whole:
            low += width
            kept = sum_1
    return low, kept


@triton.jit
def _draw(row_logits, banned, has_banned, best, scale, low, wanted, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """The id at which the sum of weights above `low`, in the order of ids, passes `wanted`; VOCAB if none."""
    passed, drawn = 0.0, VOCAB
    for tile in range((VOCAB + TILE - 1) // TILE):
        at, x = _read(row_logits, banned, has_banned, tile, VOCAB, TILE)
        weight = tl.exp2((x - best) * scale)
        weight = tl.where(weight > low, weight, 0.0)
        reached = passed + tl.sum(weight, 0)
        if (reached > wanted) & (drawn == VOCAB):
            is_past = (passed + tl.cumsum(weight, 0) > wanted) & (weight > 0)
            drawn = tl.min(tl.where(is_past, at, VOCAB), 0)
        passed = reached
    return drawn


@triton.jit
def _sample(
    logits, banned, ban, settings, out,
    VOCAB: tl.constexpr, TILE: tl.constexpr, QUARTERINGS: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """`settings` [R, 3]: temperature (0: greedy), top-p, uniform number. `ban` [R]: a row of `banned`, of
    which the first bans nothing."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * VOCAB
    number = tl.load(ban + row)
    has_banned = number != 0
    banned += number.to(tl.int64) * VOCAB
    highest = tl.full([TILE], float("-inf"), tl.float32)
    found_in = tl.zeros([TILE], tl.int32)
    for tile in tl.range((VOCAB + TILE - 1) // TILE, loop_unroll_factor=4):
        _at, x = _read(row_logits, banned, has_banned, tile, VOCAB, TILE)
        found_in = tl.where(x > highest, tile, found_in)
        highest = tl.maximum(x, highest)
    best = tl.max(highest, 0)
    chosen = tl.min(tl.where(highest == best, found_in * TILE + tl.arange(0, TILE), VOCAB), 0)
    temperature = tl.load(settings + row * 3)
    if temperature > 0:
        top_p = tl.load(settings + row * 3 + 1)
        uniform = tl.load(settings + row * 3 + 2)
        scale = LOG2_E / temperature
        weights = tl.zeros([TILE], tl.float32)
        for tile in tl.range((VOCAB + TILE - 1) // TILE, loop_unroll_factor=4):
            _at, x = _read(row_logits, banned, has_banned, tile, VOCAB, TILE)
            weights += tl.exp2((x - best) * scale)
        whole = tl.sum(weights, 0)
        low, kept = 0.0, whole
        if top_p < 1:
            low, kept = _bound(
                row_logits, banned, has_banned, best, scale, whole, top_p, VOCAB, TILE, QUARTERINGS
            )
        drawn = _draw(row_logits, banned, has_banned, best, scale, low, uniform * kept, VOCAB, TILE)
        chosen = tl.where(drawn < VOCAB, drawn, chosen)
    tl.store(out + row, chosen.to(tl.int64))


def sample(logits_RV: Tensor, banned_SV: Tensor, ban_R: Tensor, settings_R3: Tensor, out_R: Tensor) -> None:
    """Write each row's token to `out_R`, int64.

    `banned_SV` uint8: sets of ids, 1 where an id may not be said, the first of them empty; `ban_R` int32:
    each row's set.
    """
    rows, vocab = logits_RV.shape
    _sample[(rows,)](
        logits_RV,
        banned_SV,
        ban_R,
        settings_R3,
        out_R,
        VOCAB=vocab,
        TILE=8192,
        QUARTERINGS=_QUARTERINGS,
        LOG2_E=_LOG2_E,
        num_warps=16,
    )
