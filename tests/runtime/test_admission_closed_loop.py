"""Controllers on a toy server in virtual time: where they settle, and who runs into a full pool."""

from __future__ import annotations

import statistics

import pytest

from metronome_cli.runtime.admission import Admission, Target
from metronome_cli.runtime.admission.aimd import Aimd
from metronome_cli.runtime.admission.forecast import Forecast
from metronome_cli.runtime.admission.gradient import Gradient

from .plant import Plant

TARGET_S = 1.6  # 0.8 of a beat of 2 s
SETTLED_BEATS = 60
CALL_S = 300.0


def make(name: str, most: int) -> Admission:
    target = Target(TARGET_S)
    match name:
        case "aimd":
            return Aimd(target, most)
        case "gradient":
            return Gradient(target, most)
        case _:
            return Forecast(target, most, CALL_S)


def plant(name: str, true_n: int, fixed_share: float, noise: float = 0.0, seed: int = 0) -> Plant:
    """A server that keeps the target for exactly `true_n` calls, in 95 of 100 ticks where there is noise."""
    fixed_s, limit_s = fixed_share * TARGET_S, TARGET_S / (1 + 1.645 * noise)
    return Plant(
        make(name, max(16, int(2.5 * true_n))),
        fixed_s,
        per_call_s=(limit_s - fixed_s) / (true_n + 1e-6),
        arrivals_per_beat=max(4.0, true_n / 13),
        noise=noise,
        seed=seed,
    )


@pytest.mark.parametrize("fixed_share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("true_n", [3, 8, 40, 209])
@pytest.mark.parametrize("name", ["aimd", "gradient", "forecast"])
def test_all_three_settle_at_what_the_server_can_hold(name: str, true_n: int, fixed_share: float) -> None:
    """An open-system ramp well above capacity, calls that stay: within max(1, 5 %) in at most 60 beats."""
    server = plant(name, true_n, fixed_share)
    server.run(SETTLED_BEATS + 60)
    settled = server.live[SETTLED_BEATS:]
    assert max(abs(live - true_n) for live in settled) <= max(1, 0.05 * true_n), server.live


@pytest.mark.parametrize("name", ["aimd", "gradient", "forecast"])
def test_all_three_stay_there_while_callers_come_and_go_and_ticks_vary(name: str) -> None:
    """Ticks vary by 3 %: which N is kept in 95 of 100 of them is known to about as much, hence the mean."""
    true_n = 209
    means = []
    for seed in range(3):
        server = plant(name, true_n, fixed_share=0.3, noise=0.03, seed=seed)
        server.call_s, server.churn = 240.0, True
        server.run(SETTLED_BEATS + 80)
        means.append(statistics.mean(server.live[SETTLED_BEATS:]))
    assert max(abs(mean - true_n) for mean in means) <= 0.05 * true_n, means


def unbounded(name: str, churn: bool, seed: int) -> Plant:
    """As above, but calls fill the pool: 209 of them would have filled it in a third of a call's time."""
    server = plant(name, 209, fixed_share=0.3, noise=0.02, seed=seed)
    server.bound, server.fill_per_s, server.call_s, server.churn = None, 0.3, CALL_S, churn
    server.blocks = int(209 * 0.3 * CALL_S / 3)
    return server


@pytest.mark.parametrize("name", ["aimd", "gradient"])
def test_latency_alone_lets_calls_without_a_bound_run_into_the_wall(name: str) -> None:
    server = unbounded(name, churn=False, seed=0)
    server.run(300)
    assert server.stalled > 1000


@pytest.mark.parametrize("churn", [False, True], ids=["long", "any length"])
@pytest.mark.parametrize("seed", range(5))
def test_forecast_does_not_and_still_fills_the_pool(churn: bool, seed: int) -> None:
    """No call lasts longer than the horizon: not one frame stalls, in as many beats as six calls in a row."""
    server = unbounded("forecast", churn, seed)
    server.run(900)
    assert server.stalled == 0
    holds = server.blocks / (0.3 * CALL_S)  # that many calls, begun together, fill the pool as they end
    assert (0.7 if churn else 0.85) * holds <= max(server.live) <= holds


@pytest.mark.parametrize("name", ["aimd", "gradient", "forecast"])
def test_a_machine_that_was_slow_for_a_while_is_filled_again(name: str) -> None:
    """Half as fast for 100 beats, while calls of up to 4 minutes end and others come."""
    server = plant(name, 100, fixed_share=0.3)
    server.call_s, server.churn = 240.0, True
    server.run(80)
    quick = server.per_call_s
    server.per_call_s *= 2
    server.run(100)
    assert statistics.mean(server.live[-20:]) == pytest.approx(50, rel=0.2)
    server.per_call_s = quick
    server.run(84)
    assert statistics.mean(server.live[-20:]) == pytest.approx(100, rel=0.05)
