"""How each cap moves, tick by tick: what holds after any history, and that every overload is got over."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.frame import KvUsage
from metronome_cli.runtime.admission import Admission, Measured, Target
from metronome_cli.runtime.admission.aimd import Aimd
from metronome_cli.runtime.admission.forecast import Forecast
from metronome_cli.runtime.admission.gradient import Gradient

TARGET = Target(latency_s=1.0, percentile=90, window_ticks=10)
MOST = 100
HORIZON_S = 60.0
ROOMY = KvUsage(leased=0, reserved=0, total=10**6, room=10**5)
ALL: dict[str, Callable[[], Admission]] = {
    "aimd": lambda: Aimd(TARGET, MOST),
    "gradient": lambda: Gradient(TARGET, MOST),
    "forecast": lambda: Forecast(TARGET, MOST, HORIZON_S),
}
each = pytest.mark.parametrize("make", ALL.values(), ids=list(ALL))


def tick(fresh_s: float | None, served: int, due: float = 0.0, pool: KvUsage = ROOMY) -> Measured:
    done = due + (fresh_s if fresh_s is not None and math.isfinite(fresh_s) else 0.0)
    return Measured(due, done, served, served, fresh_s, 0, served, 0, pool)


def feed(admission: Admission, history: Sequence[tuple[float | None, int]]) -> None:
    for number, (fresh_s, served) in enumerate(history):
        admission.observe(tick(fresh_s, served, due=float(number)))


latencies = st.floats(0.01, 5.0)
histories = st.lists(st.tuples(st.none() | st.just(math.nan) | latencies, st.integers(0, MOST)), max_size=60)


@each
@given(history=histories)
def test_the_cap_stays_within_the_profiles_and_what_was_measured(
    make: Callable[[], Admission], history: list[tuple[float | None, int]]
) -> None:
    admission = make()
    assert 1 <= admission.cap.calls <= MOST
    for number, (fresh_s, served) in enumerate(history):
        admission.observe(tick(fresh_s, served, due=float(number)))
        step = admission.step if isinstance(admission, Aimd) else max(1, math.isqrt(served))
        assert 1 <= admission.cap.calls <= min(MOST, served + step)


@each
@given(history=histories, silent=st.lists(st.none() | st.just(math.nan), min_size=1, max_size=30))
def test_ticks_without_tokens_move_nothing(
    make: Callable[[], Admission], history: list[tuple[float | None, int]], silent: list[float | None]
) -> None:
    told, left_alone = make(), make()
    feed(told, history)
    feed(left_alone, history)
    served = history[-1][1] if history else 0
    for number, fresh_s in enumerate(silent):
        told.observe(tick(fresh_s, served, due=100.0 + number))
        assert told.cap == left_alone.cap
    told.observe(tick(0.5, served, due=200.0))
    left_alone.observe(tick(0.5, served, due=200.0))
    assert told.cap == left_alone.cap


RECOVERY_TICKS = {
    "aimd": TARGET.window_ticks + 64,
    "gradient": TARGET.window_ticks,
    "forecast": TARGET.window_ticks,
}


@pytest.mark.parametrize("name", ALL)
@given(history=histories, served=st.integers(1, MOST))
def test_after_an_overload_the_cap_is_back_at_its_ceiling_within_the_stated_ticks(
    name: str, history: list[tuple[float | None, int]], served: int
) -> None:
    admission = ALL[name]()
    feed(admission, history)
    for number in range(RECOVERY_TICKS[name]):
        admission.observe(tick(0.05, served, due=1000.0 + number))
    step = admission.step if isinstance(admission, Aimd) else max(1, math.isqrt(served))
    assert admission.cap.calls == min(MOST, served + step)
    assert admission.cap.reason == ("ramp" if served + step < MOST else "max_sessions")


@each
def test_one_late_tick_of_ten_ends_no_admission_for_good(make: Callable[[], Admission]) -> None:
    admission = make()
    feed(admission, [(0.5, 50)] * 10 + [(3.0, 50), (0.5, 50)])
    assert admission.decide(50) is None


@each
def test_an_overload_refuses_and_says_why(make: Callable[[], Admission]) -> None:
    admission = make()
    feed(admission, [(0.5, 40)] * 10 + [(1.5, 50)] * 3)
    refused = admission.decide(50)
    assert refused is not None
    assert refused.reason == "latency"


# ---- aimd ----


def test_aimd_cuts_one_overload_once() -> None:
    admission = Aimd(TARGET, MOST)
    feed(admission, [(0.5, 40)] * 10 + [(1.5, 50)] * 2)
    assert admission.cap.calls == 45  # 0.9 of the calls that were late
    feed(admission, [(1.5, 50)] * TARGET.window_ticks)
    assert admission.cap.calls == 45
    feed(admission, [(1.5, 47)])  # it did not help: once more
    assert admission.cap.calls == 42


def test_aimd_does_not_cut_an_overload_that_is_over() -> None:
    admission = Aimd(TARGET, MOST)
    feed(admission, [(1.5, 50)] * 2 + [(0.5, 40)] * 7 + [(1.5, 40)] * 3)
    held = admission.cap  # it rests since the cut to 45, and no more than two beyond those served may come
    assert held.calls == 42
    feed(admission, [(0.5, 40)])
    assert admission.cap == held


def test_aimd_cuts_by_the_calls_served_however_high_the_cap_was() -> None:
    admission = Aimd(TARGET, MOST)
    feed(admission, [(1.5, 10)] * 2)
    assert admission.cap.calls == 9


def test_aimd_holds_where_headroom_ends_and_keeps_the_places_of_those_who_leave() -> None:
    admission = Aimd(TARGET, MOST, step=4)
    feed(admission, [(0.5, 40)] * 10 + [(0.99, 48)])
    assert admission.cap.calls == 48
    feed(admission, [(0.99, 45)])
    assert (admission.cap.calls, admission.cap.reason) == (48, "latency")


@pytest.mark.parametrize("make", [ALL["aimd"], ALL["gradient"]])
def test_a_stalled_frame_is_late_though_the_tick_was_not(make: Callable[[], Admission]) -> None:
    admission = make()
    feed(admission, [(0.1, 20)] * 10)
    for number in range(3):
        admission.observe(replace(tick(0.1, 20, due=20.0 + number), stalled=5))
    refused = admission.decide(20)
    assert refused is not None
    assert refused.reason == "memory"


# ---- gradient ----


def test_gradient_takes_a_tick_that_grows_with_its_calls_for_healthy() -> None:
    """Envoy's own rule, held against the least latency, would shrink this server at four calls."""
    admission = Gradient(TARGET, MOST)
    feed(admission, [(0.1 * n, n) for n in range(1, 7)])
    assert admission.cap.calls >= 7


