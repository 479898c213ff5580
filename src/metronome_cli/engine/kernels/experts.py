"""A mixture of experts as two grouped products: no loop over experts, every weight that is needed read once.

Knows:   router logits, the experts' fused weights, which tokens went to which expert.
Ignores: what a token is. The plain twin is `Experts` in decoder.py.

Entries are (token, choice) pairs. `_place` sorts them by expert with one program an expert, each of which
counts for itself: no program waits for another. The products' grids are as large as they may have to be, and
programs of experts that nobody chose end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..decoder import Experts


@triton.jit
def _choose(
    logits, tokens, chosen, weight, EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP: tl.constexpr,
    NORM: tl.constexpr, HAS_PADDING: tl.constexpr,
):  # fmt: skip
    """One token's TOP experts, largest first, and their shares of the softmax over all.

    A token whose shares are no numbers has none that is largest: the first experts, which are there.
    """
    token = tl.program_id(0).to(tl.int64)
    if HAS_PADDING and token >= tl.load(tokens):
        for choice in tl.static_range(TOP):
            tl.store(chosen + token * TOP + choice, EXPERTS)
        return
    expert = tl.arange(0, PADDED)
    x = tl.load(logits + token * EXPERTS + expert, mask=expert < EXPERTS, other=float("-inf")).to(tl.float32)
    share = tl.exp(x - tl.max(x, 0))
    share = share / tl.sum(share, 0)
    is_sound = tl.sum(share, 0) < 2.0
    left = tl.where(expert < EXPERTS, share, -1.0)
    whole = 0.0
    for choice in tl.static_range(TOP):
        best = tl.max(left, 0)
        at = tl.where(is_sound, tl.min(tl.where(left == best, expert, PADDED), 0), choice)
        best = tl.where(is_sound, best, float("nan"))
        tl.store(chosen + token * TOP + choice, at)
        tl.store(weight + token * TOP + choice, best)
        whole += best
        left = tl.where(expert == at, -1.0, left)
    if NORM:
        for choice in tl.static_range(TOP):
            mine = tl.load(weight + token * TOP + choice)
            tl.store(weight + token * TOP + choice, mine / whole)


@triton.jit
def _place(chosen, order, start, entries, TILE: tl.constexpr):
    """One expert's entries, in order, from where those of lower experts end."""
    expert = tl.program_id(0)
    lower, mine = 0, 0
    for tile in range(tl.cdiv(entries, TILE)):
        at = tile * TILE + tl.arange(0, TILE)
        of = tl.load(chosen + at, mask=at < entries, other=1 << 30)
        lower += tl.sum((of < expert).to(tl.int32), 0)
        mine += tl.sum((of == expert).to(tl.int32), 0)
    tl.store(start + expert, lower)
    tl.store(start + expert + 1, lower + mine)  # the next expert writes the same number
    if mine > 0:
        to = lower
        for tile in range(tl.cdiv(entries, TILE)):
            at = tile * TILE + tl.arange(0, TILE)
            is_mine = (tl.load(chosen + at, mask=at < entries, other=1 << 30) == expert).to(tl.int32)
            tl.store(order + to + tl.cumsum(is_mine, 0) - 1, at, mask=is_mine > 0)
            to += tl.sum(is_mine, 0)


