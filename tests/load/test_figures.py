"""Figures over frames: freshness, its slope, silence, waits after speech."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metronome_cli.load import figures

from .runs import a_call


def test_freshness_counts_from_the_due_time_to_the_first_and_to_the_last_token(told: Any) -> None:
    fresh = figures.freshness([told.frame(2.0, 0.3), told.frame(4.0, 0.5), told.frame(6.0, None)])
    assert fresh is not None
    assert fresh["first_s"]["p50"] == pytest.approx(0.4)
    assert fresh["last_s"]["p50"] == pytest.approx(0.5)


def test_the_callers_own_lateness_is_in_what_it_felt_and_not_in_what_the_server_took(told: Any) -> None:
    fresh = figures.freshness([told.frame(2.0, 0.7, lag=0.4)])
    assert fresh is not None
    assert fresh["first_s"]["p50"] == pytest.approx(0.7)
    assert fresh["first_less_lag_s"]["p50"] == pytest.approx(0.3)


def test_frames_without_a_token_have_no_freshness(told: Any) -> None:
    assert figures.freshness([told.frame(2.0, None)]) is None


def test_silence_begins_with_the_first_frame_after_the_last_one_that_lived(told: Any) -> None:
    alive = [told.frame(due, session=s) for s in (0, 1) for due in (2.0, 4.0)]
    # Session 1 lives one frame longer; single stalls before that are no silence.
    alive += [told.frame(6.0, None, session=0, stalled=True), told.frame(6.1, session=1)]
    dead = [told.frame(due, None, session=s, stalled=True) for s in (0, 1) for due in (8.0, 10.0, 12.0, 14.0)]
    assert figures.silence(alive + dead, end=16.0, period_s=2.0) == pytest.approx(8.0)
    assert figures.silence(alive + dead, end=16.0, period_s=2.0, start=3.0) == pytest.approx(5.0)


def test_one_session_that_still_speaks_breaks_the_silence(told: Any) -> None:
    frames = [told.frame(due, None, session=0, stalled=True) for due in range(2, 60, 2)]
    frames += [told.frame(due, session=1) for due in range(2, 60, 2)]
    assert figures.silence(frames, end=60.0, period_s=2.0) is None


def test_a_session_that_listens_is_not_silent_but_one_that_stalls_while_listening_is(told: Any) -> None:
    def listening(stalled: bool) -> list[Any]:
        return [told.frame(due, None, speaking=False, stalled=stalled) for due in range(2, 60, 2)]

    assert figures.silence(listening(stalled=False), end=60.0, period_s=2.0) is None
    assert figures.silence(listening(stalled=True), end=60.0, period_s=2.0) == pytest.approx(2.0)


def test_a_server_that_stops_telling_ticks_is_silent_too(told: Any) -> None:
    frames = [told.frame(due) for due in (2.0, 4.0, 6.0)]
    assert figures.silence(frames, end=60.0, period_s=2.0) == pytest.approx(8.0)


def test_the_last_frame_of_a_healthy_run_is_not_taken_for_silence(told: Any) -> None:
    frames = [told.frame(due) for due in range(2, 58, 2)]
    assert figures.silence(frames, end=60.0, period_s=2.0) is None


def test_without_tick_events_nobody_can_speak_of_silence() -> None:
    assert figures.silence([], end=60.0, period_s=None) is None


def test_the_wait_after_speech_ends_at_the_first_token_before_speech_ends_again() -> None:
    call = a_call()
    for _ in range(1000):
        call.stream.packet()
    assert call.frames is not None
    ends = call.stream.speech_ends()
    for at in (ends[0] - 0.1, ends[0] + 0.25, ends[0] + 0.3, ends[2] + 0.5):
        call.frames.token(at, "x")
    waits = figures.waits_after_speech(call)
    assert waits == pytest.approx([0.25, 0.5])


def test_a_server_that_slows_down_with_age_has_a_slope_above_zero_and_its_interval_too(told: Any) -> None:
    found = figures.slope([told.frame(due, 0.5 + 0.001 * due) for due in range(2, 600, 2)])
    assert found is not None
    assert found["s_per_min"] == pytest.approx(0.06)
    assert 0 < found["low"] <= found["s_per_min"] <= found["high"]


def test_noise_alone_has_no_slope_that_its_interval_does_not_doubt(told: Any) -> None:
    noise = np.random.default_rng(3).normal(0.5, 0.05, 300)
    found = figures.slope([told.frame(2 * n, float(late)) for n, late in enumerate(noise)])
    assert found is not None
    assert found["low"] < 0 < found["high"]


def test_a_long_run_of_many_calls_has_its_slope_in_bounded_memory(told: Any) -> None:
    # 50,000 frames of 50 calls: pairs of all of them would be 10 GB.
    frames = [
        told.frame(float(n // 50), 0.5 + (n % 50) / 100 + n / 5e6, session=n % 50) for n in range(50_000)
    ]
    found = figures.slope(frames)
    assert found is not None
    assert found["low"] < 60 * 1e-5 < found["high"]


@pytest.mark.parametrize(("n", "tail"), [(1, 0.0), (99, 98.0), (100, 98.01), (500, 494.01)])
def test_the_tail_of_too_few_values_is_the_largest(n: int, tail: float) -> None:
    found = figures.cuts([float(value) for value in range(n)])
    assert found is not None
    assert (found["n"], found["max"]) == (n, n - 1)
    assert figures.tail(found) == pytest.approx(tail)


def test_nothing_has_no_percentiles_and_no_largest() -> None:
    assert figures.cuts([]) is None


def test_without_two_ages_there_is_no_slope(told: Any) -> None:
    assert figures.slope([]) is None
    assert figures.slope([told.frame(2.0), told.frame(2.0), told.frame(2.0)]) is None


def test_beats_left_out_were_due_on_the_grid_of_the_others_and_so_were_those_after_the_last(
    told: Any,
) -> None:
    call = a_call(7)
    call.ended = 29.9
    # The one at tick 10 comes first after a stand-still, with next to nothing of what was said meanwhile.
    dues = {4: 1.0, 5: 3.0, 10: 3.5, 11: 15.0, 12: 17.0}
    frames = [told.frame(due, session=7, tick=tick, age_s=due - 0.5) for tick, due in dues.items()]
    missed = figures.missed_frames(call, frames, end=60.0, period_s=2.0)
    # The one due at 29 may still come in time when the call ends.
    assert [miss.due for miss in missed] == [5.0, 7.0, 9.0, 11.0, 19.0, 21.0, 23.0, 25.0, 27.0]
    assert [miss.age_s for miss in missed] == [miss.due - 0.5 for miss in missed]
    assert {miss.session for miss in missed} == {7}
    call.ended = 19.9
    assert len(figures.missed_frames(call, frames[:3], end=60.0, period_s=2.0)) == 4 + 2


def test_a_call_that_was_told_of_no_beat_misses_none(told: Any) -> None:
    assert figures.missed_frames(a_call(), [], end=60.0, period_s=2.0) == []


def test_nobody_is_silent_after_the_last_caller_hung_up(told: Any) -> None:
    call = a_call()
    call.ended = 6.5
    assert figures.last_hung_up([call], end=60.0) == 6.5
    call.ended = None
    assert figures.last_hung_up([call], end=60.0) == 60.0