def test_gradient_is_at_rest_where_the_target_is_reached() -> None:
    admission = Gradient(TARGET, MOST)
    feed(admission, [(0.2, 1)] + [(1.0, 36)] * 20)
    assert admission.cap.calls == 36


def test_gradient_halves_at_the_most() -> None:
    admission = Gradient(TARGET, MOST)
    feed(admission, [(0.2, 1)] + [(30.0, 64)] * 10)
    assert admission.cap.calls == 32 + 8


def test_gradient_forgets_an_overload_with_the_calls_that_made_it() -> None:
    admission = Gradient(TARGET, MOST)
    feed(admission, [(0.0, 1)] + [(1.25, 50)] * 20 + [(1.0, 40)])
    assert admission.cap.calls == 40


# ---- forecast ----


def test_forecast_extrapolates_the_line_of_latency() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    feed(admission, [(0.3 + 0.01 * n, n) for n in range(50, 69)])
    assert (admission.cap.calls, admission.cap.reason) == (70, "latency")
    assert admission.decide(69) is None
    assert admission.decide(70) is not None


def test_forecast_is_not_turned_by_ticks_that_hung() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    line = [(0.3 + 0.01 * n, n) for n in range(40, 69)]
    feed(admission, [(8.0, n) if n == 50 else (late_s, n) for late_s, n in line])
    assert admission.cap.calls == 70


def test_forecast_knows_its_line_while_the_same_calls_stay() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    feed(admission, [(0.3 + 0.01 * n, n) for n in range(50, 69)] + [(0.98, 68)] * 100)
    assert admission.cap.calls == 70


