from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.runtime.ticker import Tick, Ticker


def test_an_hour_of_beats_does_not_drift() -> None:
    """Every beat works for a while and wakes up late; the due times stay where they were."""
    clock = VirtualClock(now=12.5)
    ticker = Ticker(0.08, first_due=12.58)
    for index in range(45_000):
        clock.wait_until(ticker.next_due)
        clock.advance(0.004)
        tick = ticker.take(clock.now())
        assert tick is not None
        assert (tick.index, tick.skipped) == (index, 0)
        assert abs(tick.due - (12.58 + index * 0.08)) < 1e-6
        clock.advance(0.07)
    assert ticker.next_due == pytest.approx(12.58 + 3600, abs=1e-6)


def test_nothing_is_due_before_its_time() -> None:
    ticker = Ticker(1.0, first_due=10.0)
    assert ticker.take(9.999) is None
    assert ticker.take(10.0) == Tick(0, 10.0)
    assert ticker.take(10.0) is None
    assert ticker.next_due == 11.0


def test_beats_that_were_slept_through_are_skipped_and_counted() -> None:
    """After work that ran past two due times, the next beat is the latest due one."""
    ticker = Ticker(1.0, first_due=0.0)
    assert ticker.take(0.0) == Tick(0, 0.0)
    assert ticker.take(3.4) == Tick(3, 3.0, skipped=2)
    assert ticker.take(3.9) is None
    assert ticker.take(4.0) == Tick(4, 4.0)


@given(
    st.floats(0.001, 10),
    st.floats(0, 1e6),
    st.lists(st.floats(0, 50), min_size=1, max_size=50),
)
def test_every_beat_is_taken_once_or_counted_as_skipped(
    period_s: float, first_due: float, steps: list[float]
) -> None:
    ticker, now, expected = Ticker(period_s, first_due), first_due, 0
    for step in steps:
        now += step
        tick = ticker.take(now)
        if tick is None:
            assert now < ticker.next_due
            continue
        assert tick.due <= now < ticker.next_due + period_s * 1e-6
        assert tick.index - tick.skipped == expected
        expected = tick.index + 1


def test_a_period_of_nothing_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"beat\.frame_s"):
        Ticker(0.0, 0.0)
