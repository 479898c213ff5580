"""The one definition of what a token sees, and that no session ever needs more blocks than were reserved."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import ProfileError
from metronome_cli.window import (
    Policy,
    Recycle,
    Unbounded,
    Window,
    blocks_for,
    most_blocks,
    oldest_needed,
    reach,
    sees,
)

windows = st.builds(Window, st.integers(1, 12), st.integers(0, 15))


def seen(policy: Policy, t: int) -> set[int]:
    return {p for p in range(t + 3) if sees(policy, t, p)}


# W = 4, S = 2: t = S, W-1, W, W+1, S+W, and one further.
@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (2, {0, 1, 2}),
        (3, {0, 1, 2, 3}),
        (4, {0, 1, 2, 3, 4}),
        (5, {0, 1, 2, 3, 4, 5}),
        (6, {0, 1, 3, 4, 5, 6}),
        (7, {0, 1, 4, 5, 6, 7}),
    ],
)
def test_a_token_sees_the_sinks_and_the_last_w_tokens_itself_included(t: int, expected: set[int]) -> None:
    assert seen(Window(4, 2), t) == expected


@given(windows, st.integers(0, 40))
def test_the_keys_in_view_grow_to_s_plus_w_and_stay_there(policy: Window, t: int) -> None:
    assert len(seen(policy, t)) == min(t + 1, policy.window + policy.sinks)


@given(st.sampled_from([Unbounded(), Recycle(8), Recycle(8, 3)]), st.integers(0, 40))
def test_without_a_sliding_window_a_token_sees_all_that_came_before(policy: Policy, t: int) -> None:
    assert seen(policy, t) == set(range(t + 1))


def test_nothing_before_the_first_token_is_seen() -> None:
    assert not sees(Unbounded(), 3, -1)
    assert not sees(Window(4, 2), 3, -1)


def test_the_reach_leaves_room_in_64_bits() -> None:
    window, sinks = reach(Unbounded())
    assert (window + 2**61, sinks) < (2**63, 1)


@given(windows | st.just(Unbounded()), st.integers(0, 40))
def test_oldest_needed_is_the_first_key_past_the_sinks_that_anyone_can_still_see(
    policy: Policy, length: int
) -> None:
    _, sinks = reach(policy)
    later = range(length, length + 30)
    first = next(p for p in range(sinks, length + 30) if any(sees(policy, t, p) for t in later))
    assert oldest_needed(policy, length) == first


def needed_blocks(policy: Window, block_size: int, length: int, append: int) -> int:
    """Blocks that hold a key which one of the `append` tokens after `length` sees: looks at every one."""
    after = range(length, length + append)
    keys = (p for p in range(length + append) if any(sees(policy, t, p) for t in after))
    return len({p // block_size for p in keys})


appends = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(windows, st.integers(1, 6), appends)
def test_a_windowed_session_never_needs_more_than_its_reservation(
    policy: Window, block_size: int, sizes: list[int]
) -> None:
    bound = most_blocks(policy, block_size, max(sizes))
    assert bound is not None
    length = 0
    for size in sizes:
        assert needed_blocks(policy, block_size, length, size) <= bound
        length += size


@given(windows, st.integers(1, 6), st.integers(1, 9))
def test_a_reservation_is_at_most_one_block_too_large(policy: Window, block_size: int, append: int) -> None:
    bound = most_blocks(policy, block_size, append)
    assert bound is not None
    apart = policy.sinks + policy.window + block_size
    most = max(needed_blocks(policy, block_size, apart + shift, append) for shift in range(block_size))
    assert bound - 1 <= most <= bound


def recycled_lengths(policy: Recycle, sizes: list[int]) -> Iterator[int]:
    """Tokens held after each append by a session that starts over with `carry` of them when it is full."""
    length = 0
    for size in sizes:
        if length + size > policy.window:
            length = min(length, policy.carry)
        length += size
        yield length


@given(st.data(), st.integers(1, 6), appends)
def test_a_recycled_session_never_needs_more_than_its_reservation(
    data: st.DataObject, block_size: int, sizes: list[int]
) -> None:
    carry = data.draw(st.integers(0, 12))
    # What Profile.check_fit demands: an append fits beside what is carried over.
    policy = Recycle(max(2, carry + max(sizes) + data.draw(st.integers(0, 12))), carry)
    bound = most_blocks(policy, block_size, max(sizes))
    assert bound is not None
    assert all(blocks_for(length, block_size) <= bound for length in recycled_lengths(policy, sizes))


def test_an_unbounded_session_has_no_bound() -> None:
    assert most_blocks(Unbounded(), 16, 64) is None


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Window(0), "window.window"),
        (lambda: Window(4, -1), "window.sinks"),
        (lambda: Recycle(1), "window.window"),
        (lambda: Recycle(4, 4), "window.carry"),
        (lambda: Recycle(4, -2), "window.carry"),
    ],
)
def test_a_policy_out_of_range_is_refused_by_field(make: Callable[[], Policy], field: str) -> None:
    with pytest.raises(ProfileError, match=field):
        make()


def test_recycle_carries_half_of_the_window_unless_told_otherwise() -> None:
    assert Recycle(9).carry == 4
    assert Recycle(9, 0).carry == 0
