"""A run in steps of elapsed time and of session age."""

from __future__ import annotations

from typing import Any

import pytest

from metronome_cli.load import buckets
from metronome_cli.load.figures import Missed
from metronome_cli.trace import TickRecord


def test_a_frame_counts_in_the_bucket_in_which_it_was_due(told: Any) -> None:
    frames = [told.frame(9.99, 3.0), told.frame(10.0, 0.5), told.frame(20.0, None, stalled=True)]
    ticks = [
        TickRecord(tick=n, due=t, start=t, done=t, kv_leased=n, kv_total=4) for n, t in enumerate((3, 12, 14))
    ]
    found = buckets.by_elapsed(frames, ticks, start=0.0, elapsed_s=24.0)
    assert [(b["from_s"], b["to_s"], b["frames"], b["stalled"]) for b in found] == [
        (0.0, 10.0, 1, 0),
        (10.0, 20.0, 1, 0),
        (20.0, 24.0, 1, 1),
    ]
    assert [b["occupancy"] for b in found] == [0.0, 0.5, None]
    assert found[0]["freshness"]["first_s"]["p50"] == pytest.approx(3.0)


def test_a_frame_that_was_never_told_counts_where_it_was_due(told: Any) -> None:
    missed = [Missed(1, due, due + 30.0) for due in (9.9, 10.0, 12.0, 24.9)]
    found = buckets.by_elapsed([told.frame(1.0), told.frame(12.0, session=1)], [], 0.0, 24.0, missed=missed)
    assert [(b["frames"], b["missing"], b["sessions"]) for b in found] == [(1, 1, 2), (1, 2, 1), (0, 1, 1)]
    ages = buckets.by_age([told.frame(12.0, session=1, age_s=12.0)], 10.0, missed)
    assert [b["missing"] for b in ages] == [0, 0, 0, 1, 2, 1]


def test_where_nobody_can_say_when_a_frame_was_due_none_is_said_to_be_missing(told: Any) -> None:
    [bucket] = buckets.by_elapsed([told.frame(1.0)], [], 0.0, 5.0)
    assert bucket["missing"] is None


def test_hanging_up_is_no_bucket_of_its_own(told: Any) -> None:
    found = buckets.by_elapsed([told.frame(20.0)], [], start=0.0, elapsed_s=20.03)
    assert [(b["to_s"], b["frames"]) for b in found] == [(10.0, 0), (20.0, 1)]


def test_old_and_young_calls_of_one_moment_part_by_age(told: Any) -> None:
    frames = [told.frame(100.0, 2.0, age_s=95.0), told.frame(100.0, 0.5, session=1, age_s=4.0)]
    found = buckets.by_age(frames, width_s=10.0)
    assert [(b["from_s"], b["frames"], b["sessions"]) for b in found if b["frames"]] == [
        (0.0, 1, 1),
        (90.0, 1, 1),
    ]
    assert found[0]["freshness"]["first_s"]["p50"] == pytest.approx(0.5)
    assert found[-1]["freshness"]["first_s"]["p50"] == pytest.approx(2.0)


def test_a_run_without_frames_has_no_ages() -> None:
    assert buckets.by_age([], width_s=10.0) == []


@pytest.mark.parametrize(
    ("length_s", "width_s"), [(5.0, 10.0), (300.0, 10.0), (301.0, 30.0), (3600.0, 120.0), (1e9, 3600.0)]
)
def test_buckets_are_round_and_few_enough_to_be_read(length_s: float, width_s: float) -> None:
    assert buckets.width(length_s) == width_s
