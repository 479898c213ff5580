"""What a run came to, in a line: held, or by what it was missed and what to try."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metronome_cli.load import limits, results
from metronome_cli.trace import TickRecord

from .runs import a_call, a_run


def found(told: Any, beat_s: float = 0.5, **frame: Any) -> dict[str, Any]:
    """A run of 29 frames, in beats that took so long."""
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0, **frame)
    run.ticks = [
        TickRecord(tick=n, due=at, start=at, done=at + beat_s)
        for n, at in enumerate(np.arange(2.0, 60.0, 2.0).tolist())
    ]
    return results.summarise(run)


def test_a_run_that_held_says_in_what_and_of_how_many(told: Any) -> None:
    assert limits.verdict(found(told)) == (
        "Held: freshness to the last token 0.600 of 2 s (max of 29), cadence 100.0 of 99 %, never silent."
    )


def test_a_run_of_slow_beats_says_how_slow_and_what_to_try(told: Any) -> None:
    assert limits.verdict(found(told, beat_s=3.2, fresh=3.1)) == (
        "Missed: freshness to the last token 3.200 of 2 s (max of 29). "
        "Beats took 3.2 of 2 s: try fewer calls, or end other programs where the server runs."
    )


def test_a_full_pool_is_told_from_slow_beats(told: Any) -> None:
    said = limits.verdict(found(told, beat_s=3.2, fresh=None, stalled=True))
    assert "silent from 2.0 s on" in said
    assert "The pool was full: try fewer calls" in said
    assert "Beats" not in said


def test_a_run_that_missed_though_its_beats_were_in_time_points_at_the_way_there(told: Any) -> None:
    assert "our own packet lag" in limits.verdict(found(told, fresh=3.0))


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("refused", "Missed: 1 calls refused. The server let in 1 of 2 calls (pool_full): try fewer"),
        ("cut_off", "Missed: 1 calls lost. Lines went dead"),
    ],
)
def test_calls_that_were_refused_or_lost_come_first(told: Any, fate: Any, said: str) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    other = a_call(1)
    other.fate, other.why = fate, "pool_full"
    other.frames = None if fate == "refused" else other.frames
    run.calls.append(other)
    summary = results.summarise(run)
    assert limits.verdict(summary).startswith(said)
    assert summary["calls"]["lost"] == (fate == "cut_off")  # a number, as in the table


def test_what_could_not_be_measured_is_neither_held_nor_missed(told: Any) -> None:
    summary = results.summarise(a_run(told, [], end=60.0))
    assert limits.verdict(summary) == (
        "Not measured: freshness to the last token, cadence, moment of silence."
    )
