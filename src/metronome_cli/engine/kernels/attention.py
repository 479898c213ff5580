"""Attention over sinks and window in one Triton kernel, straight from the block pool.

Knows:   a step cut into tasks of a few tokens of one session each, and the pool's layout.
Ignores: policies and lanes (attention.py lays them out); keys arrive rotated.

A task's keys are walked in tiles, first the sinks' with the query turned for them, then the window's run
with the token's own (attention.py, the plain twin). Few tasks: their tiles are split among several programs,
and the last of them to arrive joins what all have found. Places that the mask hides are never read, so what
a freed block holds does not matter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_pool import LayerMemory
from ..layout import FIELDS

_MULTIPROCESSORS = 132  # of the card that shapes were measured on
MOST_SPLIT = 2 * _MULTIPROCESSORS  # programs that share keys (docs/log.md)
_LOG2_E = 1.4426950408889634


@triton.jit
def _tile(
    query,
    keys,
    values,
    place,
    there,
    visible,
    best,
    total,
    mixed,
    scale,
    key_scales,
    value_scales,
    HEAD_SIZE: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    """One tile of keys added to a running softmax: `place` [N] of those `there`, `visible` [M, N]."""
    size = tl.arange(0, HEAD_SIZE)
    if HAS_SCALES and query.dtype == tl.bfloat16:  # FP8 becomes float16 in one instruction, bfloat16 in four
        query = query.to(tl.float16)
    key = tl.load(keys + place[None, :] * HEAD_SIZE + size[:, None], mask=there[None, :], other=0.0)
    value = tl.load(values + place[:, None] * HEAD_SIZE + size[None, :], mask=there[:, None], other=0.0)
    # Exact products where tensors are float32, which the matrix units would round.
    scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * scale
    if HAS_SCALES:
        scores *= tl.load(key_scales + place, mask=there, other=0.0)[None, :]
    scores = tl.where(visible, scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1))
    # A token that has seen nothing yet has no best: keep exp2 away from inf - inf.
    anchor = tl.where(new_best == float("-inf"), 0.0, new_best)
    weights = tl.exp2(scores - anchor[:, None])
    faded = tl.exp2(best - anchor)
    total = total * faded + tl.sum(weights, 1)
    mixed *= faded[:, None]
    if HAS_SCALES:
        scales = tl.load(value_scales + place, mask=there, other=0.0)
        most = tl.maximum(tl.max(scales, 0), 1e-30)  # weights of at most 1 keep to float16's range
        weights *= (scales / most)[None, :]
        mixed += most * tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
    else:
        mixed += tl.dot(weights.to(query.dtype), value.to(query.dtype), input_precision="ieee")
    return new_best, total, mixed


@triton.jit
def _walk(
    own, to_sinks, keys, values, key_scales, value_scales, blocks, run, begin, end, sink_tiles, skipped,
    sinks_seen, oldest, newest, window, sinks_token, token, best, total, mixed, scale,
    HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, N: tl.constexpr, AHEAD: tl.constexpr,
    STAGES: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Tiles `begin` to `end`: `sink_tiles` of the first `sinks_seen` places, then those of the window's run.

    With HAS_SINKS both in one loop, so that the window's first tiles are on their way while the sinks' are
    computed; without, no tile is of sinks. `oldest` and `newest`: places of the run that any token sees;
    `skipped`: what takes a tile to its place there. `token`, `sinks_token` [M]: each query's own place in the
    run and among the sinks.
    """
    step = tl.arange(0, N)
    next_tiles = tl.arange(0, AHEAD)
    for some in range(begin, end, AHEAD):
        # Block numbers of the next tiles at once: loads whose addresses wait for other loads come late.
        ahead = some + next_tiles
        among_sinks = (ahead < sink_tiles) if HAS_SINKS else False
        starts = tl.where(among_sinks, ahead, ahead + skipped) * N
        found_at = tl.where(among_sinks, 0, run) + starts // BLOCK_SIZE
        numbers = tl.load(blocks + found_at, mask=ahead < end, other=0)
        for tile in tl.range(some, tl.minimum(some + AHEAD, end), num_stages=STAGES):
            is_sinks = (tile < sink_tiles) if HAS_SINKS else False
            first = tl.where(is_sinks, tile, tile + skipped) * N
            p = first + step
            there = (p >= tl.where(is_sinks, 0, oldest)) & (p <= tl.where(is_sinks, sinks_seen - 1, newest))
            seen_from = tl.where(is_sinks, sinks_token, token)[:, None]
            visible = there[None, :] & (p[None, :] <= seen_from)
            visible &= tl.where(is_sinks, True, p[None, :] > seen_from - window)
            if BLOCK_SIZE % N == 0:  # a tile lies in one block: offsets stay small
                number = tl.sum(tl.where(next_tiles == tile - some, numbers, 0), 0)
                base = number.to(tl.int64) * BLOCK_SIZE + first % BLOCK_SIZE
                place = step
            else:
                base = tl.zeros([], tl.int64)
                held_at = tl.where(is_sinks, 0, run) + p // BLOCK_SIZE
                place = tl.load(blocks + held_at, mask=there, other=0).to(tl.int64) * BLOCK_SIZE
                place += p % BLOCK_SIZE
            best, total, mixed = _tile(
                tl.where(is_sinks, to_sinks, own), keys + base * HEAD_SIZE, values + base * HEAD_SIZE, place,
                there, visible, best, total, mixed, scale, key_scales + base, value_scales + base,
                HEAD_SIZE, HAS_SCALES,
            )  # fmt: skip
    return best, total, mixed


