"""The N that fits, from ticks at other N."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.errors import FieldError, ProfileError
from metronome_cli.fit.capacity import Asked, Carried, fit_cost, plan
from metronome_cli.fit.ticks import Ticks, gather
from metronome_cli.runtime.cost import HELD_OUT
from metronome_cli.trace import TickRecord

from .calls import run, took

COUNTS = (4, 8, 16, 32)
QUICK = Asked(resamples=20)


def runs(counts: Sequence[int] = COUNTS, **of: float) -> Ticks:
    return gather({f"n{n}": run(n, **of) for n in counts})  # type: ignore[arg-type]  # by their names


@given(st.tuples(*[st.floats(1e-4, 1e-2)] * 4))
@settings(max_examples=20, deadline=None)
def test_a_cost_without_noise_is_found_again_at_any_n(parts: tuple[float, ...]) -> None:
    def cost(sessions: int, blocks: int, tokens_in: int) -> float:
        return float(np.dot(parts, (1, sessions, blocks, tokens_in)))

    carried = Carried(runs(cost=cost))  # type: ignore[arg-type]
    for n in (1, 100):
        # 20 blocks a call once windows are full; the median beat brings a quarter of 12 tokens a call.
        full = cost(n, 20 * n, 0) + parts[3] * carried.tokens_in * n
        assert np.median(carried.at(n)) == pytest.approx(full, rel=0.12)
    assert carried.ratio_T == pytest.approx(1.0, abs=1e-3)


def test_no_part_of_a_cost_is_below_zero_and_rare_delays_do_not_turn_it() -> None:
    ticks = run(4), run(8), run(16), run(32)
    for late in ticks[3][::8]:
        late.done += 1.5
    coefficients = fit_cost(gather(dict(zip("abcd", ticks, strict=True))))
    assert (coefficients >= 0).all()
    assert np.dot(coefficients, (1, 32, 640, 96, 64)) == pytest.approx(took(32, 640, 96), rel=0.02)


def test_the_deadline_binds_and_lies_in_its_interval() -> None:
    asked = Asked(resamples=60)
    found = plan(runs(noise=0.03), asked)
    # 1.6 s: 0.1 s, and 10 + 4 + 1.5 ms for each call; noise takes a few of them.
    assert found.binds == "deadline"
    assert found.low <= found.n <= found.high
    assert 82 <= found.n <= 97
    assert found.memory_sessions == 4000 // 22
    assert found.limit_s == pytest.approx(1.6)
    late = np.percentile(found.of.at(found.n + 1), 95)
    assert np.percentile(found.of.at(found.n), 95) <= found.limit_s < late
    assert found.worst < HELD_OUT


def test_memory_binds_where_the_pool_is_small_and_has_no_ceiling_without_a_bound() -> None:
    small = plan(runs(blocks=1000), QUICK)
    assert (small.n, small.binds) == (1000 // 22, "memory")
    unbounded = plan(runs(bound=0), QUICK)
    assert (unbounded.memory_sessions, unbounded.binds) == (None, "deadline")


def test_less_margin_and_more_budget_hold_more() -> None:
    ticks = runs(noise=0.03)
    counts = [
        plan(ticks, replace(QUICK, budget_s=budget_s, margin=margin)).n
        for budget_s, margin in ((1, 0.2), (1, 0.0), (3, 0.0))
    ]
    assert counts == sorted(set(counts))
    assert plan(ticks, replace(QUICK, budget_s=0.05)).n == 0


def test_a_cost_that_bends_is_caught_by_the_held_out_n() -> None:
    def bent(sessions: int, blocks: int, tokens_in: int) -> float:
        return 0.05 + 0.001 * sessions**2

    found = plan(runs(cost=bent), QUICK)  # type: ignore[arg-type]
    assert found.worst > HELD_OUT


def test_what_callers_bring_evens_out_with_their_number() -> None:
    """A few callers' bursts must not be multiplied: p95 of 32 calls is told from 2, 3 and 4 of them."""

    def talk(sessions: int, blocks: int, tokens_in: int) -> float:
        return 0.1 + 0.01 * sessions + 0.005 * tokens_in

    few = Carried(runs((2, 3, 4), cost=talk, beats=200))  # type: ignore[arg-type]
    many = [tick.done - tick.start for tick in run(32, 200, talk)]
    assert np.percentile(few.at(32), 95) == pytest.approx(np.percentile(many, 95), rel=0.08)


def test_the_same_seed_gives_the_same_interval() -> None:
    ticks = runs(noise=0.1)
    first, again, other = (plan(ticks, replace(QUICK, seed=seed)) for seed in (0, 0, 1))
    assert (first.low, first.high) == (again.low, again.high)
    assert other.n == first.n


@pytest.mark.parametrize(
    "ticks",
    [
        [run(8)],
        [run(8), run(16)],
        [run(8), run(16), run(32, 9)],
    ],
)
def test_too_few_n_or_ticks_are_told_with_what_is_there(ticks: list[list[TickRecord]]) -> None:
    with pytest.raises(FieldError, match="3 or more numbers of sessions, with 10 or more") as raised:
        plan(gather({f"run {n}": told for n, told in enumerate(ticks)}), QUICK)
    assert "run 0" in raised.value.field
    assert 8 in raised.value.value  # type: ignore[operator]


def test_a_budget_must_be_given_where_the_periods_differ() -> None:
    slow = [msgspec.structs.replace(tick, due=2 * tick.due) for tick in run(32)]
    ticks = gather({"slow": slow} | {f"n{n}": run(n) for n in (4, 8)})
    with pytest.raises(FieldError, match="give a --budget"):
        plan(ticks, QUICK)
    assert plan(ticks, replace(QUICK, budget_s=1.0)).budget_s == 1.0


@pytest.mark.parametrize(("name", "asked"), [("budget", {"budget_s": 0.0}), ("margin", {"margin": 1.0})])
def test_what_is_asked_is_checked(name: str, asked: dict[str, float]) -> None:
    with pytest.raises(ProfileError, match=name):
        Asked(**asked)  # type: ignore[arg-type]
