"""A made-up device is measured at a few N, fitted, and simulated with what was found: does that go alike?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.fit.capacity import Asked, Capacity, plan
from metronome_cli.fit.ticks import read_ticks
from metronome_cli.profile import Profile, load_profile
from metronome_cli.runtime.cost import HELD_OUT, Cost
from metronome_cli.runtime.device import Load
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.simulator import Call, Fleet, Simulated
from metronome_cli.trace import TickRecord, read_records

# Ticks of 0.8 s at some 60 windowed calls; one in twenty takes half as long again or more.
TRUE = Cost(0.05, 0.004, 0.0002, 0.0003, 0.0003, (0.9, *[0.95 + 0.005 * n for n in range(19)], 1.8))
LOAD = Load(3.4, 4.0, 20)


def profile(**fields: Any) -> Profile:
    given = {
        "beat.frame_s": 1.0,
        "window.sinks": 16,
        "window.window": 256,
        "pool.blocks": 4000,
        "admission.max_sessions": 500,
    }
    return load_profile(
        "laptop", given | {name.replace("_", ".", 1): value for name, value in fields.items()}
    )


def hold(folder: Path, n: int, beats: int = 90) -> list[TickRecord]:
    """The true device with `n` calls that stay."""
    folder.mkdir()
    recorder = Recorder(folder, VirtualClock())
    Fleet(profile(run_seed=n), TRUE, LOAD, 1).run([Call(0.0, 1e6)] * n, float(beats), recorder)
    recorder.close()
    return list(read_records(folder / "trace.jsonl", TickRecord))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Capacity:
    folder = tmp_path_factory.mktemp("runs")
    for n in (5, 10, 20, 40):
        hold(folder / f"n{n}", n)
    return plan(read_ticks([str(folder / "n*")]), Asked(resamples=40))


def test_the_n_that_was_told_holds_and_a_tenth_more_does_not(found: Capacity, tmp_path: Path) -> None:
    assert found.worst < HELD_OUT
    assert found.n > 50
    for n, holds in ((int(0.95 * found.n), True), (int(1.1 * found.n), False)):
        took = [tick.done - tick.start for tick in hold(tmp_path / f"{n}", n)[60:]]
        assert (np.percentile(took, 95) <= found.limit_s) == holds


@pytest.mark.parametrize(
    ("policy", "admit"), [("window", "forecast"), ("window", "aimd"), ("unbounded", "fixed")]
)
def test_a_ramp_with_the_fitted_cost_goes_as_with_the_true_one(
    found: Capacity, policy: str, admit: str
) -> None:
    of = profile(window_policy=policy, admission_admit=admit, admission_max_sessions=80, pool_blocks=2000)
    random = np.random.default_rng(3)
    offered = [
        Call(float(at), float(random.lognormal(4.5, 0.5))) for at in np.sort(random.uniform(0, 240, 500))
    ]

    def ramp(cost: Cost, load: Load) -> Simulated:
        return Fleet(of, cost, load, 1).run(offered, 240.0, Recorder(None, VirtualClock()))

    measured = Load(float(found.of.tokens_in), float(found.of.tokens_out), LOAD.header)
    true, told = ramp(TRUE, LOAD), ramp(found.cost, measured)
    assert 50 < true.admitted < len(offered) - 50
    assert told.admitted == pytest.approx(true.admitted, rel=0.05)
    assert (true.t_sat[0] is not None) == (policy == "unbounded")
    assert told.t_sat[0] == (true.t_sat[0] and pytest.approx(true.t_sat[0], rel=0.05))
