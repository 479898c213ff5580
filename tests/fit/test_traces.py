"""The simulated traces on which the forecast is judged are what they are said to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

SEEDS = range(40)


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    """evals/ is no part of the package."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from evals.predict.traces import simulated

    return simulated


def test_a_seed_is_a_trace(simulated: Any) -> None:
    one, again, other = simulated(3), simulated(3), simulated(4)
    assert one.series.occupancy.tolist() == again.series.occupancy.tolist()
    assert (one.t_sat, one.calls) == (again.t_sat, again.calls) != (other.t_sat, other.calls)


def test_the_pool_is_full_when_the_truth_says_so_and_not_before(simulated: Any) -> None:
    for trace in map(simulated, SEEDS):
        t, rho = trace.series.t_s, trace.series.occupancy
        step = np.median(np.diff(t))
        assert rho[t < trace.t_sat - 0.01 * (trace.t_sat - trace.offset)].max() < 1.0
        assert (rho[t > trace.t_sat + 2.01 * step][1:] == 1.0).any()
        assert (rho[t < trace.offset] == 0.0).all()
        assert trace.offset <= 20.0


def test_samples_are_rounded_and_some_repeat(simulated: Any) -> None:
    rows = repeated = 0
    for trace in map(simulated, SEEDS):
        t, rho = trace.series.t_s, trace.series.occupancy
        assert np.abs(rho * 1000 - np.round(rho * 1000)).max() < 1e-9
        assert 0.2 <= np.median(np.diff(t)) <= 2.0
        rows, repeated = rows + len(t), repeated + int(np.count_nonzero(np.diff(t) == 0.0))
    assert 0.02 < repeated / rows < 0.03  # the other half has a time of its own


def test_calls_are_as_many_as_asked_and_at_most_three_tenths_come_or_go(simulated: Any) -> None:
    for trace in (simulated(seed, calls=(4, 40)) for seed in SEEDS):
        live = trace.series.sessions[trace.series.t_s > trace.offset + 2.0]
        assert 4 <= trace.calls <= 40
        assert 0.7 * trace.calls <= live.min() <= live.max() <= 1.3 * trace.calls


def test_calls_of_a_bounded_trace_stop_growing(simulated: Any) -> None:
    for trace in (simulated(seed, bounded=True) for seed in SEEDS):
        t, rho, live = trace.series.t_s, trace.series.occupancy, trace.series.sessions
        assert trace.t_sat == np.inf
        assert t[-1] > trace.offset + 1.9 * trace.window_s
        assert rho.max() < 1.0
        at_window = rho[t >= trace.offset + trace.window_s][0]
        assert rho[-1] < 1.35 * at_window * max(1.0, live[-1] / live[t >= trace.offset + trace.window_s][0])
