"""Attention over sinks and window, straight from the block pool.

Knows:   which place of the pool holds which index, the exact mask, the two queries.
Ignores: where queries and keys come from. Keys arrive rotated, once, and are never touched again.

Sinks (p < S) are met by a query turned for the sinks, the window (max(S, t-W+1) <= p <= t) by the
token's own; a block that holds both kinds is visited twice (design, section 4).
Shape letters: B rows (sessions with tokens in this step), T tokens of them all, M most tokens of a row,
N blocks of a row, L places of a row (N x block size), Q query heads, H KV heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..window import oldest_needed, reach, sees
from .blocks import Lane
from .kv_pool import KvPool

_PADDING = -1  # logical number of a block that is not there; its indexes are negative, so no mask admits them


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a step, padded to the longest of them."""

    token_T: Tensor  # which of the step's tokens they hold
    padded_T: Tensor  # each one's position in the padded [B x M] batch
    table_BN: Tensor  # physical blocks: sink columns first, then window columns
    sink_places: int  # how many of the L places belong to sink columns
    visible_BML: Tensor
    blocks_X: Tensor  # the blocks of every head in the pool of a layer, flattened: [H x B x N]
    hidden_BGL: Tensor  # what each query of a KV head's group may not see: [B, M x Q/H, L]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a step's tokens lie and what they may see; made once, used by every layer."""

    lanes: tuple[Lane, ...]
    lengths: tuple[int, ...]
    index_T: Tensor  # each token's index in its session
    window_T: Tensor
    sinks_T: Tensor
    place_T: Tensor  # each token's place in the flattened pool
    parts: tuple[Rows, ...]


