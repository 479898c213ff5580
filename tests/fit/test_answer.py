"""What is said of a forecast: a plain document, a sentence, the parts of a picture."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from metronome_cli.errors import FieldError
from metronome_cli.fit import answer as module
from metronome_cli.fit.answer import Answer, Asked, answer
from metronome_cli.fit.forecast import Forecast
from metronome_cli.fit.limits import Beats
from metronome_cli.fit.plateau import Interval, Plateau
from metronome_cli.fit.series import Series
from metronome_cli.fit.sources import Source

RAMP = Forecast("ramp", Interval(145.0, 143.0, 149.0), 0.0, 0.0069, None, None, None, 144.0, 800, 83.0)
LEVEL = Plateau(Interval(0.254, 0.253, 0.258), 60.0, 0.002, 500)
FLAT = Forecast("plateau", None, 0.0, 0.004, None, LEVEL, None, None, 800, 83.0)

Tell = Callable[..., Answer]


def series(end: float = 1.0, until: float = 83.0) -> Series:
    """A pool that fills in 145 s, seen for `until` seconds, or as far as `end`."""
    t = np.linspace(0.0, until, 800)
    return Series.checked(t, np.clip(t / 145, 0.0, end), name="a.csv")


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """What is said of a forecast that is given."""
    monkeypatch.setattr(Forecast, "at", lambda _, t_s: min(1.0, t_s / 145))
    monkeypatch.setattr(module, "score", lambda _, of: {"points": of.points})

    def run(of: Forecast, source: Source, asked: Asked | None = None) -> Answer:
        monkeypatch.setattr(module, "forecast", lambda *_, **__: of)
        return answer(source, asked or Asked())

    return run


def test_a_ramp_is_told_with_its_interval_and_what_is_left(tell: Tell) -> None:
    found = tell(replace(RAMP, bounded=False), Source(series()))
    assert (
        found.told["verdict"] == "The pool will be full at 145 s (143 to 149), 62.0 s from the last sample."
    )
    assert found.left_s == 62.0
    assert list(found.told)[:2] == ["t_sat", "rho0"]
    assert json.loads(json.dumps(found.told)) == found.told


def test_where_nothing_tells_of_a_bound_the_forecast_is_for_calls_without_one(tell: Tell) -> None:
    found = tell(RAMP, Source(series()))
    assert found.told["bounded"] is None
    assert found.told["verdict"].startswith("If calls have no bound, the pool will be full at 145 s (143 to")


def test_an_interval_without_an_end_is_null_and_no_bound(tell: Tell) -> None:
    found = tell(replace(RAMP, t_sat=Interval(145.0, 143.0, math.inf)), Source(series()))
    assert found.told["t_sat"]["high"] is None
    assert "(143 to no bound)" in found.told["verdict"]
    assert np.isfinite(found.drawn["curve"]["t_s"]).all()


def test_a_pool_that_is_full_has_no_time_left(tell: Tell) -> None:
    full = replace(RAMP, last_s=160.0)
    found = tell(full, Source(series(until=160.0)))
    assert found.left_s == 0.0
    assert found.told["verdict"] == "The pool is full, since 145 s."


def test_a_pool_that_was_full_and_is_not_is_told_so(tell: Tell) -> None:
    seen = series(until=160.0)
    found = tell(
        replace(RAMP, last_s=160.0),
        Source(replace(seen, occupancy=np.where(seen.t_s > 150, 0.3, seen.occupancy))),
    )
    assert found.left_s == 0.0
    assert found.told["verdict"] == "The pool was full at 145 s, and is at 30 % now."


def test_a_plateau_is_told_with_its_level_and_its_ceiling(tell: Tell) -> None:
    beats = Beats([10.0, 20.0, 30.0] * 5, [0.2, 0.3, 0.4] * 5, 1.0)
    found = tell(FLAT, Source(series(0.254), beats))
    level, limit = (
        "The pool levels off at 25.4 % (25.3 to 25.8) and does not fill",
        "the deadline binds first",
    )
    assert found.told["verdict"] == f"{level}; it holds 500 sessions; {limit}."
    assert found.left_s is None
    assert found.told["limit"]["deadline_sessions"] in (89, 90)


def test_the_probability_is_told_with_the_length_it_is_for(tell: Tell) -> None:
    asked = Asked(session_length=300.0)
    found = tell(replace(RAMP, collapse_probability=0.875), Source(series()), asked)
    assert "; calls of 300 s collapse with probability 0.88." in found.told["verdict"]


def test_notes_of_the_source_come_first(tell: Tell) -> None:
    found = tell(replace(RAMP, notes=("of the fit",)), Source(series(), notes=("of the page",)))
    assert found.told["notes"] == ["of the page", "of the fit"]


def test_only_what_was_known_is_drawn_as_the_straight_line_and_all_samples_are(tell: Tell) -> None:
    bent = series(until=120.0)
    rho = np.where(bent.t_s > 83.0, 83 / 145 + (bent.t_s - 83.0) / 300, bent.occupancy)
    found = tell(RAMP, Source(replace(bent, occupancy=rho)), Asked(at=0.5))
    assert found.drawn["line"]["rate"] == pytest.approx(1 / 145)
    assert found.drawn["samples"]["t_s"][-1] == 120.0
    assert len(found.drawn["samples"]["t_s"]) == 600
    assert found.told["score"] == {"points": 800}


def test_a_pool_that_never_was_so_full_cannot_be_asked_of_then(tell: Tell) -> None:
    with pytest.raises(FieldError, match=r"a\.csv: at = 0\.7: the pool is never fuller than 0\.57"):
        tell(RAMP, Source(series()), Asked(at=0.7))


def test_a_pool_that_holds_nothing_is_refused(tell: Tell) -> None:
    with pytest.raises(FieldError, match=r"a\.csv: kv_occupancy = 0\.0: nothing is held"):
        tell(replace(FLAT, shape="empty", plateau=None), Source(series(0.0)))


def test_a_pool_that_is_level_is_told_to_stay(tell: Tell) -> None:
    found = tell(replace(FLAT, fill_rate=0.0), Source(series(0.254)))
    stays = "The pool stays at 25.4 % (25.3 to 25.8) and will not run out"
    assert found.told["verdict"] == f"{stays} while calls go on as they did; it holds 500 sessions."
    found = tell(replace(FLAT, fill_rate=0.0, bounded=True), Source(series(0.254)))
    assert found.told["verdict"].startswith("The pool levels off at 25.4 % (25.3 to 25.8) and does not fill;")
    assert found.left_s is None


def test_calls_with_a_bound_that_nobody_tells_have_no_moment(tell: Tell) -> None:
    beats = Beats([4.0] * 10, [0.3] * 10, 1.0)
    found = tell(replace(FLAT, plateau=None, bounded=True), Source(series(), beats))
    assert found.told["verdict"].startswith("These calls have a bound: the pool, now at 57 %, fills until")
    assert "fit its own run folder, or --metrics-url" in found.told["verdict"]
    assert (found.told["t_sat"], found.left_s, found.told["limit"]["binds"]) == (None, None, None)
    assert "calls have a bound, and nothing here tells" in found.told["limit"]["why"]


@pytest.mark.parametrize(
    ("bounded", "ends"), [(None, "; then memory binds first."), (False, "; memory binds first.")]
)
def test_memory_binds_under_the_same_condition_as_the_moment(
    tell: Tell, bounded: bool | None, ends: str
) -> None:
    beats = Beats([4.0] * 10, [0.3] * 10, 1.0)
    assert tell(replace(RAMP, bounded=bounded), Source(series(), beats)).told["verdict"].endswith(ends)


# ---- Calls that have hung up ----

T = np.arange(0.0, 120.0, 2.0)


def held_until(end: float, rate: float = 0.005, most: float = 1.0, over: bool = True) -> Source:
    """Eight calls that fill a pool until they hang up, all at once; nobody calls afterwards."""
    rho = np.where(end > T, np.minimum(rate * T, most), 0.0)
    return Source(Series.checked(T, rho, np.where(end > T, 8.0, 0.0), name="a.csv"), is_over=over)


def test_a_trace_whose_calls_hung_up_is_fitted_up_to_then() -> None:
    found = answer(held_until(80.0), Asked())
    assert found.told["hung_up_s"] == 80.0
    assert found.told["last_s"] == 78.0
    assert found.told["notes"][0].startswith("calls hung up from 80.0 s on: only what came before is fitted")
    assert found.told["t_sat"]["low"] < 200.0 < found.told["t_sat"]["high"]
    assert found.told["verdict"].startswith(
        "Had the calls stayed, and if they have no bound, the pool would be"
    )


def test_windows_that_were_full_when_calls_hung_up_are_a_plateau() -> None:
    for idle in (1, 50):  # however long nobody calls afterwards
        source = held_until(100.0, 0.01, 0.3)
        after = 120.0 + np.arange(0.0, 120.0 * idle, 2.0)
        t = np.concatenate((T, after))
        rho = np.concatenate((source.series.occupancy, np.zeros(len(after))))
        assert source.series.sessions is not None
        live = np.concatenate((source.series.sessions, np.zeros(len(after))))
        found = answer(Source(Series.checked(t, rho, live), is_over=True), Asked())
        assert found.told["plateau"]["level"]["estimate"] == pytest.approx(0.3, abs=0.01)
        assert found.told["plateau"]["ceiling"] == 26


def test_of_a_live_server_nothing_is_told_of_calls_that_are_gone() -> None:
    with pytest.raises(FieldError, match=r"fell again: nothing fills at the end; look while calls fill it$"):
        answer(held_until(80.0, over=False), Asked())


def test_where_calls_are_not_told_a_share_that_works_is() -> None:
    source = held_until(80.0)
    with pytest.raises(FieldError, match=r"look while calls fill it, or ask --at 0\.35$"):
        answer(replace(source, series=replace(source.series, sessions=None)), Asked())
    assert answer(source, Asked(at=0.35)).told["t_sat"] is not None


def test_a_share_that_the_first_row_passes_is_refused() -> None:
    with pytest.raises(
        FieldError, match=r"at = 0\.3: the pool is at 0\.4 in the first row: ask a share above"
    ):
        answer(Source(Series.checked(T, np.full(60, 0.4), name="a")), Asked(at=0.3))


def served(*spells: tuple[int, int, int], promise: float | None = 41 / 336) -> Source:
    """A server's own trace of beats of 2 s: calls, beats and blocks a beat of each spell, on 336 blocks."""
    live: list[float] = []
    held: list[float] = []
    for calls, beats, grow in spells:
        live += [float(calls)] * beats
        held += [calls * min(grow * (beat + 1), 39) / 336 for beat in range(beats)]
    series = Series.checked([2.0 * beat for beat in range(len(live))], held, live, name="trace.jsonl")
    return Source(series.promising([(promise or 0.0) * calls for calls in live]), is_over=True)


@pytest.mark.parametrize("idle", [0, 2])
def test_a_brief_call_at_the_end_hides_no_promise(idle: int) -> None:
    found = answer(served((0, 3, 0), (2, 20, 3), (0, 3, 0), (1, 3, 2), (0, idle, 0)), Asked())
    level = found.told["plateau"]["level"]
    assert (level["estimate"], found.told["plateau"]["ceiling"]) == (pytest.approx(41 / 336), 8)
    assert (found.told["hung_up_s"] is None) == (idle == 0)


@pytest.mark.parametrize("idle", [0, 2])
def test_calls_without_a_bound_are_fitted_up_to_when_those_left_that_stayed(idle: int) -> None:
    source = served((0, 3, 0), (2, 12, 3), (0, 3, 0), (1, 3, 2), (0, idle, 0), promise=None)
    found = answer(source, Asked())
    assert (found.told["hung_up_s"], found.told["last_s"]) == (30.0, 28.0)
    assert found.told["t_sat"]["low"] < 6.0 + 2 * 336 / 6 < found.told["t_sat"]["high"]
