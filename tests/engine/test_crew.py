"""Rows shared out among threads: each row once, in order, and computed as one thread does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.engine.crew import Crew
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.window import Policy, Recycle, Unbounded, Window

from .conftest import Tiny


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@given(st.lists(st.integers(1, 64), max_size=20), st.integers(1, 5))
def test_every_row_is_in_one_share_and_none_is_much_larger_than_its_due(costs: list[int], count: int) -> None:
    with threads(count):
        shares = Crew().shares(costs)
    places = list(range(len(costs)))
    assert [place for share in shares for place in places[share]] == places
    assert 1 <= len(shares) <= count
    if len(costs) > 1:
        largest = max(sum(costs[share]) for share in shares)
        assert largest <= sum(costs) / min(count, len(costs)) + max(costs)


def test_one_row_is_left_to_all_threads() -> None:
    with threads(2):
        assert Crew().shares([50]) == [slice(0, 1)]


def test_tensors_of_another_device_are_computed_in_the_callers_thread() -> None:
    with threads(2), torch.device("meta"):
        assert Crew().shares([5, 5]) == [slice(0, 2)]


def test_what_goes_wrong_in_a_thread_is_the_callers_error() -> None:
    with threads(2):
        crew = Crew()
    with pytest.raises(ZeroDivisionError):
        crew.run(lambda share: 1 // share.start, [slice(0, 1), slice(1, 2)])


def steps(llama: Tiny, count: int) -> list[torch.Tensor]:
    """Hidden states of ragged steps over sessions of all policies, computed by so many threads."""
    with threads(count):
        engine = Engine(load_decoder(llama.folder), 200, 4, max_append=16)
        policies: list[Policy] = [
            Window(12, 4),
            Unbounded(),
            Recycle(40, 8),
            Window(20, 0),
            Window(9, 9),
            Unbounded(),
        ]
        sessions = [engine.open(policy) for policy in policies]
        draw = torch.Generator().manual_seed(1)
        found = []
        for _ in range(12):
            lengths = torch.randint(0, 16, (len(policies),), generator=draw).tolist()
            ids = torch.randint(0, 97, (sum(lengths),), generator=draw)
            output = engine.step(
                [s for s in sessions if s is not None], lengths, ids, sample=[n > 0 for n in lengths]
            )
            found.append(output.hidden)
        engine.pool.check()
    return found


def test_threads_change_nothing_in_what_a_step_computes(llama: Tiny) -> None:
    alone = steps(llama, 1)
    for count in (2, 3):
        for one, many in zip(alone, steps(llama, count), strict=True):
            torch.testing.assert_close(many, one, atol=1e-4, rtol=1e-4)
