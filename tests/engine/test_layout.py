"""The integers that kernels read, against the layout that the plain attention reads."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from metronome_cli.engine.attention import plan
from metronome_cli.engine.blocks import BlockPool
from metronome_cli.engine.kv_pool import KvPool
from metronome_cli.engine.layout import FIELDS, lay_out
from metronome_cli.engine.rope import anchored
from metronome_cli.window import EVERYTHING, Unbounded, Window

from .rows import row_of, some_rows


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block_size", [1, 8, 64])
@pytest.mark.parametrize("most", [1, 40])
def test_places_and_positions_are_those_of_the_plain_layout(seed: int, block_size: int, most: int) -> None:
    blocks = 4000 // block_size + 200
    rows = some_rows(BlockPool(blocks, block_size), random.Random(seed), 6, most)
    pool = KvPool(1, blocks, block_size, 1, 8, torch.float32)
    plain = plan([row.session.lane for row in rows], [row.tokens for row in rows], pool, 1)
    laid = lay_out(rows, block_size, 1, 1)
    assert laid.place_T.tolist() == plain.place_T.tolist()
    assert laid.end_R.tolist() == (np.cumsum([row.tokens for row in rows]) - 1).tolist()
    rotary_TA = torch.from_numpy(laid.rotary_TA)
    at_sinks_TA = anchored(rotary_TA, plain.index_T, plain.window_T, plain.sinks_T)
    assert torch.equal(torch.from_numpy(laid.at_sinks_TA), at_sinks_TA)


@pytest.mark.parametrize("tokens_a_task", [1, 7, 64])
def test_tasks_hold_every_token_once_and_see_what_it_sees(tokens_a_task: int) -> None:
    rows = some_rows(BlockPool(700, 8), random.Random(5), 6, 40)
    laid = lay_out(rows, 8, 1, tokens_a_task)
    assert laid.tasks.shape[1] == FIELDS
    held: list[int] = []
    for first, count, offset, run, rel, sinks_rel, window, index, sinks in laid.tasks.tolist():
        assert 1 <= count <= tokens_a_task
        held += range(first, first + count)
        row = next(r for r, end in zip(rows, laid.end_R, strict=True) if first <= end)
        lane = row.session.lane
        base = index - rel  # the index at which the window's run begins
        assert laid.table[offset + run] == lane.table[base // 8] if base // 8 in lane.table else rel < 0
        assert (min(lane.reach[0], 2**30), lane.reach[1]) == (window, sinks)
        assert sinks_rel == sinks - base
        assert lane.length - row.tokens <= index < lane.length
    assert held == list(range(sum(row.tokens for row in rows)))


def test_a_call_of_any_age_stays_within_32_bits() -> None:
    accounts = BlockPool(100, 16)
    lane = accounts.open(Window(64, 5), 8)
    assert lane is not None
    while lane.length < 2000:
        lane.extend(8)
        lane.retire()
    lane.length += 16 * 10**10  # as if it had gone on for ages
    lane.table = {n + 10**10 if n > 0 else n: block for n, block in lane.table.items()}
    lane._oldest, lane._end = lane._oldest + 10**10, lane._end + 10**10
    lane.extend(1)
    laid = lay_out([row_of(lane, 1)], 16, 1, 1)
    assert laid.rotary_TA[0, 0] == lane.length - 1
    assert laid.at_sinks_TA[0, 0] == 64 + 5 - 1
    assert laid.tasks[0, 4] < 64 + 16  # counted from the run, not from the call's beginning
    assert laid.tasks[0, 5] == -(2**30)


def test_sinks_apart_are_written_there_and_nowhere_else() -> None:
    accounts = BlockPool(100, 4, pinned=10)
    lane, growing = accounts.open(Window(20, 6), 8), accounts.open(Unbounded(), 8)
    assert lane is not None
    assert growing is not None
    lane.extend(8)
    growing.extend(3)
    rows = [row_of(of, of.length) for of in (lane, growing)]
    laid = lay_out(rows, 4, 1, 1, scratch=100)
    assert laid.sink_place_T is not None
    apart = [lane.pinned[p // 4] * 4 + p % 4 for p in range(6)]
    assert laid.sink_place_T.tolist() == [*apart, *[-1] * 5]
    assert laid.place_T[:6].tolist() == [400] * 6
    assert laid.place_T[6:8].tolist() == [lane.table[1] * 4 + 2, lane.table[1] * 4 + 3]
    assert laid.table.tolist() == [*lane.pinned, *lane.table.values(), *growing.table.values()]
    assert laid.tasks[8, 6] == min(EVERYTHING, 2**30)
