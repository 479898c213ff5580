"""The batched attention against its plain twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.engine.attention import attend, attend_plain, plan
from metronome_cli.engine.blocks import BlockPool, Lane
from metronome_cli.engine.kv_pool import KvPool
from metronome_cli.window import Policy, Unbounded, Window

policies = st.one_of(
    st.just(Unbounded()),
    st.integers(1, 20).flatmap(lambda w: st.builds(Window, st.just(w), st.integers(0, w))),
)


def aged_lane(pool: BlockPool, policy: Policy, age: int) -> Lane:
    """A lane that has appended `age` tokens, two at a time, giving back what fell behind its window."""
    lane = pool.open(policy, 40)
    assert lane
    for start in range(0, age, 2):
        assert lane.extend(min(2, age - start))
        lane.retire()
    return lane


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(st.tuples(policies, st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=5),
    block_size=st.sampled_from([1, 3, 4, 16]),
    groups=st.sampled_from([(1, 1), (3, 1), (2, 4), (8, 2)]),
    seed=st.integers(0, 999),
)
def test_the_fast_path_agrees_with_the_plain_twin(
    rows: list[tuple[Policy, int, int]], block_size: int, groups: tuple[int, int], seed: int
) -> None:
    kv_heads, group = groups
    memory = KvPool(1, 600, block_size, kv_heads, 8, torch.float32)
    pool = BlockPool(600, block_size)
    lanes = [aged_lane(pool, policy, age) for policy, age, _ in rows]
    lengths = [length for *_, length in rows]
    for lane, length in zip(lanes, lengths, strict=True):
        assert lane.extend(length)
    torch.manual_seed(seed)
    memory.keys.fill_(float("nan"))
    memory.values.fill_(float("nan"))
    memory.fill([memory.scratch], 0.0)
    for lane in lanes:
        for block in lane.table.values():
            memory.keys[:, :, block] = torch.randn(kv_heads, block_size, 8)
            memory.values[:, :, block] = torch.randn(kv_heads, block_size, 8)
    layout = plan(lanes, lengths, memory, group)
    query, sink_query = torch.randn(2, sum(lengths), kv_heads * group, 8)
    got = attend(query, sink_query, memory.keys[0], memory.values[0], layout)
    want = attend_plain(query, sink_query, memory.keys[0], memory.values[0], layout)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("t", [4, 8, 9, 10, 13, 14, 15, 16])  # around S, W and S + W
def test_the_mask_admits_the_sinks_and_the_last_w_and_nothing_else(t: int) -> None:
    policy = Window(9, 5)
    pool = BlockPool(40, 4)
    lane = aged_lane(pool, policy, t)
    assert lane.extend(1)
    layout = plan([lane], [1], KvPool(1, 40, 4, 1, 8, torch.float32), 1)
    (rows,) = layout.parts
    visible_L = rows.visible_BML[0, 0]
    admitted = rows.table_BN[0].repeat_interleave(4)[visible_L].tolist()
    offsets = torch.arange(len(visible_L)).remainder(4)[visible_L].tolist()
    logical = {block: number for number, block in lane.table.items()}
    seen = [logical[block] * 4 + offset for block, offset in zip(admitted, offsets, strict=True)]
    assert sorted(seen) == sorted({p for p in range(t + 1) if p < 5 or t - 9 < p})
