"""What stands between a layer's products, each in one pass over its data.

Knows:   residual and RMSNorm; QK norm, rotation and the pool's places; SwiGLU.
Ignores: products and attention. Each has its plain twin in decoder.py.

Arithmetic is float32 whatever the tensors hold, and sums over a row are taken whole.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_pool import LayerMemory

_SCALES = 16  # that are tried for each head of a key or value in 8 bits (docs/log.md)


@triton.jit
def _add_norm(hidden, added, weight, out, eps, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    there = column < SIZE
    x = tl.load(hidden + row * SIZE + column, mask=there, other=0.0).to(tl.float32)
    if PARTS > 0:
        for part in tl.static_range(PARTS):
            at = added + (row * PARTS + part) * SIZE + column
            x += tl.load(at, mask=there, other=0.0).to(tl.float32)
        # Rounded as it will be read again: the norm and the next residual see the same numbers.
        x = x.to(hidden.dtype.element_ty)
        tl.store(hidden + row * SIZE + column, x, mask=there)
        x = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / SIZE + eps)
    y = x * scale * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, y.to(out.dtype.element_ty), mask=there)


def add_norm(hidden_TE: Tensor, added: Tensor | None, weight_E: Tensor, eps: float) -> Tensor:
    """RMSNorm [T, E] of `hidden_TE`, to which `added`, [T, E] or parts [T, P, E], is added in place first."""
    tokens, size = hidden_TE.shape
    out_TE = torch.empty_like(hidden_TE)
    parts = 0 if added is None else added.numel() // max(1, hidden_TE.numel())
    _add_norm[(tokens,)](
        hidden_TE,
        hidden_TE if added is None else added,
        weight_E,
        out_TE,
        eps,
        SIZE=size,
        PADDED=triton.next_power_of_2(size),
        PARTS=parts,
        num_warps=8 if size > 1024 else 4,
    )
    return out_TE


@triton.jit
def _silu_mul(gate_up, out, SIZE: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = column < SIZE
    gate = tl.load(gate_up + row * 2 * SIZE + column, mask=there, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * SIZE + column, mask=there, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=there)


def silu_mul(gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up, [T, I], of the two side by side, [T, 2I]."""
    tokens, size = gate_up_TI.shape[0], gate_up_TI.shape[1] // 2
    out_TI = gate_up_TI.new_empty((tokens, size))
    tile = min(2048, triton.next_power_of_2(size))
    _silu_mul[(tokens, triton.cdiv(size, tile))](gate_up_TI, out_TI, SIZE=size, TILE=tile, num_warps=4)
    return out_TI


@triton.jit
def _put(memory, at, first, second, mine, HALF: tl.constexpr):
    """Both halves of some heads to their places."""
    tl.store(memory + at, first.to(memory.dtype.element_ty), mask=mine[:, None])
    tl.store(memory + at + HALF, second.to(memory.dtype.element_ty), mask=mine[:, None])


