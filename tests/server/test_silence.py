"""When an engine is busy, and when it hangs."""

from __future__ import annotations

import pytest

from metronome_cli.profile import parse_profile
from metronome_cli.server.silence import LOOK_S, Silence


def silence(frame_s: float = 2.0, **server: float) -> Silence:
    profile = parse_profile(
        "null", {"model": {"kind": "null"}, "beat": {"frame_s": frame_s}, "server": server}
    )
    made = Silence(profile)
    made.begin(100.0)
    return made


def wait(silence: Silence, since: float, seconds: float) -> float:
    """Look as often as a gateway does; when that is over."""
    for _ in range(int(seconds / LOOK_S)):
        since += LOOK_S
        silence.look(since)
    return since


@pytest.mark.parametrize(
    ("frame_s", "hang_s", "busy", "hung"),
    [(2.0, 60.0, 14.0, 64.0), (0.5, 60.0, 11.0, 61.0), (0.5, 6.0, 4.0, 7.0), (20.0, 60.0, 50.0, 100.0)],
)
def test_it_is_busy_first_and_hangs_after_the_profiles_seconds_and_two_frames(
    frame_s: float, hang_s: float, busy: float, hung: float
) -> None:
    engine = silence(frame_s, hang_s=hang_s)
    now = wait(engine, 100.0, busy)
    assert not engine.is_busy
    now = wait(engine, now, LOOK_S)
    assert engine.is_busy
    assert not engine.is_hung
    now = wait(engine, now, hung - busy - LOOK_S)
    assert not engine.is_hung
    wait(engine, now, LOOK_S)
    assert engine.is_hung


def test_the_next_beat_ends_it() -> None:
    engine = silence()
    engine.begin(wait(engine, 100.0, 70.0))
    assert not engine.is_busy
    assert not engine.is_hung


def test_a_long_tick_that_says_a_word_now_and_then_is_late_and_does_not_hang() -> None:
    engine = silence()
    now = 100.0
    for _ in range(5):
        now = wait(engine, now, 50.0)
        engine.heard()
    assert engine.is_busy
    assert not engine.is_hung
    wait(engine, now, 64.0)
    assert not engine.is_hung
    wait(engine, now + 64.0, 2 * LOOK_S)  # the first one heard the last word
    assert engine.is_hung


def test_who_slept_blames_nobody_else() -> None:
    engine = silence()
    engine.look(100.0 + 8 * 3600.0)
    assert not engine.is_busy
    assert not engine.is_hung
    wait(engine, 100.0 + 8 * 3600.0, 65.0)  # awake, and still nothing
    assert engine.is_hung


def loaded(first_s: float) -> Silence:
    """One whose second load begins at 200 s; the first took `first_s`."""
    engine = Silence(parse_profile("null", {"model": {"kind": "null"}, "beat": {"frame_s": 2.0}}))
    engine.load(100.0)
    engine.begin(wait(engine, 100.0, first_s))
    engine.stop()
    wait(engine, 100.0 + first_s, 600.0)  # between the two nothing counts
    engine.load(200.0)
    return engine


def test_while_a_model_loads_no_beat_is_waited_for() -> None:
    engine = loaded(10.0)
    wait(engine, 200.0, 60.0)
    assert not engine.is_busy
    assert not engine.is_hung
    engine.begin(260.0)
    wait(engine, 260.0, 20.0)
    assert engine.is_busy


def test_a_first_load_may_take_any_time() -> None:
    engine = Silence(parse_profile("null", {"model": {"kind": "null"}}))
    engine.load(100.0)
    wait(engine, 100.0, 100_000.0)
    assert not engine.is_busy
    assert not engine.is_hung


@pytest.mark.parametrize(("first_s", "hung_s"), [(1.0, 67.0), (10.0, 94.0), (300.0, 964.0)])
def test_a_later_load_hangs_without_a_sign_for_longer_than_the_first_one_explains(
    first_s: float, hung_s: float
) -> None:
    engine = loaded(first_s)
    now = wait(engine, 200.0, hung_s)
    assert not engine.is_hung
    wait(engine, now, LOOK_S)
    assert engine.is_hung


def test_a_load_that_gives_signs_may_take_any_time_and_once_up_the_usual_limit_holds() -> None:
    engine = loaded(1.0)
    now = 200.0
    for _ in range(100):
        now = wait(engine, now, 60.0)
        assert not engine.is_hung
        engine.heard()
    engine.begin(now)
    now = wait(engine, now, 64.0)
    assert not engine.is_hung
    wait(engine, now, LOOK_S)
    assert engine.is_hung


def test_a_slow_load_that_came_up_gives_the_next_one_time_and_a_quick_one_takes_none_away() -> None:
    engine = loaded(10.0)
    engine.begin(wait(engine, 200.0, 80.0))
    for _ in range(2):
        engine.load(1000.0)
        assert not engine.is_hung
        engine.begin(wait(engine, 1000.0, 1.0))
    engine.load(2000.0)
    now = wait(engine, 2000.0, 64.0 + 3 * 80.0)
    assert not engine.is_hung
    wait(engine, now, LOOK_S)
    assert engine.is_hung
