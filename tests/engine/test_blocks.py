"""The pool's accounts under any sequence of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from metronome_cli.engine.blocks import BlockPool, Lane
from metronome_cli.window import Policy, Recycle, Unbounded, Window

MAX_APPEND = 8


def windows() -> st.SearchStrategy[Policy]:
    return st.integers(1, 24).flatmap(lambda w: st.builds(Window, st.just(w), st.integers(0, w)))


def recycles() -> st.SearchStrategy[Policy]:
    return st.integers(MAX_APPEND + 2, 32).flatmap(
        lambda w: st.builds(Recycle, st.just(w), st.integers(0, w - MAX_APPEND))
    )


class AnyCalls(RuleBasedStateMachine):
    """Calls of every policy open, append, recycle, stall and close in any order."""

    @initialize(blocks=st.integers(1, 40), block_size=st.integers(1, 5))
    def start(self, blocks: int, block_size: int) -> None:
        self.leases: list[int] = []
        self.pool = BlockPool(blocks, block_size, on_lease=self.leases.extend)
        self.lanes: list[Lane] = []

    @rule(policy=st.one_of(windows(), recycles(), st.just(Unbounded())))
    def open(self, policy: Policy) -> None:
        spare = self.pool.spare
        lane = self.pool.open(policy, MAX_APPEND)
        if lane is None:
            assert not isinstance(policy, Unbounded)
            assert self.pool.spare == spare
        else:
            self.lanes.append(lane)

    @rule(data=st.data(), tokens=st.integers(1, MAX_APPEND))
    def append(self, data: st.DataObject, tokens: int) -> None:
        if not self.lanes:
            return
        lane = data.draw(st.sampled_from(self.lanes))
        if isinstance(lane.policy, Recycle) and lane.length + tokens > lane.policy.window:
            lane.restart()
            tokens += lane.policy.carry
        before = (lane.length, dict(lane.table), self.pool.spare)
        went = lane.extend(tokens)
        if went:
            lane.retire()
        else:
            assert lane.bound is None, "a bounded lane was promised its blocks"
            assert (lane.length, lane.table, self.pool.spare) == before

    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        if self.lanes:
            lane = data.draw(st.sampled_from(self.lanes))
            self.lanes.remove(lane)
            lane.close()
            lane.close()

    @invariant()
    def accounts_add_up(self) -> None:
        if hasattr(self, "pool"):
            self.pool.check()
            assert self.pool.free + self.pool.leased == self.pool.total
            assert self.pool.leased == sum(lane.held for lane in self.lanes)
            assert self.pool.reserved == sum(lane.bound or 0 for lane in self.lanes)
            owed = sum(lane.bound - lane.held for lane in self.lanes if lane.bound is not None)
            assert owed <= self.pool.free, "a promised block was given away"

    def teardown(self) -> None:
        for lane in getattr(self, "lanes", []):
            lane.close()
        if hasattr(self, "pool"):
            assert self.pool.free == self.pool.total
            assert self.pool.reserved == 0


TestAnyCalls = AnyCalls.TestCase
TestAnyCalls.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_an_unbounded_session_stalls_alone_and_goes_on_when_blocks_come_free() -> None:
    pool = BlockPool(10, 4)
    bounded = pool.open(Window(8, 0), 4)
    first, second = pool.open(Unbounded(), 4), pool.open(Unbounded(), 4)
    assert bounded
    assert first
    assert second
    assert bounded.bound == 4  # ceil(11 / 4) + 1
    assert all(first.extend(4) for _ in range(6))
    assert not second.extend(1)
    assert bounded.extend(4)
    assert bounded.extend(4)
    first.close()
    assert second.extend(4)
    pool.check()


def test_a_window_that_does_not_fit_is_refused_and_leaves_no_trace() -> None:
    pool = BlockPool(4, 4)
    assert pool.open(Window(32, 0), 4) is None
    assert (pool.free, pool.reserved, pool.spare) == (4, 0, 4)


@given(st.integers(1, 60), st.integers(1, 5), st.one_of(windows(), recycles()), st.integers(0, 5))
def test_exactly_so_many_bounded_lanes_are_let_in_as_there_is_room_for(
    blocks: int, block_size: int, policy: Policy, already: int
) -> None:
    pool = BlockPool(blocks, block_size)
    for _ in range(already):
        if lane := pool.open(Unbounded(), MAX_APPEND):
            lane.extend(min(MAX_APPEND, pool.spare * block_size))
    room = pool.room(policy, MAX_APPEND)
    assert room is not None
    for _ in range(room):
        assert pool.open(policy, MAX_APPEND)
    assert pool.room(policy, MAX_APPEND) == 0
    assert pool.open(policy, MAX_APPEND) is None


def test_room_for_unbounded_lanes_has_no_number_until_the_pool_is_full() -> None:
    pool = BlockPool(2, 4)
    lane = pool.open(Unbounded(), MAX_APPEND)
    assert lane
    assert pool.room(Unbounded(), MAX_APPEND) is None
    assert lane.extend(8)
    assert pool.room(Unbounded(), MAX_APPEND) == 0


def test_more_than_the_largest_append_is_a_programming_error_that_changes_nothing() -> None:
    pool = BlockPool(10, 4)
    lane = pool.open(Window(8, 0), 4)
    assert lane
    with pytest.raises(ValueError, match="5 tokens, at most 4"):
        lane.extend(5)
    assert lane.length == 0
    assert pool.leased == 0


@given(
    st.integers(0, 9),
    st.integers(0, 20),
    st.integers(1, 5),
    st.lists(st.integers(1, MAX_APPEND), max_size=40),
)
def test_every_visible_index_is_held_when_it_is_looked_at(
    sinks: int, more: int, block_size: int, appends: list[int]
) -> None:
    policy = Window(max(1, sinks + more), sinks)
    pool = BlockPool(60, block_size)
    lane = pool.open(policy, MAX_APPEND)
    assert lane
    for tokens in appends:
        start = lane.length
        assert lane.extend(tokens)
        seen = [p for p in range(lane.length) if p < sinks or p > start - policy.window]
        assert all(p // block_size in lane.table for p in seen)
        lane.retire()


def test_sinks_apart_take_pinned_blocks_for_as_long_as_the_lane_lives() -> None:
    pool = BlockPool(100, 2, pinned=5)
    policy = Window(6, 3)  # two blocks of sinks
    first, second = pool.open(policy, 4), pool.open(policy, 4)
    assert first is not None
    assert second is not None
    assert len(first.pinned) == len(second.pinned) == 2
    assert not set(first.pinned) & set(second.pinned)
    assert pool.room(policy, 4) == 0
    assert pool.open(policy, 4) is None
    assert pool.open(Window(6), 4) is not None  # without sinks it needs none
    for _ in range(10):
        assert first.extend(4)
        first.retire()
        pool.check()
    first.close()
    first.close()
    pool.check()
    assert pool.room(policy, 4) == 1
    assert pool.open(policy, 4) is not None


def test_a_pinned_block_that_is_lost_is_noticed() -> None:
    pool = BlockPool(100, 2, pinned=5)
    lane = pool.open(Window(6, 3), 4)
    assert lane is not None
    lane.pinned.pop()
    with pytest.raises(AssertionError, match="pinned blocks lost or held twice: 1 held of 5"):
        pool.check()
