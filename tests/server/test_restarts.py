"""How long after a death another try is worth it, in numbers alone."""

from __future__ import annotations

from metronome_cli.server.restarts import Restarts


def test_pauses_double_up_to_half_a_minute_and_end_with_the_tries() -> None:
    restarts = Restarts(8)
    assert [restarts.pause_s(0.0) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, None]


def test_a_long_life_forgives_the_short_ones_before_it() -> None:
    restarts = Restarts(2)
    assert [restarts.pause_s(lived_s) for lived_s in (1, 1, 60, 1, 1, 1)] == [0.5, 1, 0.5, 0.5, 1, None]


def test_a_short_life_that_served_its_calls_is_no_failure_and_one_that_hardly_did_is() -> None:
    restarts = Restarts(2)
    lives = [(5.0, 0.0), (30.0, 9.9), (30.0, 10.0), (20.0, 12.0), (12.0, 9.0), (1.0, 0.0), (59.0, 9.9)]
    assert [restarts.pause_s(*life) for life in lives] == [0.5, 1, 0.5, 0.5, 0.5, 1, None]


def test_with_no_tries_even_a_long_life_is_the_only_one() -> None:
    restarts = Restarts(0)
    assert restarts.pause_s(3600.0) is None
    assert str(restarts) == "server.restarts = 0; use 1 or more"


def test_why_there_is_no_other_try_is_told_by_field_and_cure() -> None:
    restarts = Restarts(1)
    assert [restarts.pause_s(lived_s) for lived_s in (600, 59, 59)] == [0.5, 0.5, None]
    assert str(restarts) == (
        "server.restarts = 1, and it ended 2 times in a row before it had served calls for 10 s or been "
        "ready for 60 s; mend what ended it, or allow more"
    )
