"""What a series of occupancy must be before anything is concluded from it."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from metronome_cli.errors import FieldError
from metronome_cli.fit.series import Series

GOOD: dict[str, Any] = {"t_s": [0, 1, 2, 3, 4], "occupancy": [0.0, 0.1, 0.2, 0.3, 0.4]}


def test_rows_come_back_as_they_were_given() -> None:
    series = Series.checked(**GOOD, sessions=[0, 2, 2, 2, 2], pool=80, stalled=[0] * 5, name="run")
    assert (len(series), series.pool, series.name) == (5, 80, "run")
    assert series.occupancy.tolist() == GOOD["occupancy"]
    assert series.sessions is not None
    assert series.sessions.dtype == np.float64


def test_a_row_may_repeat() -> None:
    assert len(Series.checked([0, 1, 1, 1, 2], [0.0, 0.1, 0.1, 0.1, 0.2])) == 5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"t_s": [0, 1], "occupancy": [0.1, 0.2]}, "a.csv: t_s = 2: give at least 5 rows"),
        ({"t_s": [], "occupancy": []}, "a.csv: t_s = 0: give at least 5 rows"),
        ({"occupancy": [0.1, 0.2]}, "a.csv: kv_occupancy = (2,): give one number for each of the 5 rows"),
        (
            {"occupancy": [0, 10, 20, 30, 40]},
            "a.csv: kv_occupancy, row 2 = 10.0: give shares 0..1, not percent",
        ),
        ({"occupancy": [0, 0.1, -0.1, 0, 0]}, "a.csv: kv_occupancy, row 3 = -0.1: give shares 0..1"),
        ({"occupancy": [0, 0.1, 0.2, math.nan, 1]}, "a.csv: kv_occupancy, row 4 = nan: give a finite number"),
        ({"t_s": [0, 1, 2, math.inf, 4]}, "a.csv: t_s, row 4 = inf: give a finite number"),
        ({"t_s": [0, 1, 2, 1.5, 4]}, "a.csv: t_s, row 4 = 1.5: time goes back"),
        ({"t_s": [0, 1, 2, 3, 1e300]}, "a.csv: t_s, row 5 = 1e+300: give seconds, at most 10,000,000,000"),
        ({"t_s": [1.7e12 + n for n in range(5)]}, "a.csv: t_s, row 1 = 1700000000000.0: give seconds"),
        ({"sessions": [1, 2]}, "a.csv: sessions = (2,): give one number for each of the 5 rows"),
        ({"sessions": [1, 2, 3, -1, 2]}, "a.csv: sessions, row 4 = -1.0: give 0 to 1,000,000,000 calls"),
        ({"stalled": [0, 0, 0, 0, math.nan]}, "a.csv: stalled, row 5 = nan: give a finite number"),
        ({"pool": 0}, "a.csv: pool = 0: give 1 or more blocks"),
    ],
)
def test_what_is_no_series_is_refused_by_row(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(FieldError, match=re.escape(said)):
        Series.checked(**GOOD | wrong, name="a.csv")


@pytest.mark.parametrize(("promised", "bound"), [(None, None), (0.0, None), (0.3, None), (0.4, 0.4)])
def test_calls_are_bounded_where_all_that_is_held_was_promised(
    promised: float | None, bound: float | None
) -> None:
    of = None if promised is None else [promised] * 5
    assert Series.checked(**GOOD).promising(of).bound == bound


def test_more_than_the_pool_cannot_be_promised() -> None:
    with pytest.raises(FieldError, match=r"a\.csv: kv_reserved, row 4 = 1\.5: give shares 0\.\.1"):
        Series.checked(**GOOD, name="a.csv").promising([0.5, 0.5, 0.5, 1.5, 0.5])


@pytest.mark.parametrize(
    ("live", "rows"),
    [
        ([0, 2, 2, 2, 0, 0, 0, 0], 4),
        ([0, 2, 2, 0, 0, 4, 8, 0], 7),  # the calls that were live last of all
        ([20, 20, 19, 18, 17, 10, 3, 3], 4),
        ([8, 8, 8, 8, 8, 8, 8, 8], None),
        ([0, 0, 0, 0, 0, 0, 0, 0], None),
        ([1, 2, 3, 4, 5, 6, 7, 8], None),
        (None, None),
    ],
)
def test_the_rows_before_calls_hung_up(live: list[int] | None, rows: int | None) -> None:
    shares = np.linspace(0.0, 0.7, 8)
    series = Series.checked(np.arange(8.0), shares, live, stalled=[0] * 8).promising(shares)
    before = next(series.before_hang_ups(), None)
    assert (None if before is None else len(before)) == rows
    if before is not None:
        columns = (before.t_s, before.occupancy, before.sessions, before.stalled, before.promised)
        assert {len(column) for column in columns if column is not None} == {rows}


def test_of_calls_that_left_several_times_the_last_come_first() -> None:
    live = [0, 2, 2, 0, 0, 4, 8, 0, 1, 1]
    series = Series.checked(np.arange(10.0), np.linspace(0.0, 0.7, 10), live)
    assert [len(before) for before in series.before_hang_ups()] == [7, 3]  # the last are there yet
