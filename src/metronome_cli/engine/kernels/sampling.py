"""The next token of every row, chosen on the device: greedy, or by temperature and top-p.

Knows:   logits, and a row's temperature, top-p, uniform number and what it may not say.
Ignores: sessions. The plain twin is `choose` in engine/sampling.py.

One program a row, which goes over its logits several times: they lie in the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_HALVINGS = 30  # of the range in which the smallest kept weight is looked for


@triton.jit
def _read(row_logits, banned, tile, VOCAB: tl.constexpr, TILE: tl.constexpr):
    at = tile * TILE + tl.arange(0, TILE)
    x = tl.load(row_logits + at, mask=at < VOCAB, other=float("-inf")).to(tl.float32)
    return at, tl.where(tl.load(banned + at, mask=at < VOCAB, other=1) != 0, float("-inf"), x)


@triton.jit
def _sample(
    logits, banned, ban, settings, out, VOCAB: tl.constexpr, TILE: tl.constexpr, HALVINGS: tl.constexpr
):
    """`settings` [R, 3]: temperature (0: greedy), top-p, uniform number. `ban` [R]: a row of `banned`."""
    row = tl.program_id(0).to(tl.int64)
    row_logits = logits + row * VOCAB
    banned += tl.load(ban + row).to(tl.int64) * VOCAB
    temperature = tl.load(settings + row * 3)
    tiles: tl.constexpr = (VOCAB + TILE - 1) // TILE
    best = float("-inf")
    chosen = VOCAB
    for tile in range(tiles):
        at, x = _read(row_logits, banned, tile, VOCAB, TILE)
        high = tl.max(x, 0)
        if high > best:
            best = high
            chosen = tl.min(tl.where(x == high, at, VOCAB), 0)
    if temperature > 0:
        top_p = tl.load(settings + row * 3 + 1)
        uniform = tl.load(settings + row * 3 + 2)
        whole = 0.0
        for tile in range(tiles):
            at, x = _read(row_logits, banned, tile, VOCAB, TILE)
            whole += tl.sum(tl.exp((x - best) / temperature), 0)
        # The smallest set that reaches top-p holds all weights above some bound: halve the range it lies in.
        low, high = 0.0, 1.0
        kept = whole
        if top_p < 1:
            for _ in range(HALVINGS):
                middle = (low + high) / 2
                above = 0.0
                for tile in range(tiles):
                    at, x = _read(row_logits, banned, tile, VOCAB, TILE)
                    weight = tl.exp((x - best) / temperature)
                    above += tl.sum(tl.where(weight > middle, weight, 0.0), 0)
                if above >= top_p * whole:
                    low = middle
                    kept = above
                else:
                    high = middle
        wanted = uniform * kept
        passed = 0.0
        found = VOCAB
        for tile in range(tiles):
            at, x = _read(row_logits, banned, tile, VOCAB, TILE)
            weight = tl.exp((x - best) / temperature)
            weight = tl.where(weight > low, weight, 0.0)
            reached = passed + tl.cumsum(weight, 0)
            here = tl.min(tl.where((reached > wanted) & (weight > 0), at, VOCAB), 0)
            found = tl.minimum(found, here)
            passed += tl.sum(weight, 0)
        chosen = tl.where(found < VOCAB, found, chosen)
    tl.store(out + row, chosen.to(tl.int64))


def sample(logits_RV: Tensor, banned_SV: Tensor, ban_R: Tensor, settings_R3: Tensor, out_R: Tensor) -> None:
    """Write each row's token to `out_R`, int64.

    `banned_SV` uint8: sets of ids, 1 where an id may not be said; `ban_R` int32: each row's set.
    """
    rows, vocab = logits_RV.shape
    _sample[(rows,)](
        logits_RV,
        banned_SV,
        ban_R,
        settings_R3,
        out_R,
        VOCAB=vocab,
        TILE=4096,
        HALVINGS=_HALVINGS,
        num_warps=8,
    )
