"""What a run's figures come to: limits, cadence, notes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from metronome_cli.load import limits, results
from metronome_cli.load.call import Call, Cancel
from metronome_cli.load.caller import BROKEN
from metronome_cli.load.protocols import Fault
from metronome_cli.load.targets import TurnedAway

from .runs import a_call, a_run


def test_a_due_frame_that_was_never_told_lowers_the_cadence(told: Any) -> None:
    healthy = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=9.0))
    hung = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=16.6))
    assert healthy["frames"]["cadence"] == 1.0
    assert (hung["frames"]["due"], hung["frames"]["cadence"]) == (7, 4 / 7)


def test_a_frame_that_may_still_come_in_time_when_the_call_ends_is_not_missed(told: Any) -> None:
    cut_short = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=11.9))
    too_late = results.summarise(a_run(told, [2.0, 4.0, 6.0, 8.0], end=12.1))
    assert cut_short["frames"]["due"] == 4
    assert too_late["frames"]["due"] == 5


def test_a_healthy_run_is_held(told: Any) -> None:
    found = results.summarise(a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0))
    assert limits.held(found)
    assert results.notes(found) == []


@pytest.mark.parametrize(
    ("frame", "missed"),
    [
        ({"fresh": 2.5}, limits.FRESHNESS),
        ({"fresh": 1.95}, limits.FRESHNESS),  # the last token is 0.1 s later
        ({"fresh": None, "stalled": True}, "moment of silence (s)"),
        ({"fresh": None, "stalled": True}, "cadence (frames delivered / due)"),
    ],
)
def test_a_missed_limit_is_named(told: Any, frame: dict[str, Any], missed: str) -> None:
    found = results.summarise(a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0, **frame))
    assert not limits.held(found)
    assert missed in [limit["name"] for limit in found["limits"] if not limit["held"]]


def test_one_late_frame_of_too_few_for_a_p99_misses_the_limit_and_of_many_does_not(told: Any) -> None:
    for frames, holds in ((30, False), (200, True)):
        run = a_run(told, [2.0 * n for n in range(1, frames)], end=2.0 * frames)
        run.frames[5].last = run.frames[5].due + 2.5
        row = results.summarise(run)["limits"][2]
        assert (row["name"], row["n"], row["held"]) == (
            limits.FRESHNESS,
            frames - 1,
            holds,
        )
        assert row["measured"] == pytest.approx(2.5 if frames == 30 else 0.6)
        assert row["end"] == ("max" if frames == 30 else "p99")


def test_what_dialling_again_came_to_stands_beside_the_calls_that_were_refused_for_good(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    late, never = a_call(1), a_call(2)
    late.refusals, late.attempts, late.dialled = [TurnedAway("ramp", 1.0)] * 2, 3, -4.5
    never.refusals, never.attempts = [TurnedAway("ramp"), TurnedAway("pool_full", 2.0)], 2
    never.fate, never.why, never.frames = "refused", "pool_full", None
    run.calls += [late, never]
    found = results.summarise(run)
    assert found["calls"]["refused"] == {"pool_full": 1}
    assert found["calls"]["refusals"] == {"ramp": 3, "pool_full": 1}
    assert (found["calls"]["redials"], found["calls"]["retry_after_s"]) == (3, 2.0)
    assert found["calls"]["let_in_late_s"] == {"p50": 4.5, "p90": 4.5, "max": 4.5, "n": 1}
    assert [(row["attempts"], row["waited_s"]) for row in found["sessions"][1:]] == [(3, 4.5), (2, None)]


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
    assert [limit["held"] for limit in found["limits"][2:]] == [None, None, None]
    assert not limits.held(found)
    assert "not measurable" in results.notes(found)[0]


def test_a_caller_that_is_late_itself_says_so(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    frames = run.calls[0].frames
    assert frames is not None
    frames.sent(0, frames.due(0) + 0.5)
    assert "the caller itself was late" in results.notes(results.summarise(run))[0]


def test_a_server_that_skips_beats_misses_its_cadence_however_fresh_the_rest_is(told: Any) -> None:
    dues = [due for due in np.arange(2.0, 62.0, 2.0) if due not in (20.0, 40.0)]  # of thirty
    run = a_run(told, dues, end=61.0)
    found = results.summarise(run)
    assert [limit["name"] for limit in found["limits"] if not limit["held"]] == [
        "cadence (frames delivered / due)"
    ]


def test_a_budget_of_the_users_own_stands_in_for_the_frame(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0, fresh=0.5)
    run.plan = replace(run.plan, budget_s=0.4)
    found = results.summarise(run)
    assert [(limit["limit"], limit["held"]) for limit in found["limits"] if "freshness" in limit["name"]] == [
        (0.4, False)
    ]


def test_with_a_budget_a_server_without_ticks_is_judged_by_the_time_after_speech(told: Any) -> None:
    run = a_run(told, [], end=60.0)
    run.plan = replace(run.plan, budget_s=0.4)
    call = run.calls[0]
    for _ in range(1000):
        call.stream.packet()
    assert call.frames is not None
    call.frames.token(call.stream.speech_ends()[0] + 0.3, "x")
    found = results.summarise(run)
    assert found["limits"][-1] == {
        "name": limits.JUDGED_BY_SPEECH,
        "limit": 0.4,
        "measured": pytest.approx(0.3),
        "held": True,
        "end": "max",
        "n": 1,
    }
    assert limits.held(found)
    assert "not measurable" in results.notes(found)[0]


def test_what_a_cancelled_reply_still_says_is_counted_and_timed(told: Any) -> None:
    run = a_run(told, [2.0, 4.0], end=5.0)
    run.calls[0].cancels = {"a": Cancel("a", 2.5, last=2.75), "b": Cancel("b", 4.0)}
    found = results.summarise(run)["cancels"]
    assert (found["sent"], found["went_on"]) == (2, 1)
    assert found["went_on_s"]["p50"] == pytest.approx(0.25)


def test_the_key_of_a_server_never_comes_into_a_report(told: Any) -> None:
    run = a_run(told, [2.0, 4.0], end=5.0)
    run.plan = replace(run.plan, api_key="sk-secret")
    assert "sk-secret" not in repr(results.summarise(run)) + repr(run.plan)


def test_calls_that_would_have_come_after_the_end_are_not_passed_over(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    run.plan = replace(run.plan, sessions=5, rate_hz=0.01)
    assert results.notes(results.summarise(run)) == ["4 calls would have come after the end of the run"]


def test_how_much_of_a_call_was_speech_stands_beside_its_figures(told: Any) -> None:
    run = a_run(told, [2.0, 4.0], end=5.0)
    assert results.summarise(run)["speech_share"] is None
    stream = run.calls[0].stream
    for _ in range(500):
        stream.packet()
    assert results.summarise(run)["speech_share"] == pytest.approx(stream.speech_share)


def cut_off(number: int, at: float, why: str, error: str = "") -> Call:
    call = a_call(number)
    call.fate, call.why, call.ended = "cut_off", why, at
    if error:
        call.object(error, at)
    return call


@pytest.mark.parametrize(
    ("cut", "unreachable", "said"),
    [
        (
            [(30.0, BROKEN), (30.5, BROKEN)],
            3,
            "the server went away after 30.0 s: all 2 calls were cut off; 3 dials found nobody "
            "(2 the line broke without a goodbye)",
        ),
        (
            [(30.0, "closed by the server, 1011", "engine_dead")],
            0,
            "the server's engine went away after 30.0 s: all 1 calls were cut off "
            "(1 closed by the server, 1011)",
        ),
        (
            [(30.0, "closed by the server, 1011", "engine_hung")],
            0,
            "the server's engine, which had stopped answering, went away after 30.0 s: all 1 calls were cut "
            "off (1 closed by the server, 1011)",
        ),
        (
            [(10.0, BROKEN), (30.0, BROKEN)],
            0,
            "2 calls were cut off, the first after 10.0 s (2 the line broke without a goodbye)",
        ),
        (
            [(10.0, "closed by the server, 4408 idle", "session_idle")],
            0,
            "1 calls were cut off, the first after 10.0 s (1 closed by the server, 4408 idle)",
        ),
    ],
)
def test_a_server_that_went_away_under_load_is_said_in_so_many_words(
    told: Any, cut: list[Any], unreachable: int, said: str
) -> None:
    run = a_run(told, [2.0, 4.0], end=60.0)
    run.calls = [cut_off(number, *how) for number, how in enumerate(cut)]
    for number in range(unreachable):
        nobody = a_call(10 + number)
        nobody.fate, nobody.frames = "unreachable", None
        run.calls.append(nobody)
    assert results.notes(results.summarise(run))[0] == said


def test_where_another_call_went_on_the_server_did_not_go_away(told: Any) -> None:
    run = a_run(told, [2.0, 4.0], end=60.0)
    run.calls[0].ended = 60.0
    run.calls.append(cut_off(1, 30.0, BROKEN))
    assert results.notes(results.summarise(run))[0].startswith("1 calls were cut off, the first after 30.0 s")


def test_a_retry_after_that_is_longer_than_the_run_is_explained(told: Any) -> None:
    run = a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0)
    late = a_call(1)
    late.fate, late.why, late.frames, late.out_of_time = "refused", "ramp", None, True
    late.refusals = [TurnedAway("ramp", 120.0)]
    run.calls.append(late)
    assert results.notes(results.summarise(run)) == [
        "1 refused calls were not dialled again: the run would have ended before their time came (the server "
        "said up to 120 s, twice as long each time); a longer --duration lets them try"
    ]


def test_what_a_stand_still_cost_is_counted_as_missing_and_when_callers_were_told_is_noted(told: Any) -> None:
    dues = [2.0, 4.0, 6.0, 20.0, 22.0]  # a beat of 2 s that stood still from 6 to 20
    run = a_run(told, dues, end=23.0)
    run.start = 1.0
    for at in (13.2, 17.0):
        run.calls[0].note(run.calls[0].frames, Fault("engine_busy"), at)  # type: ignore[arg-type]
    run.calls[0].object("odd", 5.0)
    found = results.summarise(run)
    assert {name: found["frames"][name] for name in ("due", "closed", "missing", "stalled", "empty")} == {
        "due": 11, "closed": 5, "missing": 6, "stalled": 0, "empty": 0,
    }  # fmt: skip
    # The run began at 1 s: the beats at 8 and 10 s, then those at 12 to 18 s.
    assert [(cut["frames"], cut["missing"]) for cut in found["buckets"]] == [(3, 2), (1, 4), (1, 0)]
    assert sum(cut["missing"] for cut in found["ages"]) == 6
    said = results.notes(found)
    assert "2 error events: engine_busy, between 12.2 and 16.0 s" in said
    assert "1 error event: odd, after 4.0 s" in said


def test_a_server_that_answers_no_speech_is_told_how_it_can_be_measured(told: Any) -> None:
    run = a_run(told, [2.0, 4.0, 6.0], end=7.0)
    run.frames = [msgspec.structs.replace(frame, first=None, last=None) for frame in run.frames]
    (note,) = results.notes(results.summarise(run))
    assert "freshness is not measurable: no frame brought a token" in note
    assert 'null answer none, and are measured with model.mode = "free"' in note


def test_how_full_the_windows_were_is_the_middle_calls_share_where_one_is_told(told: Any) -> None:
    run = a_run(told, [2.0, 4.0, 6.0], end=8.0, tokens_in=20, tokens_out=5)
    assert results.summarise(run)["window_filled"] is None
    run.calls[0].window = 300
    assert results.summarise(run)["window_filled"] == pytest.approx(0.25)
    run.calls[0].window = 50
    assert results.summarise(run)["window_filled"] == 1.0


def test_a_report_has_no_p99_of_too_few_values(told: Any) -> None:
    found = results.summarise(a_run(told, list(np.arange(2.0, 60.0, 2.0)), end=60.0))
    assert (found["freshness"]["last_s"]["p99"], found["freshness"]["last_s"]["n"]) == (None, 29)
