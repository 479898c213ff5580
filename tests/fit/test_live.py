"""A live server's page, read again and again in virtual time from a real socket."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import FieldError, ProfileError, TargetUnreachable
from metronome_cli.fit.fetch import MOST_BYTES
from metronome_cli.fit.live import Course, Page
from tests.pages import Page as Served
from tests.pages import recorded, serving


def filling(count: int, begin: float = 0.1, tokens: int = 1000) -> list[Served]:
    """Pages of a server whose pool gains a hundredth with each."""
    return [
        recorded("vllm", kv_cache_usage_perc=begin + n / 100, generation_tokens_total=tokens + n)
        for n in range(count)
    ]


def course(pages: Sequence[Served], polls: int, most: int | None = None) -> Course:
    """What `polls` readings, two seconds apart, make of the pages."""
    with serving(pages) as url:
        found = Course(Page(url, VirtualClock(500.0)), most)
        for number, _ in enumerate(found.every(2.0), 1):
            if number == polls:
                break
    return found


def test_readings_become_a_series_on_the_readers_clock() -> None:
    source = course(filling(8), 8).source()
    assert source.series.t_s.tolist() == [2.0 * n for n in range(8)]
    assert source.series.occupancy.tolist() == pytest.approx([0.1 + n / 100 for n in range(8)])
    assert source.series.sessions is not None
    assert source.series.sessions.tolist() == [12.0] * 8
    assert source.series.stalled is not None
    assert source.notes == ()


def test_a_page_is_read_for_the_time_that_was_asked() -> None:
    with serving(filling(1)) as url:
        clock = VirtualClock()
        found = Course(Page(url, clock))
        assert sum(1 for _ in found.every(0.5, 10.0)) == 21
    assert clock.now() == 10.0


def test_reading_that_takes_long_delays_no_later_reading() -> None:
    with serving(filling(1)) as url:
        clock = VirtualClock()
        at = []
        for _ in Course(Page(url, clock)).every(1.0, 6.0):
            at.append(clock.now())
            clock.advance(1.25)
    assert at == [0.0, 2.0, 4.0, 6.0]


def test_the_newest_readings_are_kept_where_memory_is_bounded() -> None:
    assert course(filling(12), 12, most=6).source().series.t_s.tolist() == [2.0 * n for n in range(6, 12)]


def test_too_few_readings_are_told_with_the_url() -> None:
    with pytest.raises(FieldError, match=r"http://127\.0\.0\.1.*at least 5 rows"):
        course(filling(3), 3).source()


def test_a_server_that_starts_anew_begins_a_new_series_and_says_so() -> None:
    found = course([*filling(6, begin=0.5), *filling(7, tokens=0)], 13)
    series = found.source().series
    assert series.t_s[0] == 12.0
    assert series.occupancy[0] == pytest.approx(0.1)
    assert len(series) == 7
    [note] = found.notes
    assert "started anew by 12.0 s" in note


def test_a_pool_that_was_full_and_came_free_is_forecast_anew() -> None:
    found = course(
        [*filling(6, begin=0.95), *filling(4, begin=0.96, tokens=1500), *filling(7, tokens=2000)], 17
    )
    # 0.95 to 1.0, where it stays nearly full, then 0.1: only the last rise is a series of its own.
    assert found.source().series.t_s.tolist() == [20.0 + 2 * n for n in range(7)]
    assert "free again by 20.0 s" in found.notes[-1]


def test_a_pool_that_empties_before_it_was_full_is_one_series() -> None:
    found = course([*filling(6, begin=0.9), *filling(7, tokens=2000)], 13)
    assert len(found.source().series) == 13
    assert found.notes == []


def test_two_servers_that_answer_in_turn_are_told_from_one_that_starts_anew() -> None:
    one, other = filling(20, tokens=9000), filling(20, begin=0.5, tokens=100)
    with pytest.raises(FieldError, match="name one server"):
        course([page for pair in zip(one, other, strict=True) for page in pair], 40)


def test_a_page_that_is_away_for_a_moment_is_waited_for() -> None:
    pages = filling(8)
    pages[3] = 503
    found = course(pages, 8)
    assert 6.0 not in found.source().series.t_s
    assert len(found.source().series) == 7
    assert "unanswered at times" in found.notes[0]


def test_a_page_that_stays_away_ends_the_reading() -> None:
    with pytest.raises(TargetUnreachable, match="503"):
        course([*filling(6), 503], 100)


# ---- Nobody there ----


def test_a_port_where_nobody_listens_is_unreachable_at_once() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, and not listening
        url = f"http://127.0.0.1:{held.getsockname()[1]}/metrics"
        with pytest.raises(TargetUnreachable, match="no metrics page") as refused:
            next(Course(Page(url, VirtualClock())).every(1.0))
    assert url in str(refused.value)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (404, "answers 404: expected a metrics page"),
        ("<html></html>", "expected one of metronome_kv_occupancy_ratio"),
        (b"\xff\xfe\x00", "no metrics page"),
        (b"#" * (MOST_BYTES + 1), "more than 4 MiB"),
    ],
)
def test_what_is_no_metrics_page_is_told_with_the_url(page: Served, said: str) -> None:
    with serving([page]) as url, pytest.raises(TargetUnreachable, match=said) as refused:
        Page(url, VirtualClock()).read()
    assert url in str(refused.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("127.0.0.1:8000/metrics", "use an address such as"),
        ("ftp://127.0.0.1/metrics", "use an address such as"),
        ("file:///etc/hostname", "use an address such as"),
        ("http://127.0.0.1:port/metrics", "use an address such as"),
        ("http://[::1/metrics", "use an address such as"),
        ("http://me:secret@127.0.0.1/metrics", "leave out the login"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_its_secrets(url: str, said: str) -> None:
    with pytest.raises(ProfileError, match=said) as refused:
        Page(url, VirtualClock())
    assert "secret" not in str(refused.value)


def test_the_page_of_a_bare_address_is_metrics() -> None:
    with serving(filling(1)) as url:
        assert Page(url.removesuffix("/metrics"), VirtualClock()).read().occupancy == pytest.approx(0.1)
