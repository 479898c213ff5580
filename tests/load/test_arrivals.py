"""When calls dial and how long they stay: seeded, and as often as the rate says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import ProfileError
from metronome_cli.load.arrivals import arrival_times, redial_wait, spread_shares, stay
from metronome_cli.load.lengths import Length, parse_seconds
from metronome_cli.load.plan import Plan


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_a_spread_has_one_place_for_each_line_and_the_first_dials_at_once(calls: int, seed: int) -> None:
    shares = spread_shares(calls, seed)
    assert sorted(shares) == pytest.approx([n / calls for n in range(calls)])


def test_a_constant_rate_comes_in_even_steps_from_the_start() -> None:
    assert arrival_times("constant", 4.0, 4, 60.0, seed=0) == [0.0, 0.25, 0.5, 0.75]


@given(st.integers(0, 2**32), st.integers(0, 1000), st.integers(1, 40), st.none() | st.floats(0, 600))
def test_nobody_dials_again_sooner_than_told_nor_much_later_than_half_a_minute(
    seed: int, caller: int, refusals: int, told_s: float | None
) -> None:
    wait_s = redial_wait(seed, caller, refusals, told_s)
    assert wait_s == redial_wait(seed, caller, refusals, told_s)
    assert max(told_s or 0.0, 1.0) <= wait_s <= 1.5 * max(told_s or 0.0, 30.0)


def test_each_refusal_doubles_the_wait_and_callers_do_not_come_back_together() -> None:
    waits = [redial_wait(7, 0, refusal, 1.0) for refusal in range(1, 6)]
    assert all(2**n <= wait <= 1.5 * 2**n for n, wait in enumerate(waits))
    assert len({redial_wait(7, caller, 1, 1.0) for caller in range(100)}) == 100


def test_random_arrivals_keep_their_rate_and_their_seed() -> None:
    times = arrival_times("poisson", 5.0, 4000, 800.0, seed=1)
    waits = np.diff(times)
    assert times == sorted(times)
    assert np.mean(waits) == pytest.approx(0.2, rel=0.05)
    assert np.std(waits) == pytest.approx(0.2, rel=0.1)  # an exponential's deviation is its mean
    assert times == arrival_times("poisson", 5.0, 4000, 800.0, seed=1)
    assert times != arrival_times("poisson", 5.0, 4000, 800.0, seed=2)


def test_a_ramp_rises_from_nothing_to_its_rate_at_the_end() -> None:
    times = arrival_times("ramp", 10.0, 300, 60.0, seed=0)
    assert times[-1] == pytest.approx(60.0)  # the area under the line: 60 s x 10 / 2
    assert sum(time <= 30 for time in times) == 75  # a quarter of the area lies in the first half
    assert len(times) / 60 == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("text", "mean", "deviation"),
    [
        ("60s", 60.0, 0.0),
        ("1m", 60.0, 0.0),
        ("exp:60s", 60.0, 60.0),
        ("lognormal:60s:0.5", 60 * math.exp(0.125), 36.2),
        ("uniform:30s:90s", 60.0, 60 / math.sqrt(12)),
    ],
)
def test_lengths_are_drawn_as_they_are_written(text: str, mean: float, deviation: float) -> None:
    random = np.random.default_rng(7)
    drawn = [Length.parse(text).draw(random) for _ in range(20_000)]
    assert min(drawn) > 0
    assert np.mean(drawn) == pytest.approx(mean, rel=0.03)
    assert np.std(drawn) == pytest.approx(deviation, rel=0.05, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        *("", "exp", "exp:", "exp:0s", "60s:1", "uniform:90s:30s", "uniform:30s", "gamma:3", "-5s"),
        *("lognormal:60s:-1", "lognormal:60s:wide", "exp:nan", "exp:1s:2s"),
    ],
)
def test_a_length_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ProfileError, match="call-length"):
        Length.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("80ms", 0.08), ("1.5m", 90), ("1h", 3600), ("0s", 0)]
)
def test_lengths_of_time_are_read_in_any_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


def test_each_caller_is_who_it_is_whatever_the_others_are() -> None:
    length = Length.parse("exp:60s")
    callers = [stay(3, caller, length, 600.0, 0.25) for caller in range(2000)]
    assert callers == [stay(3, caller, length, 600.0, 0.25) for caller in range(2000)]
    vanishing = [(length_s, at) for length_s, at in callers if at is not None]
    assert len(vanishing) == pytest.approx(500, rel=0.1)
    assert all(0 <= at <= length_s for length_s, at in vanishing)


def test_a_caller_without_a_length_stays_and_may_vanish_at_any_time_of_the_run() -> None:
    length_s, at = stay(0, 0, None, 600.0, 1.0)
    assert length_s == math.inf
    assert at is not None
    assert 0 <= at <= 600


def test_calls_join_evenly_over_the_spread_in_a_seeded_order() -> None:
    def joins(seed: int, spread_s: float | None = 2.0) -> list[float]:
        return Plan("127.0.0.1", 8, 60.0, seed=seed, spread_s=spread_s).joins(frame_s=0.8)

    assert sorted(joins(3)) == pytest.approx([0.25 * n for n in range(8)])
    assert joins(3) == joins(3) != joins(4)
    assert sorted(joins(3, spread_s=None)) == pytest.approx([0.1 * n for n in range(8)])


@pytest.mark.parametrize(
    ("field", "plan"),
    [
        ("url", {"url": "gopher://x"}),
        ("sessions", {"sessions": 0}),
        ("duration", {"duration_s": 2.0}),
        ("duration", {"duration_s": float("nan")}),
        ("spread", {"spread_s": -1.0}),
        ("arrival-rate", {"rate_hz": 0.0}),
        ("arrivals", {"rate_hz": 1.0, "arrivals": "sometimes"}),
        ("arrivals", {"arrivals": "poisson"}),
        ("cancel-rate", {"cancel_rate": 1.5}),
        ("cancel-rate", {"cancel_rate": 0.5, "protocol": "moshi"}),
        ("vanish-rate", {"vanish_rate": -0.1}),
        ("budget", {"budget_s": 0.0}),
        ("talk", {"talk_s": 2.0}),
        ("silence", {"talk_s": 2.0, "silence_s": -2.0}),
        ("protocol", {"protocol": "sip"}),
        ("model", {"protocol": "vllm"}),
    ],
)
def test_a_plan_that_cannot_be_carried_out_names_its_field(field: str, plan: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"url": "127.0.0.1", "sessions": 1, "duration_s": 9.0, "spread_s": 2.0}
    with pytest.raises(ProfileError, match=f"^{field} ="):
        Plan(**sound | plan)
