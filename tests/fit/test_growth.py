"""The curve through a rise, over time and over the calls' own age."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.fit.growth import Growth, fit_growth, weight_of_calls


@settings(deadline=None)
@given(
    power=st.floats(0.75, 1.1),
    fill_s=st.floats(30.0, 600.0),
    start_s=st.floats(0.0, 20.0),
    rho0=st.floats(0.0, 0.2),
)
def test_a_power_is_carried_on_from_half_of_the_fill(
    power: float, fill_s: float, start_s: float, rho0: float
) -> None:
    t = np.linspace(start_s, start_s + 0.5 * fill_s, 150)[1:]
    rho = rho0 + (1 - rho0) * ((t - start_s) / fill_s) ** power
    curve = fit_growth(t, rho, start_s, rho0)
    assert curve.now_s + curve.left_s == pytest.approx(start_s + fill_s, abs=0.015 * fill_s)
    assert curve.at(t[-1]) == pytest.approx(rho[-1], abs=2e-3)
    assert curve.rate == pytest.approx(power * (rho[-1] - rho0) / (0.5 * fill_s), rel=0.03)


def test_the_curve_is_full_when_it_says_so_and_never_fuller() -> None:
    t = np.linspace(1.0, 60.0, 60)
    curve = fit_growth(t, 0.008 * t, 0.0, 0.0)
    assert curve.at(curve.now_s + curve.left_s) == pytest.approx(1.0)
    assert curve.at(1e6) == 1.0
    assert curve.at(-50.0) == pytest.approx(0.0, abs=2e-3)


def test_what_calls_bring_along_at_once_does_not_bend_the_curve() -> None:
    t = np.linspace(1.0, 60.0, 60)
    curve = fit_growth(t, 0.02 + 0.0098 * t, 0.0, 0.0)
    assert curve.now_s + curve.left_s == pytest.approx(100.0, rel=0.03)


def test_calls_that_join_and_leave_do_not_bend_the_curve_by_their_own_age() -> None:
    """Eight calls at 0, one gone at 20 s, four more at 30 s: all of 0.001 a second."""
    t = np.arange(1.0, 50.0)
    rho = 0.008 * t
    rho = np.where(t >= 20.0, rho - 0.001 * t, rho)
    rho = np.where(t >= 30.0, rho + 0.004 * (t - 30.0), rho)
    live = 8.0 - (t >= 20.0) + 4.0 * (t >= 30.0)
    rate, last = 0.011, t[-1]
    truth = last + (1 - rho[-1]) / rate
    by_age = fit_growth(t, rho, 0.0, 0.0, live)
    by_time = fit_growth(t, rho, 0.0, 0.0)
    assert by_age.now_s + by_age.left_s == pytest.approx(truth, rel=0.015)
    assert abs(by_time.now_s + by_time.left_s - truth) > 0.03 * truth
    assert by_age.rate == pytest.approx(rate, rel=0.05)


def test_the_own_age_of_calls_counts_less_the_more_they_are() -> None:
    weights = [weight_of_calls(calls) for calls in (1.0, 8.0, 50.0, 256.0)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] > 0.9 > weights[2] == 0.5 > weights[3]


def test_a_curve_stays_a_share_of_the_pool_whatever_was_fitted() -> None:
    curve = Growth(start_s=0.0, now_s=10.0, base=-0.8, rise=0.79, power=1.0, age_s=10.0)
    assert [curve.at(t_s) for t_s in (-5.0, 0.0, 10.0, 1000.0)] == [0.0, 0.0, 0.0, 1.0]
