"""The search for the largest N, and when a point is given up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.load.saturation import doomed
from metronome_cli.load.search import largest, next_n, too_few

from .runs import a_call, a_run


def searched(truth: int, first: int, most: int) -> dict[int, bool]:
    tried: dict[int, bool] = {}
    while (n := next_n(tried, first, most)) is not None:
        assert n not in tried
        tried[n] = n <= truth
    return tried


@given(st.integers(0, 3000), st.integers(1, 100), st.integers(1, 2000))
def test_the_largest_n_is_found_in_a_logarithm_of_tries(truth: int, first: int, most: int) -> None:
    tried = searched(truth, first, most)
    assert largest(tried) == min(truth, most)
    assert len(tried) <= 2 * max(truth, first, 2).bit_length() + 1
    assert all(1 <= n <= most for n in tried)


def test_a_search_goes_on_from_what_was_tried() -> None:
    assert searched(37, 4, 1024) == {4: True, 8: True, 16: True, 32: True, 64: False, 48: False, 40: False,
                                     36: True, 38: False, 37: True}  # fmt: skip
    assert next_n({4: True, 8: True}, 4, 1024) == 16
    assert next_n({4: True, 8: False}, 4, 1024) == 6


def test_an_n_that_held_above_one_that_did_not_is_luck_and_does_not_count() -> None:
    assert largest({4: True, 8: False, 16: True}) == 4


def test_a_point_is_lost_once_more_frames_failed_than_its_p99_can_bear(told: Any) -> None:
    def late(count: int) -> Any:
        run = a_run(told, [float(due) for due in range(2, 600, 2)], end=600.0)
        for frame in run.frames[:count]:
            frame.last = frame.due + 2.5
        run.plan = run.plan.__class__("127.0.0.1", 1, 600.0)
        return run

    # 300 frames of 2 s: three may be late, and one more stands on the edge of p99.
    assert doomed(late(4), 598.0) is None
    assert "5 frames" in str(doomed(late(5), 598.0))


@pytest.mark.parametrize(
    ("fate", "why"),
    [
        ("refused", "a call was refused (pool_full)"),
        ("cut_off", "a call was cut off (pool_full)"),
        ("unreachable", "a call was unreachable (pool_full)"),
        ("done", None),
        ("vanished", None),
    ],
)
def test_a_lost_call_is_final(told: Any, fate: Any, why: str | None) -> None:
    run = a_run(told, [2.0, 4.0], end=5.0)
    other = a_call(1)
    other.fate, other.why = fate, "pool_full"
    run.calls.append(other)
    assert doomed(run, 4.5) == why


def test_silence_is_final_and_a_slow_start_is_not(told: Any) -> None:
    run = a_run(told, [2.0, 4.0], end=5.0)
    assert doomed(run, 5.0) is None
    assert doomed(run, 20.0) == "every call is silent"
    run.frames, run.period_s = [], None
    assert doomed(run, 20.0) is None


@pytest.mark.parametrize(("n", "takes"), [(8, "--duration 90s"), (19, "--duration 40s"), (20, "")])
def test_a_run_that_judged_too_few_to_hold_says_how_long_it_takes(n: int, takes: str) -> None:
    rows = [{"name": "calls lost", "measured": 0}, {"name": "freshness", "measured": 1.0, "n": n}]
    said = too_few({"limits": rows, "frames": {"closed": 200}, "elapsed_s": 30.0})
    assert bool(said) == bool(takes)
    assert takes in said
    assert not said or f"only {n} frames" in said
