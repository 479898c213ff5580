"""When the pool will be full, with an interval that holds."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.errors import FieldError
from metronome_cli.fit.forecast import Forecast, forecast, full_at, leaving, score, spread
from metronome_cli.fit.plateau import Interval
from metronome_cli.fit.series import Series

ROOT = Path(__file__).parents[2]
T = np.arange(0.0, 100.0, 0.5)


def published(name: str) -> Series:
    with (ROOT / "tests/data" / f"{name}_qwen3_omni_30b_n128.csv").open() as file:
        rows = list(csv.DictReader(file))
    return Series.checked(
        [float(row["t_s"]) for row in rows], [float(row["kv_occupancy"]) for row in rows], name=name
    )


def ramp(rate: float = 0.008, sessions: float | None = None) -> Series:
    """A pool that fills from 5 s on."""
    rho = np.clip(rate * (T - 5.0), 0.0, 1.0)
    return Series.checked(T, rho, None if sessions is None else np.full(len(T), sessions))


def t_sat(of: Forecast) -> Interval:
    assert of.t_sat is not None
    return of.t_sat


@pytest.mark.parametrize(("fill", "most"), [(0.3, 0.11), (0.5, 0.03), (0.7, 0.02), (0.9, 0.005)])
def test_the_published_unbounded_trace_is_foretold(fill: float, most: float) -> None:
    series = published("unbounded")
    of = forecast(series, until=fill)
    found = score(series, of)
    assert of.shape == "ramp"
    assert found["full_s"] == pytest.approx(145.2, abs=0.05)  # between 0.987 and 0.998
    assert abs(found["error_share"]) < most
    assert found["inside"]


def test_the_published_unbounded_trace_as_a_whole_says_when_it_was_full() -> None:
    of = forecast(published("unbounded"))
    assert (t_sat(of).low, t_sat(of).high) == (144.4, 145.5)
    assert of.baseline == pytest.approx(144.9, abs=0.05)
    assert of.points == 83
    assert of.last_s == 299.8


@pytest.mark.parametrize("seconds", [70.0, 120.0, 200.0, 300.0])
def test_the_published_windowed_trace_is_a_plateau(seconds: float) -> None:
    series = published("windowed")
    kept = series.t_s <= seconds
    of = forecast(Series.checked(series.t_s[kept], series.occupancy[kept], np.full(kept.sum(), 128.0)))
    assert (of.shape, of.t_sat, of.baseline) == ("plateau", None, None)
    assert of.plateau is not None
    assert of.plateau.level.estimate == pytest.approx(0.2545, abs=0.001)
    assert of.plateau.per_session == pytest.approx(0.002, abs=2e-5)  # the paper: about 0.2 % a session
    assert of.plateau.ceiling in range(495, 506)  # the paper: about 500
    assert of.at(30.0) == pytest.approx(0.14, abs=0.01)
    assert of.at(300.0) == of.plateau.level.estimate


def test_the_published_windowed_trace_is_a_ramp_while_it_is_one() -> None:
    of = forecast(published("windowed"), until=0.2)
    assert of.shape == "ramp"
    assert t_sat(of).low < 150.0 < t_sat(of).high


def test_simulated_traces_are_met_and_their_intervals_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from evals.predict.simulated import guess
    from evals.predict.traces import simulated

    guesses = [guess(simulated(seed), 0.5) for seed in range(90_000, 90_060)]
    told = [of for of in guesses if of is not None]
    assert len(told) >= 59
    errors = np.abs([of.error for of in told])
    lines = np.abs([of.baseline / of.t_sat - 1 for of in told if of.baseline is not None])
    assert np.median(errors) < 0.04
    assert np.median(errors) < 0.75 * np.median(lines)
    assert 0.78 <= np.mean([of.inside[-1] for of in told]) <= 0.98


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000), zero=st.floats(-1e6, 1e9), scale=st.floats(0.1, 20.0))
def test_the_axis_of_time_is_free(seed: int, zero: float, scale: float) -> None:
    noise = np.random.default_rng(seed).uniform(-0.001, 0.001, len(T))
    here = ramp(sessions=8.0)
    here = replace(here, occupancy=np.clip(here.occupancy + noise, 0.0, 1.0))
    there = replace(here, t_s=zero + scale * here.t_s)
    one, other = (t_sat(forecast(series, until=0.6)) for series in (here, there))
    for end in ("low", "estimate", "high"):
        assert (getattr(other, end) - zero) / scale == pytest.approx(getattr(one, end), rel=1e-3)


@settings(deadline=None, max_examples=150)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 5000), st.floats(-0.1, 0.15), st.integers(0, 9)), min_size=5, max_size=60
    ),
    begin=st.floats(0.0, 1.0),
    known=st.booleans(),
)
def test_whatever_the_rows_say_it_is_refused_or_in_order(
    steps: list[tuple[int, float, int]], begin: float, known: bool
) -> None:
    rho, walked = begin, []
    for _, step, _ in steps:
        rho = min(max(rho + step, 0.0), 1.0)
        walked.append(rho)
    t, live = np.cumsum([wait / 1000 for wait, _, _ in steps]), [calls for _, _, calls in steps]
    try:
        of = forecast(Series.checked(t, walked, live if known else None), session_length=60.0)
    except FieldError:
        return
    found = of.plateau.level if of.plateau is not None else of.t_sat
    assert of.shape == "empty" or found is not None
    if found is not None:
        assert np.isfinite([found.low, found.estimate, found.high, of.fill_rate]).all()
        assert found.low <= found.estimate <= found.high
    if of.shape == "ramp":
        assert of.collapse_probability is not None
        assert 0.0 <= of.collapse_probability <= 1.0
    assert 0.0 <= of.at(float(t[-1])) <= 1.0


def test_repeated_rows_change_nothing() -> None:
    once = ramp(sessions=16.0)
    twice = Series(*(np.repeat(of, 2) for of in (once.t_s, once.occupancy, once.sessions)))  # type: ignore[arg-type]
    assert t_sat(forecast(twice, until=0.5)) == t_sat(forecast(once, until=0.5))


def test_nothing_after_the_share_asked_for_is_used() -> None:
    series = ramp()
    late = np.where(series.occupancy >= 0.5, 0.9, series.occupancy)
    assert forecast(replace(series, occupancy=late), until=0.5) == forecast(series, until=0.5)


def test_a_higher_level_is_wider_around_the_same_estimate() -> None:
    narrow, wide = (t_sat(forecast(ramp(), until=0.5, level=level)) for level in (0.5, 0.95))
    assert narrow.estimate == wide.estimate
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


def test_few_calls_are_less_sure_than_many() -> None:
    few, many = (t_sat(forecast(ramp(sessions=of), until=0.5)) for of in (4.0, 256.0))
    assert few.high - few.low > 1.5 * (many.high - many.low)


def test_the_rate_of_a_call_and_what_the_pool_held_before() -> None:
    series = ramp(sessions=16.0)
    of = forecast(replace(series, occupancy=np.minimum(series.occupancy + 0.03, 1.0)), until=0.6)
    assert of.rho0 == 0.03
    assert of.fill_rate == pytest.approx(0.008, rel=0.02)
    assert of.rate_per_session == pytest.approx(0.0005, rel=0.02)


def test_the_curve_ends_at_the_estimate() -> None:
    of = forecast(ramp(sessions=16.0), until=0.5)
    assert of.at(t_sat(of).estimate) == pytest.approx(1.0, abs=1e-6)
    assert of.at(t_sat(of).estimate - 2.0) < 1.0
    assert of.at(40.0) == pytest.approx(0.28, abs=0.01)


def test_collapse_is_as_likely_as_t_sat_lies_within_the_calls() -> None:
    series = ramp(sessions=64.0)
    found = t_sat(forecast(series, until=0.5))

    def likely(length: float) -> float:
        told = forecast(series, until=0.5, session_length=length).collapse_probability
        assert told is not None
        return told

    assert likely(found.low) == pytest.approx(0.05)
    assert likely(found.estimate) == pytest.approx(0.5)
    assert likely(found.high) == pytest.approx(0.95)
    assert likely(20.0) == 0.0  # over before the last row, which is not full


@pytest.mark.parametrize(("length", "told"), [(144.0, 0.0), (146.0, 1.0)])
def test_of_a_pool_that_was_full_it_is_known(length: float, told: float) -> None:
    assert forecast(published("unbounded"), session_length=length).collapse_probability == told


def filling_windows(rows: int = 7, promised: float | None = 0.5) -> Series:
    """Beats of a windowed server with four calls, before their windows are full."""
    n = np.arange(float(rows))
    bound = None if promised is None else np.full(rows, promised)
    return Series.checked(2.0 * n, 0.01 + 0.03 * n, np.full(rows, 4.0)).promising(bound)


def test_windows_that_fill_end_at_what_was_promised() -> None:
    of = forecast(filling_windows(), session_length=3600.0)
    assert (of.shape, of.t_sat, of.collapse_probability) == ("plateau", None, None)
    assert of.plateau is not None
    assert of.plateau.level == Interval(0.5, pytest.approx(0.19), 0.5)  # type: ignore[arg-type]
    assert of.plateau.per_session == pytest.approx(0.125)
    assert of.plateau.ceiling == 8  # what was held before was promised too
    assert of.fill_rate == pytest.approx(0.015)
    assert of.notes[-1].startswith("calls hold 19.0% of the pool, and were promised 50.0% at most: that is")
    assert of.at(12.0) == pytest.approx(0.19, abs=0.01)
    assert of.at(1000.0) == 0.5


def test_calls_that_hold_more_than_was_promised_still_fill_the_pool() -> None:
    of = forecast(filling_windows(20, promised=0.1))
    assert (of.shape, of.bounded) == ("ramp", False)


@pytest.mark.parametrize(("promised", "bounded"), [(None, None), (0.0, False), (0.9, True)])
def test_whether_calls_have_a_bound_is_told_where_promises_are(
    promised: float | None, bounded: bool | None
) -> None:
    assert forecast(filling_windows(20, promised)).bounded is bounded


@pytest.mark.parametrize(("promised", "bounded"), [(None, None), (0.0, False)])
def test_a_pool_that_is_level_from_the_first_row_on_is_a_plateau(
    promised: float | None, bounded: bool | None
) -> None:
    rho = 0.4 + np.random.default_rng(0).uniform(-0.003, 0.003, len(T))
    steady = Series.checked(T, rho, np.full(len(T), 8.0))
    of = forecast(steady.promising(None if promised is None else np.full(len(T), promised)))
    assert (of.shape, of.t_sat, of.bounded, of.fill_rate) == ("plateau", None, bounded, 0.0)
    assert of.plateau is not None
    assert of.plateau.level.estimate == pytest.approx(0.4, abs=0.002)
    assert of.plateau.ceiling in (19, 20)
    assert of.at(50.0) == of.at(5000.0) == of.plateau.level.estimate


def test_calls_that_were_promised_what_they_hold_fill_no_pool_when_some_leave() -> None:
    live = np.where(T < 50.0, 8.0, 4.0)
    of = forecast(Series.checked(T, 0.04 * live, live).promising(0.05 * live))
    assert (of.shape, of.bounded) == ("plateau", True)
    assert of.plateau is not None
    assert of.plateau.level == Interval(pytest.approx(0.2), pytest.approx(0.16), pytest.approx(0.2))  # type: ignore[arg-type]
    assert of.at(5000.0) == pytest.approx(0.16)


@pytest.mark.parametrize("rows", [8, 20, 30, 45, 60])
def test_what_was_promised_is_the_plateau_whatever_the_rows_do(rows: int) -> None:
    """Two calls wait, fill their windows from 30 s on, and are level with three quarters of the promise."""
    n = np.arange(float(rows))
    held = np.clip(14 + 2 * (n - 15), 14, 62) / 336
    of = forecast(Series.checked(2.0 * n, held, np.full(rows, 2.0)).promising(np.full(rows, 82 / 336)))
    assert (of.shape, of.t_sat, of.bounded) == ("plateau", None, True)
    assert of.plateau is not None
    assert (of.plateau.level.estimate, of.plateau.level.low) == (82 / 336, held[-1])
    assert of.plateau.ceiling == 8


@pytest.mark.parametrize(("windowed", "moment"), [(None, True), (False, True), (True, False)])
def test_calls_that_said_they_have_a_bound_are_told_no_moment(windowed: bool | None, moment: bool) -> None:
    of = forecast(replace(ramp(rate=0.006), windowed=windowed), session_length=3600.0)
    assert (of.shape, of.plateau) == ("ramp" if moment else "plateau", None)
    assert (of.bounded, of.t_sat is not None) == (windowed, moment)
    assert of.collapse_probability == (pytest.approx(1.0) if moment else None)


def test_of_calls_with_an_untold_bound_a_level_pool_is_no_full_windows() -> None:
    of = forecast(replace(Series.checked(T, np.full(len(T), 0.04), np.full(len(T), 2.0)), windowed=True))
    assert (of.shape, of.t_sat, of.plateau, of.bounded) == ("plateau", None, None, True)
    assert of.at(5000.0) == pytest.approx(0.04)


def test_a_pool_that_was_full_was_full_whatever_calls_said() -> None:
    assert forecast(replace(ramp(rate=0.02), windowed=True)).t_sat is not None


def test_sessions_that_are_all_0_tell_no_rate_of_one() -> None:
    for end in (0.3, 1.0):
        t = np.arange(60.0)
        of = forecast(Series.checked(t, np.minimum(0.01 * t, end), np.zeros(60)))
        assert of.rate_per_session is None
        assert of.plateau is None or (of.plateau.per_session, of.plateau.ceiling) == (None, None)
        assert "no rate of one session told" in of.notes[0]


def test_a_plateau_has_no_probability() -> None:
    assert forecast(published("windowed"), session_length=3600.0).collapse_probability is None


def test_a_pool_that_holds_nothing_is_empty() -> None:
    of = forecast(Series.checked(T, np.full(len(T), 0.001)))
    assert (of.shape, of.t_sat, of.plateau, of.points) == ("empty", None, None, 200)
    assert of.at(50.0) == 0.0


def test_a_score_is_in_seconds_and_as_a_share_of_the_time_from_the_first_row() -> None:
    series = replace(ramp(rate=0.0125), t_s=T + 1000.0)  # full at 1085; 0.995 at 1084.6
    of = replace(forecast(series, until=0.5), t_sat=Interval(1080.0, 1070.0, 1084.0), baseline=1090.0)
    found = score(series, of)
    assert found["full_s"] == pytest.approx(1084.6)
    assert found["error_s"] == pytest.approx(-4.6)
    assert found["error_share"] == pytest.approx(-4.6 / 84.6)
    assert found["inside"] is False
    assert found["baseline_error_s"] == pytest.approx(5.4)


def test_a_stalled_call_ends_the_filling_too() -> None:
    stalled = np.where(T > 80.0, 2.0, 0.0)
    assert full_at(replace(ramp(), stalled=stalled)) == 80.5


def test_what_never_filled_is_not_scored() -> None:
    found = score(ramp(), forecast(ramp(), until=0.5))
    assert set(found.values()) == {None}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: forecast(ramp(), until=50.0), "until = 50.0: give a share of the pool"),
        (lambda: forecast(ramp(), until=0.0), "until = 0.0: give a share of the pool"),
        (lambda: forecast(ramp(), level=90.0), "level = 90.0: give a share between 0 and 1"),
        (lambda: forecast(ramp(), session_length=0.0), "session_length = 0.0: give seconds above 0"),
        (lambda: forecast(Series.checked(T, 0.9 - 0.004 * T)), r"kv_occupancy = 0\.502: falls from 0\.9 to"),
        (lambda: forecast(ramp(), until=0.01), "rises in . rows only"),
    ],
)
def test_what_no_forecast_follows_from_is_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        call()


@pytest.mark.parametrize(
    ("live", "fill", "factor"),
    [
        (None, 0.5, 1.0),  # nobody tells
        ([20.0] * 5, 0.5, 0.5),  # nobody left, and half of those who will could have
        ([20.0, 19.0, 20.0, 20.0], 0.5, 1.0),  # one of 20: as many as expected until half fill
        ([20.0, 16.0, 15.0], 0.5, 1.5),  # five: no more than twice as many are expected again
        ([20.0] * 5, 0.0, 1.0),
    ],
)
def test_calls_that_stay_are_expected_to_stay(live: list[float] | None, fill: float, factor: float) -> None:
    assert leaving(None if live is None else np.array(live), fill) == pytest.approx(factor)


def test_a_pool_that_nobody_leaves_is_foretold_earlier() -> None:
    steady, churning = np.full(50, 40.0), np.full(50, 40.0)
    churning[10::10] -= 2.0  # and as many come
    (few, width), (many, same) = (spread(0.5, 40.0, leaving(live, 0.5)) for live in (steady, churning))
    assert 0 < few < spread(0.5, 40.0)[0] < many
    assert width == same
