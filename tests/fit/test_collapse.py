"""The straight line through a filling pool."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import FieldError
from metronome_cli.fit.collapse import before, between, fit_line

PUBLISHED = Path(__file__).parents[1] / "data" / "unbounded_qwen3_omni_30b_n128.csv"


def test_the_published_30b_trace_gives_the_papers_145_seconds() -> None:
    with PUBLISHED.open() as file:
        rows = list(csv.DictReader(file))
    t = [float(row["t_s"]) for row in rows]
    occupancy = [float(row["kv_occupancy"]) for row in rows]
    assert fit_line(*between(t, occupancy, 0.1, 0.8)).t_sat == pytest.approx(144.9, abs=0.05)


@given(rho0=st.floats(0.0, 0.5), rate=st.floats(1e-4, 0.02), points=st.integers(3, 60))
def test_a_straight_ramp_is_met_exactly(rho0: float, rate: float, points: int) -> None:
    t = np.linspace(0.0, (0.95 - rho0) / rate, points)
    line = fit_line(t, rho0 + rate * t)
    assert line.t_sat == pytest.approx((1 - rho0) / rate, rel=1e-6)
    assert line.at(line.t_sat) == pytest.approx(1.0)
    assert line.points == points


def test_a_pool_that_waits_for_its_first_call_does_not_bend_the_line() -> None:
    t = np.arange(0.0, 60.0, 2.0)
    occupancy = np.where(t < 20, 0.0, 0.05 + 0.01 * (t - 20))
    assert fit_line(*before(t, occupancy, 40.0)).t_sat == pytest.approx(20 + 95)


def test_a_pool_that_empties_again_is_still_told_by_all_its_points() -> None:
    kept, _ = before([0, 1, 2, 3, 4], [0.0, 0.2, 0.0, 0.3, 0.4], until=3)
    assert kept.tolist() == [1, 2, 3]


@pytest.mark.parametrize("occupancy", [[0.5] * 20, list(np.linspace(0.8, 0.2, 20)), [0.3, 0.3 + 1e-12] * 10])
def test_a_pool_that_does_not_rise_gives_no_moment(occupancy: list[float]) -> None:
    with pytest.raises(FieldError, match="does not rise"):
        fit_line(list(range(20)), occupancy)


@pytest.mark.parametrize(
    ("t", "occupancy", "said"),
    [
        ([0, 1], [0.1, 0.2], "at least 3 points"),
        ([], [], "at least 3 points"),
        ([0, 1, 2], [0.1, 0.2], "one value for each"),
        ([0, 1, 2], [0.1, float("nan"), 0.3], "finite"),
        ([0, 1, 2], [10.0, 20.0, 30.0], "shares of the pool"),
        ([5, 5, 5], [0.1, 0.2, 0.3], "times that differ"),
    ],
)
def test_points_that_cannot_be_fitted_are_refused(t: list[float], occupancy: list[float], said: str) -> None:
    with pytest.raises(FieldError, match=said):
        fit_line(t, occupancy)
