"""Which limit binds first."""

from __future__ import annotations

import numpy as np
import pytest

from metronome_cli.fit.forecast import Forecast
from metronome_cli.fit.limits import Beats, first_limit
from metronome_cli.fit.plateau import Interval, Plateau


def level(ceiling: int | None) -> Forecast:
    """A pool that stays at 40 %, and holds `ceiling` sessions."""
    share = None if ceiling is None else 1 / ceiling
    plateau = Plateau(Interval(0.4, 0.39, 0.41), 10.0, share, ceiling)
    return Forecast("plateau", None, 0.0, 0.0, None, plateau, None, None, 50, 100.0)


RAMP = Forecast("ramp", Interval(145.0, 143.0, 149.0), 0.0, 0.007, None, None, None, None, 50, 100.0)


def beats(sessions: list[int], base: float = 0.1, each: float = 0.009, noise: float = 0.0) -> Beats:
    """Beats of a period of one second that take `base` and `each` for every session."""
    rng = np.random.default_rng(3)
    took = [base + each * n + noise * rng.standard_normal() for n in sessions]
    return Beats([float(n) for n in sessions], took, 1.0)


@pytest.mark.parametrize(
    ("ceiling", "binds"), [(500, "deadline"), (101, "deadline"), (100, "memory"), (40, "memory")]
)
def test_the_lower_ceiling_binds_a_plateau(ceiling: int, binds: str) -> None:
    found = first_limit(level(ceiling), beats([10, 20, 30, 40] * 5, each=0.00899999))
    assert (found.binds, found.memory_sessions, found.deadline_sessions) == (binds, ceiling, 100)


def test_the_line_holds_against_noise_and_a_beat_that_overran() -> None:
    found = beats([10, 20, 30, 40] * 20, noise=0.004)
    took = [*found.took_s[:-1], 9.0]
    assert first_limit(level(500), Beats(found.sessions, took, 1.0)).deadline_sessions == pytest.approx(
        100, abs=3
    )


@pytest.mark.parametrize(
    ("measured", "why"),
    [
        (None, "nothing here tells how long a beat takes"),
        (beats([32] * 40), "sessions did not vary"),
        (beats([10, 20, 30] * 9, each=0.0, noise=0.01), "did not take longer with more sessions"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(measured: Beats | None, why: str) -> None:
    found = first_limit(level(500), measured)
    assert (found.binds, found.deadline_sessions) == (None, None)
    assert why in found.why


def test_a_plateau_without_sessions_has_a_deadline_and_no_verdict() -> None:
    found = first_limit(level(None), beats([10, 20, 30] * 5))
    assert found.binds is None
    assert found.deadline_sessions in (99, 100)  # rounding may fall on either side


def test_a_ramp_meets_memory_unless_beats_overrun_already() -> None:
    assert first_limit(RAMP, beats([32] * 40)).binds == "memory"
    late = beats([32] * 20 + [200] * 40)
    assert first_limit(RAMP, late).binds == "deadline"
    assert first_limit(RAMP, None).binds is None
