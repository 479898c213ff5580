"""What the metrics pages of three kinds of server say of their pools."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import FieldError, TargetUnreachable
from metronome_cli.fit.pages import reading, went_back
from metronome_cli.profile import parse_profile
from metronome_cli.server.exposition import Exposition
from metronome_cli.server.messages import Beat
from metronome_cli.server.metrics import Metrics
from metronome_cli.trace import TickRecord
from tests.pages import recorded

URL = "http://127.0.0.1:1/metrics"


def ours(beats: int = 1, restarts: int = 0) -> str:
    """The page of our own server after beats of a quarter of a second with two sessions, 20 of 80 blocks."""
    profile = parse_profile("tested", {"model": {"kind": "null"}, "pool": {"blocks": 80}})
    metrics = Metrics(profile)
    metrics.engine_restarts = restarts
    for number in range(beats):
        due = 2.0 * number
        tick = TickRecord(tick=number, due=due, start=due, done=due + 0.25, sessions=2, kv_total=80)
        tick.kv_leased, tick.kv_reserved = 20, 40
        metrics.beat(Beat(tick, sessions=2, room=None, speaking=0, mute=0, fell_mute=0, firsts=[], lasts=[]))
    return Exposition(metrics, lambda: True).page("")[0].decode()


def test_our_own_page_tells_pool_sessions_and_beats() -> None:
    found = reading(ours(beats=4), URL)
    assert (found.occupancy, found.sessions, found.stalled, found.pool) == (0.25, 2.0, None, 80)
    assert found.beat == (1.0, 4.0, 2.0)
    assert found.promised == 0.5


@pytest.mark.parametrize(
    ("name", "occupancy", "running"), [("vllm", 0.25, 12), ("vllm_old", 0.125, 7), ("sglang", 0.28, 9)]
)
def test_the_pages_of_vllm_and_sglang_tell_pool_and_requests(
    name: str, occupancy: float, running: float
) -> None:
    found = reading(recorded(name), URL)
    assert (found.occupancy, found.sessions, found.stalled) == (occupancy, running, 0)
    assert (found.pool, found.promised, found.beat) == (None, None, None)


@pytest.mark.parametrize(
    ("page", "stalled"),
    [
        (recorded("vllm", kv_cache_usage_perc=0.97), 3),
        (recorded("sglang", token_usage=0.96), 2),
        (recorded("vllm", kv_cache_usage_perc=0.6), 0),
    ],
)
def test_who_waits_while_memory_is_scarce_is_stalled(page: str, stalled: float) -> None:
    assert reading(page, URL).stalled == stalled


def test_the_newer_name_counts_where_a_page_has_both() -> None:
    assert reading(recorded("vllm", gpu_cache_usage_perc=0.75), URL).occupancy == 0.25


# ---- Several pools ----


@pytest.mark.parametrize("word", ["1", "engine=1"])
def test_an_engine_is_chosen_by_its_label(word: str) -> None:
    found = reading(recorded("vllm_two_engines"), URL, word)
    assert (found.occupancy, found.sessions) == (0.75, 4)


def test_all_engines_are_a_mean_and_a_sum() -> None:
    found = reading(recorded("vllm_two_engines"), URL, "all")
    assert (found.occupancy, found.sessions) == (0.5, 16)


@pytest.mark.parametrize("word", ["", "2", "some/model", "vllm"])
def test_two_engines_are_not_mixed_unasked_and_both_are_named(word: str) -> None:
    with pytest.raises(FieldError, match="2 pools") as refused:
        reading(recorded("vllm_two_engines"), URL, word)
    assert 'engine="0"' in str(refused.value)
    assert 'engine="1"' in str(refused.value)


def test_two_kinds_of_server_on_a_page_are_told_apart_by_name() -> None:
    both = recorded("vllm") + recorded("sglang")
    for word in ("", "all"):
        with pytest.raises(FieldError, match="2 pools"):
            reading(both, URL, word)
    assert reading(both, URL, "sglang").occupancy == 0.28


def test_the_engine_that_a_single_pool_does_not_have_is_refused() -> None:
    with pytest.raises(FieldError, match="engine = '1'"):
        reading(recorded("vllm"), URL, "1")


# ---- Pages that say nothing ----


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<!doctype html><html><body>metronome_kv_occupancy_ratio</body></html>",
        '{"metronome_kv_occupancy_ratio": 0.5}',
        "node_load1 0.5\n",
        "# TYPE vllm:kv_cache_usage_perc gauge\n",
        "vllm:kv_cache_usage_perc\n",
        'vllm:kv_cache_usage_perc{engine="0} 0.5\n',
        "vllm:kv_cache_usage_perc half\n",
    ],
)
def test_a_page_without_a_known_pool_is_no_metrics_page(page: str) -> None:
    with pytest.raises(TargetUnreachable, match="metrics page") as refused:
        reading(page, URL)
    assert URL in str(refused.value)


@given(st.text(), st.sampled_from(["vllm:kv_cache_usage_perc", "metronome_", "sglang:token_usage{", ""]))
def test_rubbish_ends_in_a_message(text: str, begin: str) -> None:
    try:
        found = reading(begin + text, URL)
    except (FieldError, TargetUnreachable):
        return
    assert 0.0 <= found.occupancy <= 1.0


@pytest.mark.parametrize("value", [25.0, -0.1, math.nan, math.inf])
def test_an_occupancy_that_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(FieldError, match="expected a share, 0 to 1, not percent") as refused:
        reading(recorded("sglang", token_usage=value), URL)
    assert URL in str(refused.value)


def test_requests_that_are_no_number_are_not_known() -> None:
    assert reading(recorded("vllm", num_requests_running=math.nan), URL).sessions is None


# ---- Restarts ----


def test_a_total_that_goes_back_is_another_life_and_a_gauge_that_does_is_not() -> None:
    before = reading(recorded("vllm"), URL)
    assert not went_back(before, reading(recorded("vllm", kv_cache_usage_perc=0.1), URL))
    assert not went_back(before, reading(recorded("vllm", generation_tokens_total=50_000), URL))
    assert went_back(before, reading(recorded("vllm", generation_tokens_total=10), URL))
    assert went_back(before, reading(recorded("vllm", process_start_time_seconds=1.77e9), URL))


def test_a_new_engine_behind_our_gateway_is_another_life() -> None:
    assert went_back(reading(ours(), URL), reading(ours(beats=2, restarts=1), URL))
    assert not went_back(reading(ours(), URL), reading(ours(beats=2), URL))


def test_a_total_that_appears_later_or_is_gone_says_nothing() -> None:
    whole = recorded("vllm")
    part = "".join(line for line in whole.splitlines(keepends=True) if "generation" not in line)
    assert not went_back(reading(whole, URL), reading(part, URL))
    assert not went_back(reading(part, URL), reading(whole, URL))