@triton.jit
def _join(
    shown, lse, split, query, is_query, partial, partial_lse, arrived, out,
    HEAD_SIZE: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Leave what one split has found, with the logarithm of its weight; the last to arrive joins all."""
    size = tl.arange(0, HEAD_SIZE)
    first = query.to(tl.int64) * SPLITS
    tl.store(partial + (first + split)[:, None] * HEAD_SIZE + size[None, :], shown, mask=is_query[:, None])
    tl.store(partial_lse + first + split, lse, mask=is_query)
    tl.debug_barrier()  # all that this program stored, before it counts as arrived
    if tl.atomic_add(arrived, 1, sem="acq_rel") == SPLITS - 1:
        others = tl.arange(0, PADDED)
        there = is_query[:, None] & (others < SPLITS)[None, :]
        weights = tl.load(partial_lse + first[:, None] + others[None, :], mask=there, other=float("-inf"))
        best = tl.max(weights, 1)
        total = tl.sum(tl.exp2(weights - best[:, None]), 1)
        joined = tl.zeros([query.shape[0], HEAD_SIZE], tl.float32)
        for one in tl.static_range(SPLITS):
            weight = tl.load(partial_lse + first + one, mask=is_query, other=float("-inf"))
            part_at = partial + (first + one)[:, None] * HEAD_SIZE + size[None, :]
            part = tl.load(part_at, mask=is_query[:, None], other=0.0)
            joined += (tl.exp2(weight - best) / total)[:, None] * part
        tl.store(out, joined.to(out.dtype.element_ty), mask=is_query[:, None])
        tl.store(arrived, 0)  # for the next that count


@triton.jit
def _attend(
    own, to_sinks, keys, values, sink_keys, sink_values, key_scales, value_scales, out, partial, partial_lse,
    arrived, tasks, table, head_places, sink_head_places, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    FIELDS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr,
    AHEAD: tl.constexpr, STAGES: tl.constexpr, APART: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """One task's queries of one KV head over one of SPLITS shares of their keys."""
    task = tasks + tl.program_id(0) * FIELDS
    head, split = tl.program_id(1), tl.program_id(2)
    first, count = tl.load(task), tl.load(task + 1)
    if count == 0:
        return
    blocks, run = table + tl.load(task + 2), tl.load(task + 3)
    rel, sinks_rel, window = tl.load(task + 4), tl.load(task + 5), tl.load(task + 6)
    index, sinks = tl.load(task + 7), tl.load(task + 8)
    member, size = tl.arange(0, M), tl.arange(0, HEAD_SIZE)
    token = member // GROUP
    is_query = token < count
    query = ((first + token) * KV_HEADS + head) * GROUP + member % GROUP
    query_at = query.to(tl.int64)[:, None] * HEAD_SIZE + size[None, :]
    before = head.to(tl.int64) * head_places  # places of lower heads

    seen_sinks = tl.minimum(sinks, index + count)
    sink_tiles = tl.cdiv(seen_sinks, N)
    oldest = tl.maximum(tl.maximum(sinks_rel, rel - window + 1), 0)
    skipped = oldest // N - sink_tiles  # tiles are counted through both, the run's oldest after the sinks'
    tiles = tl.maximum(tl.cdiv(tl.maximum(rel + count, 0), N) - skipped, sink_tiles)
    begin, end = tiles * split // SPLITS, tiles * (split + 1) // SPLITS

    best, total = tl.full([M], float("-inf"), tl.float32), tl.zeros([M], tl.float32)
    mixed = tl.zeros([M, HEAD_SIZE], tl.float32)
    newest, at_sinks, at = rel + count - 1, index + token, rel + token
    if APART:
        turned = tl.load(to_sinks + query_at, mask=is_query[:, None], other=0.0)
        sinks_before = head.to(tl.int64) * sink_head_places * HEAD_SIZE
        best, total, mixed = _walk(
            turned, turned, sink_keys + sinks_before, sink_values + sinks_before, sink_keys, sink_values,
            blocks, run, begin, tl.minimum(end, sink_tiles), sink_tiles, skipped, seen_sinks, oldest, newest,
            window, at_sinks, at_sinks, best, total, mixed, scale, HEAD_SIZE, BLOCK_SIZE, N, AHEAD,
            2, True, False,
        )  # fmt: skip
        begin = tl.maximum(begin, sink_tiles)
    straight = tl.load(own + query_at, mask=is_query[:, None], other=0.0)
    turned = straight if APART else tl.load(to_sinks + query_at, mask=is_query[:, None], other=0.0)
    best, total, mixed = _walk(
        straight, turned, keys + before * HEAD_SIZE, values + before * HEAD_SIZE, key_scales + before,
        value_scales + before, blocks, run, begin, end, sink_tiles, skipped, seen_sinks, oldest, newest,
        window, at_sinks, at, best, total, mixed, scale,
        HEAD_SIZE, BLOCK_SIZE, N, AHEAD, STAGES, not APART, HAS_SCALES,
    )  # fmt: skip

    shown = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    if SPLITS == 1:
        tl.store(out + query_at, shown.to(out.dtype.element_ty), mask=is_query[:, None])
    else:
        _join(
            shown, best + tl.log2(total), split, query, is_query, partial, partial_lse,
            arrived + tl.program_id(0) * KV_HEADS + head, out + query_at, HEAD_SIZE, SPLITS, PADDED,
        )  # fmt: skip


def _shape(programs: int, queries: int, block_size: int, narrow: bool) -> tuple[int, int, int, int | None]:
    """Keys of a tile, warps, stages and, where more programs fit so, registers of a thread (docs/log.md).

    Small tiles where many programs share the device. Of those four fit a multiprocessor; held to fewer
    registers than they like, six, each slower: worth it where one wave then does for two.
    """
    if queries > 64:
        return 64, 8, 2, None
    if queries > 16:
        return 64, 4, 3, None
    if programs < MOST_SPLIT:
        return (64, 4, 3, None) if block_size % 64 == 0 else (64, 2, 4, None)
    if block_size % 32 != 0 or narrow:
        return 64, 2, 3, None
    return 32, 2, 3, 168 if 4 * _MULTIPROCESSORS < programs <= 6 * _MULTIPROCESSORS else None


def splits_for(tasks: int, kv_heads: int, narrow: bool) -> int:
    """Programs that share a task's keys: as many as keep the device busy, since joining them costs too."""
    most = MOST_SPLIT if narrow else MOST_SPLIT // 2  # eight bits are less to read than to widen
    return max(1, min(16, most // (tasks * kv_heads)))


def attend(
    own_TQD: Tensor,
    to_sinks_TQD: Tensor,
    memory: LayerMemory,
    tasks: Tensor,
    table: Tensor,
    arrived: Tensor,
    *,
    tokens: int,
    splits: int,
) -> Tensor:
    """Attention [T, Q, D] of queries turned by their own angle and for the sinks.

    `tasks` int32 [tasks, FIELDS]; those of no tokens are skipped, others have at most `tokens`. `table`
    int32: blocks of all sessions, one after the other, pinned ones first. `splits`: programs that share a
    task's keys; where there are several, `arrived`, int32 zeros, one for each task and KV head (`MOST_SPLIT`
    are enough for `splits_for`), counts them and is left as it was. Tokens of no task keep whatever stood in
    their place.
    """
    keys, values = memory.keys, memory.values
    key_scales, value_scales = memory.scales or (keys, values)
    count, queries, size = own_TQD.shape
    kv_heads, blocks, block_size, _ = keys.shape
    group = queries // kv_heads
    out_TQD = torch.empty_like(own_TQD)
    partial, lse = out_TQD, out_TQD  # not touched without splits
    if splits > 1:
        partial = torch.empty((count * queries * splits, size), dtype=torch.float32, device=own_TQD.device)
        lse = torch.empty((count * queries * splits,), dtype=torch.float32, device=own_TQD.device)
    narrow = memory.scales is not None
    programs = len(tasks) * kv_heads * splits
    tile, warps, stages, registers = _shape(programs, tokens * group, block_size, narrow)
    rows = max(16, triton.next_power_of_2(tokens * group))
    # One loop costs more than it saves where each key asks for its block; FP8's sinks have their own memory.
    apart = narrow or block_size % tile != 0
    _attend[(len(tasks), kv_heads, splits)](
        own_TQD, to_sinks_TQD, keys, values, memory.sink_keys, memory.sink_values, key_scales, value_scales,
        out_TQD, partial, lse, arrived, tasks, table,
        blocks * block_size, memory.sink_keys.shape[1] * block_size, size**-0.5 * _LOG2_E,
        KV_HEADS=kv_heads, GROUP=group, HEAD_SIZE=size, BLOCK_SIZE=block_size,
        FIELDS=FIELDS, M=rows, N=tile, SPLITS=splits,
        PADDED=triton.next_power_of_2(splits), AHEAD=2048 // tile, STAGES=stages,
        APART=apart, HAS_SCALES=narrow, num_warps=warps, num_stages=stages, maxnreg=registers,
    )  # fmt: skip
    return out_TQD
