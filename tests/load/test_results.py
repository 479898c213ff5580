"""Arithmetic on records: freshness, silence, buckets, limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.load import results
from metronome_cli.load.call import Call
from metronome_cli.load.frames import CallFrames
from metronome_cli.load.runner import Plan, Run
from metronome_cli.speech import RATE, Clip, Stream
from metronome_cli.trace import TickRecord


def a_call(number: int = 0) -> Call:
    stream = Stream([Clip("a.wav", np.full(2 * RATE, 0.5, np.float32))], seed=1)
    call = Call(number, stream, VirtualClock(), lambda *_: None)
    call.fate, call.frames = "done", CallFrames(number, start=0.0)
    return call


def a_run(told: Any, dues: list[float], end: float, **frame: Any) -> Run:
    """One call whose frames were due at `dues`, at a period of 2 s, and ended at `end`."""
    call = a_call()
    if dues:
        call.beats, call.last_beat, call.ended = (0, len(dues) - 1), dues[-1] + 0.5, end
    run = Run(Plan("127.0.0.1:1", 1, 60.0), 0.0, [call], end=end, period_s=2.0 if dues else None)
    run.frames = [told.frame(due, **frame) for due in dues]
    return run


def test_freshness_counts_from_the_due_time_to_the_first_and_to_the_last_token(told: Any) -> None:
    fresh = results.freshness([told.frame(2.0, 0.3), told.frame(4.0, 0.5), told.frame(6.0, None)])
    assert fresh is not None
    assert fresh["first_s"]["p50"] == pytest.approx(0.4)
    assert fresh["last_s"]["p50"] == pytest.approx(0.5)


def test_the_callers_own_lateness_is_in_what_it_felt_and_not_in_what_the_server_took(told: Any) -> None:
    fresh = results.freshness([told.frame(2.0, 0.7, lag=0.4)])
    assert fresh is not None
    assert fresh["first_s"]["p50"] == pytest.approx(0.7)
    assert fresh["first_less_lag_s"]["p50"] == pytest.approx(0.3)


def test_frames_without_a_token_have_no_freshness(told: Any) -> None:
    assert results.freshness([told.frame(2.0, None)]) is None


def test_silence_begins_with_the_first_frame_after_the_last_one_that_lived(told: Any) -> None:
    alive = [told.frame(due, session=s) for s in (0, 1) for due in (2.0, 4.0)]
    # Session 1 lives one frame longer; single stalls before that are no silence.
    alive += [told.frame(6.0, None, session=0, stalled=True), told.frame(6.1, session=1)]
    dead = [told.frame(due, None, session=s, stalled=True) for s in (0, 1) for due in (8.0, 10.0, 12.0, 14.0)]
    assert results.silence(alive + dead, end=16.0, period_s=2.0) == pytest.approx(8.0)
    assert results.silence(alive + dead, end=16.0, period_s=2.0, start=3.0) == pytest.approx(5.0)


def test_one_session_that_still_speaks_breaks_the_silence(told: Any) -> None:
    frames = [told.frame(due, None, session=0, stalled=True) for due in range(2, 60, 2)]
    frames += [told.frame(due, session=1) for due in range(2, 60, 2)]
    assert results.silence(frames, end=60.0, period_s=2.0) is None


def test_a_session_that_listens_is_not_silent_but_one_that_stalls_while_listening_is(told: Any) -> None:
    def listening(stalled: bool) -> list[Any]:
        return [told.frame(due, None, speaking=False, stalled=stalled) for due in range(2, 60, 2)]

    assert results.silence(listening(stalled=False), end=60.0, period_s=2.0) is None
    assert results.silence(listening(stalled=True), end=60.0, period_s=2.0) == pytest.approx(2.0)


def test_a_server_that_stops_telling_ticks_is_silent_too(told: Any) -> None:
    frames = [told.frame(due) for due in (2.0, 4.0, 6.0)]
    assert results.silence(frames, end=60.0, period_s=2.0) == pytest.approx(8.0)


def test_the_last_frame_of_a_healthy_run_is_not_taken_for_silence(told: Any) -> None:
    frames = [told.frame(due) for due in range(2, 58, 2)]
    assert results.silence(frames, end=60.0, period_s=2.0) is None


def test_without_tick_events_nobody_can_speak_of_silence() -> None:
    assert results.silence([], end=60.0, period_s=None) is None


def test_a_frame_counts_in_the_bucket_in_which_it_was_due(told: Any) -> None:
    frames = [told.frame(9.99, 3.0), told.frame(10.0, 0.5), told.frame(20.0, None, stalled=True)]
    ticks = [
        TickRecord(tick=n, due=t, start=t, done=t, kv_leased=n, kv_total=4) for n, t in enumerate((3, 12, 14))
    ]
    found = results.buckets(frames, ticks, start=0.0, elapsed_s=24.0)
    assert [(b["from_s"], b["to_s"], b["frames"], b["stalled"]) for b in found] == [
        (0.0, 10.0, 1, 0),
        (10.0, 20.0, 1, 0),
        (20.0, 24.0, 1, 1),
    ]
    assert [b["occupancy"] for b in found] == [0.0, 0.5, None]
    assert found[0]["freshness"]["first_s"]["p50"] == pytest.approx(3.0)


def test_hanging_up_is_no_bucket_of_its_own(told: Any) -> None:
    found = results.buckets([told.frame(20.0)], [], start=0.0, elapsed_s=20.03)
    assert [(b["to_s"], b["frames"]) for b in found] == [(10.0, 0), (20.0, 1)]


def test_a_due_frame_that_was_never_told_lowers_the_cadence(told: Any) -> None:
    healthy = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=9.0))
    hung = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=16.6))
    assert healthy["frames"]["cadence"] == 1.0
    assert (hung["frames"]["due"], hung["frames"]["cadence"]) == (8, 0.5)


def test_the_wait_after_speech_ends_at_the_first_token_before_speech_ends_again() -> None:
    call = a_call()
    for _ in range(1000):
        call.stream.packet()
    assert call.frames is not None
    ends = call.stream.speech_ends()
    for at in (ends[0] - 0.1, ends[0] + 0.25, ends[0] + 0.3, ends[2] + 0.5):
        call.frames.token(at, "x")
    waits = results.waits_after_speech(call)
    assert waits == pytest.approx([0.25, 0.5])


def test_a_healthy_run_is_held(told: Any) -> None:
    found = results.summarise(a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0))
    assert results.held(found)
    assert results.notes(found) == []


@pytest.mark.parametrize(
    ("frame", "missed"),
    [
        ({"fresh": 2.5}, "freshness to the last token, p99 (s)"),
        ({"fresh": 1.95}, "freshness to the last token, p99 (s)"),  # the last token is 0.1 s later
        ({"fresh": None, "stalled": True}, "moment of silence (s)"),
    ],
)
def test_a_missed_limit_is_named(told: Any, frame: dict[str, Any], missed: str) -> None:
    found = results.summarise(a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0, **frame))
    assert not results.held(found)
    assert missed in [limit["name"] for limit in found["limits"] if not limit["held"]]


def test_refused_and_lost_calls_miss_a_limit(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    refused, cut = a_call(1), a_call(2)
    refused.fate, refused.why, refused.frames = "refused", "pool_full", None
    cut.fate = "cut_off"
    for extra, name in ((refused, "calls refused"), (cut, "calls lost")):
        run.calls = [run.calls[0], extra]
        found = results.summarise(run)
        assert [limit["name"] for limit in found["limits"] if not limit["held"]] == [name]
    run.calls = [run.calls[0], refused]
    assert results.summarise(run)["calls"]["refused"] == {"pool_full": 1}


def test_a_server_without_tick_events_is_not_measurable_rather_than_fine(told: Any) -> None:
    found = results.summarise(a_run(told, [], end=60.0))
    assert found["freshness"] is None
    assert [limit["held"] for limit in found["limits"][2:]] == [None, None]
    assert not results.held(found)
    assert "not measurable" in results.notes(found)[0]


def test_a_caller_that_is_late_itself_says_so(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    frames = run.calls[0].frames
    assert frames is not None
    frames.sent(0, frames.due(0) + 0.5)
    assert "the caller itself was late" in results.notes(results.summarise(run))[0]
