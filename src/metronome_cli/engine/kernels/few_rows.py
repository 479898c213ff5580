"""Products of one to four rows, which take as long as reading their weights does.

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

FEW = 4  # rows: with more, the matrix units win (docs/log.md)


@triton.jit
def _product(
    x, norm, weights, bias, chosen, out, eps,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    TOP: tl.constexpr, HAS_NORM: tl.constexpr, HAS_BIAS: tl.constexpr, GATED: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    """N columns of all rows; with TOP > 0, of the one row and expert that program_id(1) says."""
    column = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.arange(0, ROWS)
    if TOP > 0:
        entry = tl.program_id(1)
        x += entry // TOP * SIZE
        weights += tl.load(chosen + entry).to(tl.int64) * (2 * COLUMNS if GATED else COLUMNS) * SIZE
        out += entry * COLUMNS
    there = (column < COLUMNS)[:, None]
    at = weights + column.to(tl.int64)[:, None] * SIZE
    total = tl.zeros([ROWS, N, K], tl.float32)
    total_up = tl.zeros([ROWS, N, K], tl.float32)
    squares = tl.zeros([ROWS, K], tl.float32)
    for first in tl.static_range(0, SIZE, K):
        k = first + tl.arange(0, K)
        inside = (k < SIZE)[None, :]
        some = tl.load(x + row[:, None] * SIZE + k[None, :], mask=inside, other=0.0).to(tl.float32)
        if HAS_NORM:
            squares += some * some
            some *= tl.load(norm + k, mask=k < SIZE, other=0.0).to(tl.float32)[None, :]
        weight = tl.load(at + k[None, :], mask=there & inside, other=0.0).to(tl.float32)
        total += some[:, None, :] * weight[None, :, :]
        if GATED:
            weight = tl.load(at + COLUMNS * SIZE + k[None, :], mask=there & inside, other=0.0).to(tl.float32)
            total_up += some[:, None, :] * weight[None, :, :]
    y = tl.sum(total, 2)
    scale = tl.rsqrt(tl.sum(squares, 1) / SIZE + eps)[:, None]
    if HAS_NORM:
        y *= scale
    if GATED:
        up = tl.sum(total_up, 2)
        if HAS_NORM:
            up *= scale
        y = y * tl.sigmoid(y) * up
    if HAS_BIAS:
        y += tl.load(bias + column, mask=column < COLUMNS, other=0.0).to(tl.float32)[None, :]
    out_at = out + row[:, None] * COLUMNS + column[None, :]
    shown = (column < COLUMNS)[None, :]
    if ADDS:
        y += tl.load(out_at, mask=shown, other=0.0).to(tl.float32)
    tl.store(out_at, y.to(out.dtype.element_ty), mask=shown)


@triton.jit
def _down(
    x, weights, chosen, share, out,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """N columns of what one token's experts answer, times their shares, added to `out`."""
    token = tl.program_id(1)
    column = tl.program_id(0) * N + tl.arange(0, N)
    there = (column < COLUMNS)[:, None]
    total = tl.zeros([N, K], tl.float32)
    for choice in tl.static_range(TOP):
        entry = token * TOP + choice
        at = weights + (tl.load(chosen + entry).to(tl.int64) * COLUMNS + column.to(tl.int64)[:, None]) * SIZE
        mine = tl.load(share + entry)
        for first in tl.static_range(0, SIZE, K):
            k = first + tl.arange(0, K)
            some = tl.load(x + entry * SIZE + k, mask=k < SIZE, other=0.0).to(tl.float32) * mine
            weight = tl.load(at + k[None, :], mask=there & (k < SIZE)[None, :], other=0.0)
            total += some[None, :] * weight.to(tl.float32)
    out_at = out + token * COLUMNS + column
    y = tl.sum(total, 1) + tl.load(out_at, mask=column < COLUMNS, other=0.0).to(tl.float32)
    tl.store(out_at, y.to(out.dtype.element_ty), mask=column < COLUMNS)


def product(
    x_RK: Tensor,
    weight_NK: Tensor,
    *,
    bias: Tensor | None = None,
    norm: tuple[Tensor, float] | None = None,
    gated: bool = False,
    to: Tensor | None = None,
) -> Tensor:
    """[R, N] of x [R, K], R = 1, 2 or 4, with `weight_NK`, N rows of K, or gate and up, 2N of them.

    `norm`: weight [K] and epsilon of an RMSNorm that x goes through first. `to` [R, N]: what the product is
    added to, in place.
    """
    rows, size = x_RK.shape
    columns = len(weight_NK) // (2 if gated else 1)
    out_RN = x_RK.new_empty((rows, columns)) if to is None else to
    wide, deep, warps = _shape(size, columns, rows)
    _product[(triton.cdiv(columns, wide), 1)](
        x_RK, norm[0] if norm else x_RK, weight_NK, x_RK if bias is None else bias, x_RK, out_RN,
        norm[1] if norm else 0.0, SIZE=size, COLUMNS=columns, ROWS=rows, N=wide, K=deep, TOP=0,
        HAS_NORM=norm is not None, HAS_BIAS=bias is not None, GATED=gated, ADDS=to is not None,
        num_warps=warps,
    )  # fmt: skip
    return out_RN


def add_experts(hidden_RE: Tensor, norm: tuple[Tensor, float], mlp: Experts) -> None:
    """Add to `hidden_RE`, R = 1, 2 or 4, in place what its normed rows' experts answer."""
    rows, size = hidden_RE.shape
    inner = mlp.down.shape[2]
    entries = rows * mlp.top
    chosen, share = choose(product(hidden_RE, mlp.router, norm=norm), mlp.top, mlp.normed)
    y = hidden_RE.new_empty((entries, inner))
    wide, deep, warps = _shape(size, inner, 1)
    _product[(triton.cdiv(inner, wide), entries)](
        hidden_RE, norm[0], mlp.gate_up, hidden_RE, chosen, y, norm[1],
        SIZE=size, COLUMNS=inner, ROWS=1, N=wide, K=deep, TOP=mlp.top,
        HAS_NORM=True, HAS_BIAS=False, GATED=True, ADDS=False, num_warps=warps,
    )  # fmt: skip
    wide, deep = 4, 256
    _down[(triton.cdiv(size, wide), rows)](
        y, mlp.down, chosen, share, hidden_RE, SIZE=inner, COLUMNS=size, N=wide, K=deep, TOP=mlp.top,
        num_warps=2,
    )  # fmt: skip


def _shape(size: int, columns: int, rows: int) -> tuple[int, int, int]:
    """Columns and depth of a tile, and warps, as measured (docs/log.md): about 2,048 weights at a time."""
    if columns <= 256:
        return 1, 1024, 4  # few programs: each wants all of its loads under way
    if size > 8192 or rows > 1:
        return 2, max(256, 1024 // rows), 4
    if size <= 2048:
        return 4, 1024, 2
    return 2, 2048, 4
