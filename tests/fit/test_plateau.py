"""Ramp or plateau, by a test."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.fit.plateau import late_rows, plateau, rises, trend

T = np.linspace(0.0, 100.0, 200)


def knee(at: float, late: float = 0.0) -> np.ndarray:
    """Rises by 0.005 a second up to `at`, then by `late` of that."""
    return 0.005 * np.minimum(T, at) + 0.005 * late * np.maximum(T - at, 0.0)


@pytest.mark.parametrize(
    ("at", "late", "is_a"),
    [
        (100.0, 0.0, "ramp"),
        (30.0, 0.0, "plateau"),
        (70.0, 0.0, "plateau"),
        (90.0, 0.0, "ramp"),  # flat for too short a time to tell
        (40.0, 0.03, "plateau"),  # creeps
        (40.0, 0.3, "bent"),
        (40.0, 0.8, "ramp"),
    ],
)
def test_a_late_slope_is_held_against_none_and_against_the_early_one(
    at: float, late: float, is_a: str
) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.001, len(T))
    assert trend(T, knee(at, late) + noise) == is_a


@settings(deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(12, 400), noise=st.floats(0.0, 0.004))
def test_noise_makes_no_plateau_of_a_ramp_and_no_ramp_of_a_plateau(
    seed: int, rows: int, noise: float
) -> None:
    t = np.linspace(0.0, 100.0, rows)
    off = np.random.default_rng(seed).normal(0.0, noise, rows)
    assert trend(t, 0.005 * t + off) == "ramp"
    assert trend(t, 0.005 * np.minimum(t, 40.0) + off) == "plateau"


def test_a_call_that_leaves_late_makes_no_plateau_of_a_ramp() -> None:
    ramp = 0.005 * T
    left = np.where(T < 85.0, ramp, 0.75 * ramp)  # one of four
    assert trend(T, left) == "ramp"


def test_calls_that_leave_a_plateau_make_no_ramp_of_it() -> None:
    assert trend(T, np.where(T < 90.0, knee(40.0), 0.5 * knee(40.0))) == "plateau"


def test_late_is_a_quarter_of_the_time_or_five_rows() -> None:
    assert np.count_nonzero(late_rows(T)) == 50
    assert late_rows(np.array([0.0, 1, 2, 3, 4, 5, 6, 100])).tolist() == [False] * 3 + [True] * 5


@pytest.mark.parametrize("to_the_end", [True, False])
def test_noise_does_not_rise(to_the_end: bool) -> None:
    still = 0.25 + np.random.default_rng(1).normal(0.0, 0.004, len(T))
    assert not rises(T, still, to_the_end)
    assert not rises(T, 0.6 - knee(100.0), to_the_end)


def test_the_level_of_a_plateau_its_share_for_a_call_and_its_ceiling() -> None:
    live = np.full(len(T), 128.0)
    noise = np.random.default_rng(2).uniform(-0.002, 0.002, len(T))
    found = plateau(T, 0.01 + knee(50.0) + noise, live, 0.01, 0.9)
    assert found.level.estimate == pytest.approx(0.26, abs=5e-4)
    assert found.level.low == pytest.approx(0.2582, abs=5e-4)
    assert found.level.high == pytest.approx(0.2618, abs=5e-4)
    assert found.since_s == pytest.approx(75.4, abs=0.5)
    assert found.per_session == pytest.approx(0.25 / 128, rel=0.01)
    assert found.ceiling in range(500, 513)  # (1 - 0.01) / (0.25 / 128) = 506.9


def test_without_sessions_there_is_no_ceiling() -> None:
    found = plateau(T, knee(50.0), None, 0.0, 0.9)
    assert (found.per_session, found.ceiling) == (None, None)
