"""Percentiles and slopes are those of a hand calculation, and None where there is no figure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.stats import percentiles, theil_sen


def test_percentiles_are_interpolated_and_named() -> None:
    assert percentiles([3.0, 1.0, 2.0, 4.0]) == pytest.approx({"p50": 2.5, "p90": 3.7, "p99": 3.97})
    assert percentiles([1.0, 2.0], (0, 12.5, 100)) == pytest.approx({"p0": 1.0, "p12.5": 1.125, "p100": 2.0})


def test_one_value_is_every_percentile_and_no_value_is_none() -> None:
    assert percentiles([0.25]) == {"p50": 0.25, "p90": 0.25, "p99": 0.25}
    assert percentiles([]) is None


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50))
def test_percentiles_rise_and_stay_inside_the_values(values: list[float]) -> None:
    cuts = percentiles(values)
    assert cuts is not None
    assert min(values) <= cuts["p50"] <= cuts["p90"] <= cuts["p99"] <= max(values)


moments = st.lists(st.integers(-1000, 1000), min_size=3, max_size=30, unique=True)


@given(st.floats(-100, 100), st.floats(-100, 100), moments)
def test_the_slope_of_a_line_is_its_slope(slope: float, start: float, x: list[int]) -> None:
    found = theil_sen(x, [slope * value + start for value in x])
    assert found is not None
    assert found.estimate == pytest.approx(slope, abs=1e-9)
    assert found.low <= found.estimate <= found.high


def test_a_fifth_of_wild_values_does_not_move_the_slope_far() -> None:
    x = np.arange(50.0)
    y = 2.0 * x + np.random.default_rng(0).normal(0, 0.5, 50)
    y[::5] = 1000.0
    found = theil_sen(x.tolist(), y.tolist())
    assert found is not None
    assert found.low <= 2.0 <= found.high
    assert found.estimate == pytest.approx(2.0, abs=0.05)


def test_the_interval_narrows_with_less_confidence() -> None:
    x = np.arange(30.0)
    y = (x + np.random.default_rng(1).normal(0, 3, 30)).tolist()
    wide, narrow = theil_sen(x.tolist(), y, 0.99), theil_sen(x.tolist(), y, 0.5)
    assert wide is not None
    assert narrow is not None
    assert wide.low < narrow.low <= narrow.estimate <= narrow.high < wide.high


@pytest.mark.parametrize("x", [[], [1.0, 2.0], [4.0, 4.0, 4.0, 4.0]])
def test_too_few_points_or_one_moment_have_no_slope(x: list[float]) -> None:
    assert theil_sen(x, [float(n) for n in range(len(x))]) is None