@triton.jit
def _put_narrow(memory, scales, place, first, second, mine, HALF: tl.constexpr, SCALES: tl.constexpr):
    """The same divided by a scale, of several under which the head fits the one that rounds it least.

    Its largest numbers decide what a query finds, so they count for more: under a good scale they lie near
    numbers of FP8.
    """
    most = tl.maximum(tl.max(tl.abs(first), 1), tl.max(tl.abs(second), 1))
    tightest = tl.maximum(most, 1e-12) / 448.0
    scale, least = tightest, tl.full(most.shape, float("inf"), tl.float32)
    for step in tl.static_range(SCALES):
        wider = tightest * (2.0 ** (step / SCALES))
        off_1 = first - (first / wider[:, None]).to(memory.dtype.element_ty).to(tl.float32) * wider[:, None]
        off_2 = second - (second / wider[:, None]).to(memory.dtype.element_ty).to(tl.float32) * wider[:, None]
        off_1, off_2 = off_1 * first, off_2 * second
        off = tl.sum(off_1 * off_1, 1) + tl.sum(off_2 * off_2, 1)
        scale = tl.where(off < least, wider, scale)
        least = tl.minimum(off, least)
    tl.store(scales + place, scale, mask=mine)
    at = place[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    _put(memory, at, first / scale[:, None], second / scale[:, None], mine, HALF)


@triton.jit
def _rotate_write(
    qkv, query_norm, key_norm, cos, sin, sink_cos, sink_sin, place, sink_place, own, to_sinks, keys, values,
    sink_keys, sink_values, key_scales, value_scales, head_places, sink_head_places, eps,
    QUERIES: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HEADS_AT_ONCE: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_SCALES: tl.constexpr, SCALES: tl.constexpr,
):  # fmt: skip
    """Some heads of one token: queries turned twice, keys turned into their places, values into theirs."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    size: tl.constexpr = 2 * HALF
    f = tl.arange(0, HALF)
    is_query = (head < QUERIES)[:, None]
    is_key = (head >= QUERIES) & (head < QUERIES + KV_HEADS)
    is_value = (head >= QUERIES + KV_HEADS) & (head < QUERIES + 2 * KV_HEADS)
    there = (head < QUERIES + 2 * KV_HEADS)[:, None]
    at = (token * (QUERIES + 2 * KV_HEADS) + head[:, None]) * size + f[None, :]
    first = tl.load(qkv + at, mask=there, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + HALF, mask=there, other=0.0).to(tl.float32)
    plain_first, plain_second = first, second
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / size + eps)[:, None]
        weight_1 = tl.where(is_query, tl.load(query_norm + f)[None, :], tl.load(key_norm + f)[None, :])
        weight_2 = tl.where(
            is_query, tl.load(query_norm + HALF + f)[None, :], tl.load(key_norm + HALF + f)[None, :]
        )
        # Rounded in between as the plain twin does.
        first = (first * scale * weight_1.to(tl.float32)).to(qkv.dtype.element_ty).to(tl.float32)
        second = (second * scale * weight_2.to(tl.float32)).to(qkv.dtype.element_ty).to(tl.float32)
    c = tl.load(cos + token * HALF + f)[None, :]
    s = tl.load(sin + token * HALF + f)[None, :]
    turned_1, turned_2 = first * c - second * s, second * c + first * s
    query_at = (token * QUERIES + head[:, None]) * size + f[None, :]
    tl.store(own + query_at, turned_1.to(own.dtype.element_ty), mask=is_query)
    tl.store(own + query_at + HALF, turned_2.to(own.dtype.element_ty), mask=is_query)
    c = tl.load(sink_cos + token * HALF + f)[None, :]
    s = tl.load(sink_sin + token * HALF + f)[None, :]
    tl.store(to_sinks + query_at, (first * c - second * s).to(own.dtype.element_ty), mask=is_query)
    tl.store(to_sinks + query_at + HALF, (second * c + first * s).to(own.dtype.element_ty), mask=is_query)

    where = tl.load(place + token).to(tl.int64)
    sink = tl.load(sink_place + token).to(tl.int64) if HAS_SCALES else where
    key_head, value_head = (head - QUERIES).to(tl.int64), (head - QUERIES - KV_HEADS).to(tl.int64)
    key_place, value_place = key_head * head_places + where, value_head * head_places + where
    if HAS_SCALES:
        if sink >= 0:
            at = (key_head * sink_head_places + sink)[:, None] * size + f[None, :]
            _put(sink_keys, at, turned_1, turned_2, is_key, HALF)
            at = (value_head * sink_head_places + sink)[:, None] * size + f[None, :]
            _put(sink_values, at, plain_first, plain_second, is_value, HALF)
        else:
            _put_narrow(keys, key_scales, key_place, turned_1, turned_2, is_key, HALF, SCALES)
            _put_narrow(values, value_scales, value_place, plain_first, plain_second, is_value, HALF, SCALES)
    else:
        at = key_place[:, None] * size + f[None, :]
        _put(keys, at, turned_1, turned_2, is_key, HALF)
        at = value_place[:, None] * size + f[None, :]
        _put(values, at, plain_first, plain_second, is_value, HALF)


def rotate_write(
    qkv_TX: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    turns: tuple[Tensor, Tensor, Tensor, Tensor],
    places: tuple[Tensor, Tensor | None],
    memory: LayerMemory,
    queries: int,
    eps: float,
) -> tuple[Tensor, Tensor]:
    """Queries [T, Q, D] turned by their own angle and for the sinks; keys and values go to their places.

    `qkv_TX` [T, (Q + 2H) D]; `norms`: of queries and keys, [D] each; `turns`: cos, sin [T, D/2] in float32 of
    the token itself and for the sinks; `places` [T]: in the pool, and, where sinks lie apart, in the pinned
    blocks, or -1.
    """
    kv_heads, blocks, block_size, size = memory.keys.shape
    place_T, sink_place_T = places
    key_scales, value_scales = memory.scales or (memory.keys, memory.values)
    tokens, heads = len(qkv_TX), queries + 2 * kv_heads
    own_TQD = qkv_TX.new_empty((tokens, queries, size))
    to_sinks_TQD = torch.empty_like(own_TQD)
    query_norm, key_norm = norms or (qkv_TX, qkv_TX)
    at_once = 8
    _rotate_write[(tokens, triton.cdiv(heads, at_once))](
        qkv_TX, query_norm, key_norm, *turns, place_T, place_T if sink_place_T is None else sink_place_T,
        own_TQD, to_sinks_TQD, memory.keys, memory.values, memory.sink_keys, memory.sink_values,
        key_scales, value_scales, blocks * block_size, memory.sink_keys.shape[1] * block_size, eps,
        QUERIES=queries, KV_HEADS=kv_heads, HALF=size // 2, HEADS_AT_ONCE=at_once,
        HAS_NORM=norms is not None, HAS_SCALES=memory.scales is not None, SCALES=_SCALES, num_warps=4,
    )  # fmt: skip
    return own_TQD, to_sinks_TQD
