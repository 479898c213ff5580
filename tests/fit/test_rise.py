"""Which rows are the rise, and where it began."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metronome_cli.errors import FieldError
from metronome_cli.fit.rise import find_rise, find_start
from metronome_cli.fit.series import Series

T = np.arange(0.0, 120.0, 2.0)


def test_a_pool_that_waits_for_its_first_call_begins_to_fill_between_two_rows() -> None:
    rho = np.maximum(0.05, 0.05 + 0.008 * (T - 21.0))
    start = find_start(T, rho)
    assert (start.at, start.rho0, start.seen) == (11, 0.05, True)
    assert start.start_s == pytest.approx(21.0, abs=0.05)


def test_of_two_rises_the_last_counts() -> None:
    rho = np.where(T < 40.0, 0.01 * T, np.maximum(0.0, 0.01 * (T - 60.0)))
    assert find_start(T, rho).start_s == pytest.approx(60.0, abs=0.05)


def test_a_series_that_begins_in_the_middle_is_followed_back_to_nothing() -> None:
    start = find_start(T, 0.3 + 0.005 * T)
    assert (start.at, start.rho0, start.seen) == (0, 0.0, False)
    assert start.start_s == pytest.approx(-60.0, abs=0.5)
    rise = find_rise(Series.checked(T, 0.3 + 0.005 * T))
    assert rise.notes == ("the series begins at 30%: what came before is taken for a straight line",)


def test_rows_of_one_time_are_one_row() -> None:
    t = np.repeat(T, 3)
    rise = find_rise(Series.checked(t, 0.005 * t, sessions=np.full(len(t), 4.0)))
    assert (np.diff(rise.t_T) > 0).all()
    assert rise.live_T is not None
    assert len(rise.live_T) == len(rise.rho_T) == len(rise.t_T)


def test_a_full_pool_is_no_plateau() -> None:
    rise = find_rise(Series.checked(T, np.minimum(0.02 * T, 0.998)))
    assert rise.shape == "ramp"
    assert rise.rho_T.max() < 0.98


def test_windowed_calls_that_keep_joining_are_at_their_plateau() -> None:
    """32 calls that hold 0.4 %, one more every 2 s from 60 s on."""
    live = 32.0 + np.maximum(0.0, (T - 60.0) // 2.0)
    rho = live * 0.004 * np.minimum(T / 30.0, 1.0)
    assert find_rise(Series.checked(T, rho, live)).shape == "plateau"
    assert find_rise(Series.checked(T, rho)).shape == "ramp"


def test_a_pool_that_fills_much_slower_is_carried_on_from_there() -> None:
    rho = 0.01 * np.minimum(T, 40.0) + 0.002 * np.maximum(T - 40.0, 0.0)
    rise = find_rise(Series.checked(T, rho))
    assert rise.shape == "ramp"
    assert rise.t_T[0] > 80.0
    assert rise.notes == ("the pool fills much slower since 90.0 s: only what came after is carried on",)


@pytest.mark.parametrize(
    ("rho", "said"),
    [
        (
            0.9 - 0.005 * T,
            r"a.csv: kv_occupancy = 0\.31: falls from 0\.9 to 0\.31: look while the pool fills or is level",
        ),
        (0.4 + 0.00005 * T, "rises by too little to tell whether it goes on: look for longer"),
        (0.4 + 0.1 * (T[-1] == T), "rises in 1 rows only"),
        (np.where(T < 112.0, 0.0, 0.05 * (T - 110.0)), "rises in 4 rows only: give 10 or more of them, t"),
        (np.clip(0.25 * (T - 112.0), 0.0, 1.0), "rises in 1 rows only: give 5 or more of them$"),
        (np.full(60, 1.0), "is full from the first row on: look from before the pool fills"),
        (np.maximum(1.0 - 0.01 * T, 0.3), "is full from the first row on"),
        (
            0.4 - 0.005 * np.abs(T - 40.0),
            r"rose to 0\.4 by 40\.0 s and fell again: nothing fills at the end; look while calls fill it$",
        ),
        (np.where(T < 100.0, 0.01 * np.minimum(T, 40.0), 0.003), "rose to 0.4 by 40.0 s and fell again"),
    ],
)
def test_what_is_no_rise_is_refused(rho: np.ndarray, said: str) -> None:
    with pytest.raises(FieldError, match=said):
        find_rise(Series.checked(T, rho, name="a.csv"))


def windows_that_fill(rows: int, promised: float | None = None) -> Series:
    """What 7 beats of a windowed server look like: a straight line."""
    n = np.arange(float(rows))
    bound = None if promised is None else np.full(rows, promised)
    return Series.checked(2.0 * n, 0.01 + 0.03 * n, np.full(rows, 4.0)).promising(bound)


@pytest.mark.parametrize("rows", [7, 9])
def test_so_few_rows_tell_no_ramp_from_a_plateau(rows: int) -> None:
    with pytest.raises(FieldError, match=f"rises in {rows - 1} rows only: give 10 or more of them, to tell"):
        find_rise(windows_that_fill(rows))
    assert find_rise(windows_that_fill(11)).shape == "ramp"
    for windowed in (True, False):
        assert find_rise(replace(windows_that_fill(rows), windowed=windowed)).shape == "ramp"


def test_few_rows_do_where_the_end_is_known() -> None:
    assert find_rise(windows_that_fill(7, promised=0.5)).shape == "ramp"
    assert find_rise(windows_that_fill(7, promised=0.0)).shape == "ramp"  # none of them has a bound
    n = np.arange(7.0)
    assert find_rise(Series.checked(n, 0.01 + 0.03 * n, stalled=np.maximum(n - 5.0, 0.0))).shape == "ramp"
    assert find_rise(Series.checked(n, n / 6)).shape == "ramp"


def test_a_pool_that_nobody_is_told_to_hold_has_no_calls() -> None:
    rise = find_rise(Series.checked(T, 0.005 * T, np.zeros(60)))
    assert rise.live_T is None
    assert rise.notes == (
        "sessions is 0 while blocks are held: it is left out, and no rate of one session told",
    )


@pytest.mark.parametrize("row", [20, 59])
def test_a_lone_row_of_no_calls_is_as_its_neighbours(row: int) -> None:
    live = np.full(60, 4.0)
    live[row] = 0.0
    rise = find_rise(Series.checked(T, 0.005 * T, live))
    assert rise.live_T is not None
    assert (rise.live_T == 4.0).all()


def test_rows_a_hair_apart_are_one_row() -> None:
    t = np.concatenate((np.arange(20) * 1e-300, T[1:]))
    rho = np.concatenate((np.linspace(0.0, 0.01, 20), 0.01 + 0.005 * T[1:]))
    assert len(find_rise(Series.checked(t, rho)).t_T) <= len(T)


@pytest.mark.parametrize(
    "rho",
    [
        np.full(60, 0.4),
        0.4 + 0.003 * (np.arange(60) % 3),
        0.4 + 0.003 * (T[-1] == T),  # a block more
        np.where(T < 10.0, 0.0, 0.4),  # all at once
        0.4 + np.random.default_rng(1).uniform(-0.02, 0.02, 60),
    ],
)
def test_a_pool_that_stays_as_it_is_is_level(rho: np.ndarray) -> None:
    rise = find_rise(Series.checked(T, rho))
    assert (rise.shape, rise.start.rho0) == ("level", 0.0)
    assert np.median(rise.rho_T) == pytest.approx(0.4, abs=0.01)


def test_calls_that_come_and_go_around_windows_of_one_size_are_level() -> None:
    live = 8.0 + np.round(5.0 * np.sin(T))
    assert find_rise(Series.checked(T, 0.05 * live, live)).shape == "level"


@pytest.mark.parametrize("rows", [5, 9])
def test_so_few_level_rows_do_where_the_bound_is_known(rows: int) -> None:
    level = Series.checked(T[:rows], np.full(rows, 0.4))
    with pytest.raises(FieldError, match=f"is level in {rows} rows only: give 10 or more"):
        find_rise(level)
    assert find_rise(level.promising(np.full(rows, 0.5))).shape == "level"


def test_noise_that_may_hide_a_rise_to_a_full_pool_is_not_level() -> None:
    rho = 0.5 + np.random.default_rng(2).uniform(-0.4, 0.4, 20)
    with pytest.raises(FieldError):
        find_rise(Series.checked(T[:20], rho))


def test_a_share_in_a_refusal_is_short() -> None:
    with pytest.raises(FieldError, match=r"kv_occupancy = 0\.0179: rises in 1 rows only"):
        find_rise(Series.checked(T[:6], [0.0, 0.0, 0.0, 0.0, 0.0, 6 / 336]))