@triton.jit
def _gate_up(
    x, weights, order, start, out,
    SIZE: tl.constexpr, INNER: tl.constexpr, TOP: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of one expert's entries, a tile of [M, N]; rows of `out` are in the sorted order."""
    expert = tl.program_id(2)
    begin, end = tl.load(start + expert), tl.load(start + expert + 1)
    first = begin + tl.program_id(1) * M
    if first >= end:
        return
    entry = first + tl.arange(0, M)
    there = entry < end
    token = tl.load(order + entry, mask=there, other=0).to(tl.int64) // TOP
    column = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    weights += expert.to(tl.int64) * 2 * INNER * SIZE
    gate_at = weights + column[None, :] * SIZE + k[:, None]
    up_at = gate_at + INNER * SIZE
    x_at = x + token[:, None] * SIZE + k[None, :]
    gate = tl.zeros([M, N], tl.float32)
    up = tl.zeros([M, N], tl.float32)
    in_columns = (column < INNER)[None, :]
    for _ in range(0, SIZE, K):
        rows = tl.load(x_at, mask=there[:, None], other=0.0)
        gate += tl.dot(rows, tl.load(gate_at, mask=in_columns, other=0.0), input_precision="ieee")
        up += tl.dot(rows, tl.load(up_at, mask=in_columns, other=0.0), input_precision="ieee")
        x_at += K
        gate_at += K
        up_at += K
    # The plain twin rounds the products before it multiplies them.
    gate = gate.to(out.dtype.element_ty).to(tl.float32)
    up = up.to(out.dtype.element_ty).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    out_at = out + entry.to(tl.int64)[:, None] * INNER + column[None, :]
    tl.store(out_at, y.to(out.dtype.element_ty), mask=there[:, None] & in_columns)


@triton.jit
def _down(
    x, weights, order, start, share, out,
    SIZE: tl.constexpr, INNER: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One expert's answer to its entries times their shares; rows of `out` are in the entries' own order."""
    expert = tl.program_id(2)
    begin, end = tl.load(start + expert), tl.load(start + expert + 1)
    first = begin + tl.program_id(1) * M
    if first >= end:
        return
    entry = first + tl.arange(0, M)
    there = entry < end
    column = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    weights += expert.to(tl.int64) * SIZE * INNER
    weight_at = weights + column[None, :] * INNER + k[:, None]
    x_at = x + entry.to(tl.int64)[:, None] * INNER + k[None, :]
    total = tl.zeros([M, N], tl.float32)
    in_columns = (column < SIZE)[None, :]
    for _ in range(0, INNER, K):
        rows = tl.load(x_at, mask=there[:, None], other=0.0)
        total += tl.dot(rows, tl.load(weight_at, mask=in_columns, other=0.0), input_precision="ieee")
        x_at += K
        weight_at += K
    to = tl.load(order + entry, mask=there, other=0).to(tl.int64)
    total *= tl.load(share + to, mask=there, other=0.0)[:, None]
    out_at = out + to[:, None] * SIZE + column[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=there[:, None] & in_columns)


def choose(logits_TX: Tensor, top: int, normed: bool, real: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each token's `top` experts, int32 [T top], largest first, and their shares, float32 [T top].

    `real`, int32 [1]: tokens past so many are padding, and choose number X, which is nobody.
    """
    tokens, count = logits_TX.shape
    chosen = torch.empty(tokens * top, dtype=torch.int32, device=logits_TX.device)
    share = torch.empty(tokens * top, dtype=torch.float32, device=logits_TX.device)
    padded = triton.next_power_of_2(count)
    _choose[(tokens,)](
        logits_TX, chosen if real is None else real, chosen, share, EXPERTS=count, PADDED=padded, TOP=top,
        NORM=normed, HAS_PADDING=real is not None, num_warps=1,
    )  # fmt: skip
    return chosen, share


def experts(x_TE: Tensor, mlp: Experts, real: Tensor | None = None) -> Tensor:
    """[T, top, E]: what each token's experts answer, times their shares; their sum is the layer's.

    E and the experts' inner size are multiples of 64. `real`, int32 [1]: tokens past so many are padding.
    No expert is read for their sake, and what stands in their rows is undefined.
    """
    tokens, size = x_TE.shape
    count, _, inner = mlp.down.shape
    entries = tokens * mlp.top
    chosen, share = choose(torch.nn.functional.linear(x_TE, mlp.router), mlp.top, mlp.normed, real)
    order = torch.empty_like(chosen)
    start = torch.empty(count + 1, dtype=torch.int32, device=x_TE.device)
    _place[(count,)](chosen, order, start, entries, TILE=1024, num_warps=4)
    # A tile of about the entries that an expert has: its weights are then read once.
    mean = entries / count
    rows = 16 if mean <= 12 else 32 if mean <= 48 else 64 if mean <= 192 else 128
    warps = 4 if rows <= 64 else 8
    most = triton.cdiv(tokens, rows)  # one expert may get every token, each once
    y = x_TE.new_empty((entries, inner))
    narrow = 64 if rows <= 64 else 128
    _gate_up[(triton.cdiv(inner, narrow), most, count)](
        x_TE, mlp.gate_up, order, start, y,
        SIZE=size, INNER=inner, TOP=mlp.top, M=rows, N=narrow, K=64, num_warps=warps, num_stages=3,
    )  # fmt: skip
    out = x_TE.new_empty((tokens, mlp.top, size))
    wide = 128
    _down[(triton.cdiv(size, wide), most, count)](
        y, mlp.down, order, start, share, out,
        SIZE=size, INNER=inner, M=rows, N=wide, K=64, num_warps=warps, num_stages=3,
    )  # fmt: skip
    return out