def test_forecast_does_not_take_noise_about_one_number_of_calls_for_a_line() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    feed(admission, [(0.3 + 0.01 * n, n) for n in range(50, 69)] + [(0.99, 68), (0.97, 69)] * 50)
    assert admission.cap.calls == 69


def test_forecast_promises_no_more_than_the_pool() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    admission.observe(tick(0.1, 30, pool=KvUsage(90, 90, 100, room=2)))
    assert (admission.cap.calls, admission.cap.reason) == (32, "pool_full")


def filling(due: float, served: int, grown: int, leased: int, total: int) -> Measured:
    pool = KvUsage(leased, 0, total, None if leased < total else 0)
    return replace(tick(0.1, served, due, pool), grown=grown)


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.0, 3.0)), min_size=1, max_size=60),
    st.integers(100, 20_000),
)
def test_forecast_lets_nobody_in_beside_others_whom_the_pool_has_no_time_for(
    ticks: list[tuple[int, float]], total: int
) -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    blocks, call_s, leased = 0, 0.0, 0
    admission.observe(filling(0.0, 1, 0, 0, total))
    for number, (served, per_call) in enumerate(ticks, 1):
        grown = min(int(served * per_call), total - leased)
        blocks, call_s, leased = blocks + grown, call_s + 2.0 * served, leased + grown
        admission.observe(filling(2.0 * number, served, grown, leased, total))
        for live in range(1, admission.cap.calls):
            full_in_s = (total - leased) * call_s / (blocks * (live + 1)) if blocks else math.inf
            assert full_in_s >= HORIZON_S * (1 - 1e-9)
        assert admission.decide(0) is None  # alone, a call takes no one's blocks


def test_forecast_opens_again_when_a_call_that_filled_the_pool_is_gone() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    for number in range(4):
        admission.observe(filling(2.0 * number, 1, 7, 7 * number, 21))
    assert admission.decide(1) is not None
    admission.observe(replace(filling(8.0, 1, 0, 0, 21), served=0, live=0, older=0, grown=0))
    assert admission.decide(0) is None


def test_forecast_measures_one_call_without_a_bound_before_it_lets_in_another() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    admission.observe(replace(filling(0.0, 1, 0, 1, 10_000), older=0))
    assert (admission.cap.calls, admission.cap.reason) == (1, "memory")
    admission.observe(filling(2.0, 1, 1, 2, 10_000))
    assert (admission.cap.calls, admission.cap.reason) == (2, "ramp")


def test_forecast_takes_a_call_to_be_one_block_ahead_of_what_is_seen() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    for number in range(4):  # 10 calls for 6 s, and no block is full yet
        admission.observe(filling(2.0 * number, 10, 0, 10, 60))
    assert (admission.cap.calls, admission.cap.reason) == (int(50 / (HORIZON_S * 10 / 60)), "memory")


def test_forecast_follows_callers_who_talk_more_than_they_did() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    for number in range(200):
        admission.observe(filling(2.0 * number, 50, 0, 0, 3000))
    assert admission.cap.reason == "ramp"
    for number in range(200, 210):
        admission.observe(filling(2.0 * number, 50, 100, 100 * (number - 199), 3000))
    assert (admission.cap.calls, admission.cap.reason) == (int(2000 / HORIZON_S), "memory")


def test_a_place_that_is_left_in_a_full_pool_is_not_given_away() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    admission.observe(filling(0.0, 5, 0, 90, 100))
    admission.observe(filling(2.0, 5, 10, 100, 100))
    assert admission.decide(4) is not None


def test_forecast_remembers_in_a_lull_that_callers_talk() -> None:
    admission = Forecast(TARGET, MOST, HORIZON_S)
    for number in range(30):
        admission.observe(filling(2.0 * number, 10, 20, 20 * number, 2400))
    busy = admission.cap
    for number in range(30, 50):
        admission.observe(filling(2.0 * number, 10, 0, 600, 2400))
    assert busy.reason == admission.cap.reason == "ramp"
    admission.observe(filling(100.0, 60, 0, 600, 2400))
    assert admission.cap.reason == "memory"
    assert (
        1800 / (HORIZON_S * 1.0) <= admission.cap.calls < 1800 / (HORIZON_S * 0.5)
    )  # a block a second, or half
