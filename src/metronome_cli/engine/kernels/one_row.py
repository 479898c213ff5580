"""Products of one row, which take as long as reading their weights does.

Knows:   RMSNorm before a product; bias, SwiGLU or a residual after it; experts one by one.
Ignores: what the weights mean. The plain twins are `Linear`, `Mlp` and `Experts` in decoder.py.

The matrix units would idle here, and libraries written around them read weights at 0.8 to 0.9 of what a
plain read reaches. A program holds whole tiles of products in its registers and adds them up at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ..decoder import Experts
from .experts import choose
from .pointwise import add_norm

# Columns and depth of a tile, and warps, as measured (docs/log.md).
_GATED, _GATED_OF_EXPERTS = (4, 1024, 4), (1, 1024, 2)
_MANY_COLUMNS = 8192  # of programs that would all compute the same norm: one kernel does it sooner


@triton.jit
def _product(
    x, norm, weights, bias, chosen, out, eps,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    HAS_EXPERTS: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """N columns; with experts, of the one that program_id(1) says."""
    column = tl.program_id(0) * N + tl.arange(0, N)
    if HAS_EXPERTS:
        entry = tl.program_id(1)
        weights += tl.load(chosen + entry).to(tl.int64) * (2 * COLUMNS if GATED else COLUMNS) * SIZE
        out += entry * COLUMNS
    there = (column < COLUMNS)[:, None]
    at = weights + column.to(tl.int64)[:, None] * SIZE
    total = tl.zeros([N, K], tl.float32)
    total_up = tl.zeros([N, K], tl.float32)
    squares = tl.zeros([K], tl.float32)
    for first in tl.static_range(0, SIZE, K):
        k = first + tl.arange(0, K)
        inside = k < SIZE
        some = tl.load(x + k, mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += some * some
            some *= tl.load(norm + k, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(at + k[None, :], mask=there & inside[None, :], other=0.0)
        total += some[None, :] * weight.to(tl.float32)
        if GATED:
            weight = tl.load(at + COLUMNS * SIZE + k[None, :], mask=there & inside[None, :], other=0.0)
            total_up += some[None, :] * weight.to(tl.float32)
    y = tl.sum(total, 1)
    scale = tl.rsqrt(tl.sum(squares, 0) / SIZE + eps)
    if HAS_NORM:
        y *= scale
    if GATED:
        up = tl.sum(total_up, 1)
        if HAS_NORM:
            up *= scale
        y = y * tl.sigmoid(y) * up
    shown = column < COLUMNS
    if HAS_BIAS:
        y += tl.load(bias + column, mask=shown, other=0.0).to(tl.float32)
    if ADDS:
        y += tl.load(out + column, mask=shown, other=0.0).to(tl.float32)
    tl.store(out + column, y.to(out.dtype.element_ty), mask=shown)


@triton.jit
def _down(
    x, weights, chosen, share, out,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """N columns of what the row's experts answer, times their shares, added to `out`."""
    column = tl.program_id(0) * N + tl.arange(0, N)
    there = (column < COLUMNS)[:, None]
    total = tl.zeros([N, K], tl.float32)
    for choice in tl.static_range(TOP):
        at = weights + (tl.load(chosen + choice).to(tl.int64) * COLUMNS + column.to(tl.int64)[:, None]) * SIZE
        mine = tl.load(share + choice)
        for first in tl.static_range(0, SIZE, K):
            k = first + tl.arange(0, K)
            some = tl.load(x + choice * SIZE + k, mask=k < SIZE, other=0.0).to(tl.float32) * mine
            weight = tl.load(at + k[None, :], mask=there & (k < SIZE)[None, :], other=0.0)
            total += some[None, :] * weight.to(tl.float32)
    shown = column < COLUMNS
    y = tl.sum(total, 1) + tl.load(out + column, mask=shown, other=0.0).to(tl.float32)
    tl.store(out + column, y.to(out.dtype.element_ty), mask=shown)


def product(
    x_1K: Tensor,
    weight_NK: Tensor,
    *,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    gated: bool = False,
    to: Tensor | None = None,
) -> Tensor:
    """[1, N] of x [1, K] with `weight_NK`, N rows of K, or gate and up, 2N of them.

    `norm`: weight [K] and epsilon of an RMSNorm that x goes through first. `to` [1, N]: what the product is
    added to, in place.
    """
    size = x_1K.shape[1]
    columns = len(weight_NK) // (2 if gated else 1)
    out_1N = x_1K.new_empty((1, columns)) if to is None else to
    if norm is not None and not gated and columns > _MANY_COLUMNS:
        x_1K, norm = add_norm(x_1K, None, *norm), None
    wide, deep, warps = _GATED if gated else _shape(size, adds=to is not None)
    _product[(triton.cdiv(columns, wide), 1)](
        x_1K, norm[0] if norm else x_1K, weight_NK, x_1K if bias is None else bias, x_1K, out_1N,
        norm[1] if norm else 0.0, SIZE=size, COLUMNS=columns, N=wide, K=deep, HAS_EXPERTS=False,
        HAS_NORM=norm is not None, HAS_BIAS=bias is not None, GATED=gated, ADDS=to is not None,
        num_warps=warps,
    )  # fmt: skip
    return out_1N


def add_experts(hidden_1E: Tensor, norm: tuple[Tensor, float], mlp: Experts) -> None:
    """Add to `hidden_1E` in place what its normed row's experts answer."""
    size, inner = hidden_1E.shape[1], mlp.down.shape[2]
    chosen, share = choose(product(hidden_1E, mlp.router, norm=norm), mlp.top, mlp.normed)
    y = hidden_1E.new_empty((mlp.top, inner))
    wide, deep, warps = _GATED_OF_EXPERTS
    _product[(triton.cdiv(inner, wide), mlp.top)](
        hidden_1E, norm[0], mlp.gate_up, hidden_1E, chosen, y, norm[1],
        SIZE=size, COLUMNS=inner, N=wide, K=deep, HAS_EXPERTS=True,
        HAS_NORM=True, HAS_BIAS=False, GATED=True, ADDS=False, num_warps=warps,
    )  # fmt: skip
    wide, deep = 2, 256
    _down[(triton.cdiv(size, wide),)](
        y, mlp.down, chosen, share, hidden_1E, SIZE=inner, COLUMNS=size, N=wide, K=deep, TOP=mlp.top,
        num_warps=1,
    )  # fmt: skip


def _shape(size: int, adds: bool) -> tuple[int, int, int]:
    """Columns and depth of a tile, and warps, for a product without a gate."""
    if size > 8192:
        return 2, 1024, 4
    if adds:
        return 4, 512, 2
    return (4, 1024, 2) if size <= 2048 else (2, 2048, 4)