def plan(lanes: Sequence[Lane], lengths: Sequence[int], pool: KvPool, group: int) -> Layout:
    """Lay out a step; each lane has just been extended by its length, 1 or more. `group`: Q/H.

    Rows of one token stand apart from longer ones, and rows that see much from those that see little:
    padded to those, they would cost as much.
    """
    block_size = pool.block_size
    starts = [lane.length - length for lane, length in zip(lanes, lengths, strict=True)]
    index_T = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    row_T = torch.repeat_interleave(torch.arange(len(lanes)), torch.tensor(lengths))
    window_B, sinks_B = torch.tensor([reach(lane.policy) for lane in lanes]).unbind(1)
    block_T = torch.tensor(
        [
            lanes[row].table[block]
            for row, block in zip(row_T.tolist(), (index_T // block_size).tolist(), strict=True)
        ]
    )
    # What a row holds is about what it may see; within a part that differs by a factor of 2 at most.
    kinds_B = torch.tensor(
        [2 * lane.held.bit_length() + (n > 1) for lane, n in zip(lanes, lengths, strict=True)]
    )
    parts = [
        _rows(
            [lanes[row] for row in torch.where(chosen_B)[0].tolist()],
            [lengths[row] for row in torch.where(chosen_B)[0].tolist()],
            torch.where(chosen_B[row_T])[0],
            pool,
            group,
        )
        for chosen_B in (kinds_B == kind for kind in kinds_B.unique())
    ]
    return Layout(
        tuple(lanes),
        tuple(lengths),
        index_T,
        window_B[row_T],
        sinks_B[row_T],
        block_T * block_size + index_T % block_size,
        tuple(parts),
    )


def attend(query_TQD: Tensor, sink_query_TQD: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
    """Attention of all rows of a step, [T, Q, D]. `keys`, `values`: one layer's [H, blocks + 1, block, D]."""
    if len(layout.parts) == 1:
        return _attend(query_TQD, sink_query_TQD, keys, values, layout.parts[0])
    out_TQD = torch.empty_like(query_TQD)
    for rows in layout.parts:
        queries = query_TQD[rows.token_T], sink_query_TQD[rows.token_T]
        out_TQD[rows.token_T] = _attend(*queries, keys, values, rows)
    return out_TQD


def attend_plain(
    query_TQD: Tensor, sink_query_TQD: Tensor, keys: Tensor, values: Tensor, layout: Layout
) -> Tensor:
    """The plain twin of `attend`: token by token, over the live places alone, in float64."""
    kv_heads, _, block_size, head_size = keys.shape
    out = torch.empty_like(query_TQD)
    row_T = [lane for lane, n in zip(layout.lanes, layout.lengths, strict=True) for _ in range(n)]
    for i, lane in enumerate(row_T):
        t = int(layout.index_T[i])
        seen = [p for p in range(t + 1) if sees(lane.policy, t, p)]
        place = [lane.table[p // block_size] * block_size + p % block_size for p in seen]
        keys_HLD, values_HLD = (pool.flatten(1, 2)[:, place].double() for pool in (keys, values))
        is_sink_L = torch.tensor(seen) < layout.sinks_T[i]
        grouped = [x[i].double().view(kv_heads, -1, head_size) for x in (query_TQD, sink_query_TQD)]
        own, to_sink = (q @ keys_HLD.transpose(1, 2) for q in grouped)
        weights = (torch.where(is_sink_L, to_sink, own) * head_size**-0.5).softmax(-1)
        out[i] = (weights @ values_HLD).flatten(0, 1).to(out.dtype)
    return out


def _rows(lanes: Sequence[Lane], lengths: Sequence[int], token_T: Tensor, pool: KvPool, group: int) -> Rows:
    block_size = pool.block_size
    starts = [lane.length - length for lane, length in zip(lanes, lengths, strict=True)]
    columns = [_columns(lane, start, block_size) for lane, start in zip(lanes, starts, strict=True)]
    sink_width = max(len(sinks) for sinks, _ in columns)
    run_width = max(len(run) for _, run in columns)
    logical = [_pad(sinks, sink_width) + _pad(run, run_width) for sinks, run in columns]
    physical = [{**lane.table, _PADDING: pool.scratch} for lane in lanes]
    table_BN = torch.tensor([[of[n] for n in row] for of, row in zip(physical, logical, strict=True)])

    sink_places, most = sink_width * block_size, max(lengths)
    key_BL = (torch.tensor(logical).unsqueeze(-1) * block_size + torch.arange(block_size)).flatten(1)
    t_BM1 = (torch.tensor(starts).unsqueeze(1) + torch.arange(most)).unsqueeze(-1)
    window_B, sinks_B = torch.tensor([reach(lane.policy) for lane in lanes]).unbind(1)
    visible_BML = _visible(t_BM1, key_BL.unsqueeze(1), window_B, sinks_B, sink_places)
    padded = [row * most + at for row, length in enumerate(lengths) for at in range(length)]
    return Rows(
        token_T,
        torch.tensor(padded),
        table_BN,
        sink_places,
        visible_BML,
        blocks_X=(torch.arange(pool.kv_heads).view(-1, 1, 1) * (pool.scratch + 1) + table_BN).flatten(),
        hidden_BGL=(~visible_BML).repeat_interleave(group, dim=1),
    )


def _attend(query_TQD: Tensor, sink_query_TQD: Tensor, keys: Tensor, values: Tensor, rows: Rows) -> Tensor:
    count, _, places = rows.visible_BML.shape
    kv_heads, head_size = len(keys), keys.shape[-1]
    keys_XLD, values_XLD = (  # X: (head, row)
        pool.flatten(0, 1)
        .flatten(1)
        .index_select(0, rows.blocks_X)
        .view(-1, places, head_size)
        .to(query_TQD.dtype)
        for pool in (keys, values)
    )
    queries_HBGD, sink_queries_HBGD = (
        _to_rows(x * head_size**-0.5, kv_heads, rows) for x in (query_TQD, sink_query_TQD)
    )
    keys_XDL, cut = keys_XLD.transpose(1, 2), rows.sink_places
    scores_XGL = torch.cat(
        (
            sink_queries_HBGD.flatten(0, 1) @ keys_XDL[..., :cut],
            queries_HBGD.flatten(0, 1) @ keys_XDL[..., cut:],
        ),
        dim=-1,
    )
    scores_HBGL = scores_XGL.unflatten(0, (kv_heads, count)).masked_fill_(rows.hidden_BGL, float("-inf"))
    mixed_XGD = scores_HBGL.softmax(-1).flatten(0, 1) @ values_XLD
    return _from_rows(mixed_XGD.view_as(queries_HBGD), rows)


def _columns(lane: Lane, start: int, block_size: int) -> tuple[list[int], list[int]]:
    """Logical blocks that tokens from index `start` on may see: the sinks', and the window's run."""
    end = (lane.length - 1) // block_size + 1
    first = oldest_needed(lane.policy, start) // block_size
    return list(range(min(lane.sink_blocks, end))), list(range(first, end))


def _pad(logical: list[int], width: int) -> list[int]:
    return logical + [_PADDING] * (width - len(logical))


def _visible(t_BM1: Tensor, key_B1L: Tensor, window_B: Tensor, sinks_B: Tensor, sink_places: int) -> Tensor:
    """[B, M, L]: `window.sees`, with each key admitted in columns of its own kind only."""
    window_B11, sinks_B11 = window_B.view(-1, 1, 1), sinks_B.view(-1, 1, 1)
    as_sink = (key_B1L >= 0) & (key_B1L < sinks_B11)
    as_window = (key_B1L >= sinks_B11) & (key_B1L > t_BM1 - window_B11)
    in_sink_column = torch.arange(key_B1L.shape[-1]) < sink_places
    return torch.where(in_sink_column, as_sink, as_window) & (key_B1L <= t_BM1)


def _to_rows(x_TQD: Tensor, kv_heads: int, rows: Rows) -> Tensor:
    """[H, B, M x Q/H, D]: padded to the longest row, grouped by KV head. Padding is zero."""
    count, most, _ = rows.visible_BML.shape
    query_heads, head_size = x_TQD.shape[1:]
    if len(x_TQD) < count * most:
        padded = x_TQD.new_zeros(count * most, query_heads, head_size)
        x_TQD = padded.index_copy_(0, rows.padded_T, x_TQD)
    return (
        x_TQD.view(count, most, kv_heads, -1, head_size)
        .permute(2, 0, 1, 3, 4)
        .reshape(kv_heads, count, -1, head_size)
    )


def _from_rows(out: Tensor, rows: Rows) -> Tensor:
    """The inverse of `_to_rows`, with padding left behind."""
    count, most, _ = rows.visible_BML.shape
    kv_heads, _, _, head_size = out.shape
    x = out.view(kv_heads, count, most, -1, head_size).permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1, 2)
    return x if len(rows.padded_T) == len(x) else x[rows.padded_T]
