"""Percentiles, slopes and intervals are those of a hand calculation; without a figure none is given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.stats import Interval, mean_interval, paired_difference, percentiles, theil_sen


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


scores = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


def test_many_points_are_thinned_by_a_draw_that_takes_no_turns() -> None:
    # Two sessions in turn, one always slower: a stride of two would see only one of them.
    x = [float(n // 2) for n in range(8000)]
    y = [0.5 + 0.001 * (n // 2) + n % 2 for n in range(8000)]
    found, again = theil_sen(x, y), theil_sen(x, y)
    assert found is not None
    assert found == again
    assert found.estimate == pytest.approx(0.001)


@given(scores, st.integers(0, 9))
def test_an_interval_holds_its_mean_and_stays_inside_the_values(values: list[float], seed: int) -> None:
    found = mean_interval(values, seed)
    slack = 1e-9 * max(1.0, *map(abs, values))
    assert found.mean == pytest.approx(np.mean(values))
    assert min(values) - slack <= found.low <= found.mean + slack
    assert found.mean - slack <= found.high <= max(values) + slack
    assert found == mean_interval(values, seed)


def test_an_interval_of_many_sessions_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 400)
    found = mean_interval(values.tolist())
    half = 1.96 * values.std(ddof=1) / 20
    assert found.low == pytest.approx(found.mean - half, abs=0.02)
    assert found.high == pytest.approx(found.mean + half, abs=0.02)


def test_intervals_of_eight_sessions_hold_the_truth_about_as_often_as_they_say() -> None:
    # 92 of 100 by a longer run; plain percentiles are at 87 for such shares.
    draw = np.random.default_rng(0)
    found = [mean_interval((draw.binomial(4, 0.8, 8) / 4).tolist(), seed) for seed in range(200)]
    assert sum(one.low <= 0.8 <= one.high for one in found) >= 0.9 * len(found)


def test_one_session_bounds_nothing_and_equal_sessions_leave_no_width() -> None:
    assert mean_interval([0.5]) == Interval(0.5, -np.inf, np.inf)
    assert mean_interval([0.5] * 6) == Interval(0.5, 0.5, 0.5)
    assert paired_difference([0.5, 0.7], [0.25, 0.45]).mean == pytest.approx(0.25)


@given(scores, st.floats(-100, 100))
def test_what_all_sessions_share_cancels_in_a_paired_difference(values: list[float], shift: float) -> None:
    found = paired_difference([value + shift for value in values], values)
    assert (found.low, found.mean, found.high) == pytest.approx((shift, shift, shift), abs=1e-6)


def test_pairs_tell_apart_what_two_intervals_do_not() -> None:
    easy = np.random.default_rng(2).uniform(0, 1, 12)
    better = easy + 0.05 + np.random.default_rng(3).normal(0, 0.01, 12)
    assert mean_interval(better.tolist()).low < mean_interval(easy.tolist()).high
    assert paired_difference(better.tolist(), easy.tolist()).low > 0.03


@pytest.mark.parametrize("values", [[], [0.5, float("nan")], [float("inf"), 1.0]])
def test_what_was_not_measured_has_no_mean(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite values of at least one session"):
        mean_interval(values)


def test_sessions_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="2 sessions cannot be paired with 3"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])
