from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Model
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from metronome_cli import wire
from metronome_cli.profile import Profile, parse_profile
from metronome_cli.server.exposition import Exposition
from metronome_cli.server.messages import Beat, Ready
from metronome_cli.server.metrics import BUDGET_CUTS, Counts, Metrics, Spread
from metronome_cli.stats import percentiles
from metronome_cli.tail import FEWEST_FOR_P99
from metronome_cli.trace import TickRecord

from .running import PATIENCE_S, Server, call

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
Start = Callable[..., Server]


def profile(**sections: dict[str, object]) -> Profile:
    return parse_profile("tested", {"model": {"kind": "null"}, **sections})


def beat(
    number: int = 0,
    *,
    sessions: int = 1,
    cap: int = 8,
    room: int | None = None,
    late: float = 0.001,
    took: float = 1.0,
    **more: object,
) -> Beat:
    """A tick of two seconds' period with these figures."""
    due = 2.0 * number
    tick = TickRecord(tick=number, due=due, start=due + late, done=due + late + took, sessions=sessions)
    tick.cap, tick.cap_reason = cap, "max_sessions"
    names = ("skipped", "empty", "stalled", "tokens_in", "tokens_out", "kv_leased", "kv_reserved", "kv_total")
    for name in names:
        setattr(tick, name, more.pop(name, 0))
    fields = {"speaking": 0, "mute": 0, "fell_mute": 0, "firsts": [], "lasts": [], **more}
    return Beat(tick, sessions=sessions, room=room, **fields)  # type: ignore[arg-type]


def ready(cap: int = 8, reason: str = "max_sessions", room: int | None = None, sessions: int = 0) -> Ready:
    """What an engine says before its first beat."""
    return Ready(sessions, cap, reason, room, "")


def page(metrics: Metrics, ready: bool = True) -> dict[tuple[str, str], float]:
    """(name, label value) -> value of every sample that Prometheus would read, buckets left out."""
    body, _ = Exposition(metrics, lambda: ready).page("")
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
        if "le" not in sample.labels
    }


def documented() -> dict[str, tuple[str, set[str]]]:
    """Name -> (type, labels) of the table in docs/metrics.md."""
    rows = re.findall(r"^\| `(metronome_\w+)` \| (\w+) \| ([^|]*)\|", DOCS.read_text("utf-8"), re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


# ---- Counting ----


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_values_themselves(values: list[float]) -> None:
    spread = Spread.around(2.0, BUDGET_CUTS)
    for value in values:
        spread.add(value)
    found = spread.percentiles()
    assert found is not None
    cuts = {name: cut for name, cut in found.items() if cut is not None}
    assert ("p99" in cuts) == (len(values) >= FEWEST_FOR_P99)
    true = {**(percentiles(values) or {}), "max": max(values), "n": len(values)}
    assert cuts == pytest.approx({name: true[name] for name in cuts}, rel=1.001e-3, abs=2e-6)
    assert max(cut for name, cut in cuts.items() if name != "n") == cuts["max"]


def test_a_run_of_some_late_ticks_has_no_percentile_above_its_largest_value() -> None:
    # Between 2 and 4 times the frame there is no bound that tells one from the other.
    spread = Spread.around(2.0, BUDGET_CUTS)
    for value in (3.0, 3.1, 4.05, 4.1, 4.36):
        spread.add(value)
    found = spread.percentiles()
    assert found is not None
    assert (found["p50"], found["p90"]) == pytest.approx((4.05, 4.256), rel=1e-3)
    assert (found["p99"], found["max"], found["n"]) == (None, 4.36, 5)


def test_percentiles_take_bounded_room() -> None:
    spread = Spread.around(2.0, BUDGET_CUTS)
    for number in range(20_000):
        spread.add(0.5 + number / 10_000)
    assert len(spread.fine) < 1700  # a thousandth apart, from 0.5 to 2.5


def test_percentiles_near_the_budget_are_told_apart() -> None:
    fits, misses = Spread.around(2.0, BUDGET_CUTS), Spread.around(2.0, BUDGET_CUTS)
    for _ in range(100):
        fits.add(1.95)
        misses.add(2.05)
    fit, miss = fits.percentiles(), misses.percentiles()
    assert fit is not None
    assert miss is not None
    assert fit["p99"] is not None
    assert miss["p50"] is not None
    assert fit["p99"] <= 2.0 < miss["p50"]


def test_nothing_measured_is_no_percentile() -> None:
    assert Spread.around(2.0, BUDGET_CUTS).percentiles() is None


def test_bounds_read_as_they_were_meant() -> None:
    assert Spread.around(0.08, (0.3, 1.1)).bounds == (0.024, 0.088)


def test_a_spread_can_tell_what_came_since_a_copy() -> None:
    spread = Spread((1.0, 2.0))
    spread.add(0.5)
    before = spread.fine.copy()
    assert spread.since(before).percentiles() is None
    spread.add(1.5)
    spread.add(9.0)
    found = spread.since(before).percentiles()
    assert found is not None
    assert (found["p50"], found["max"], found["n"]) == pytest.approx((5.25, 9.0, 2), rel=1e-3)


def test_a_gateway_that_died_stays_counted_and_its_calls_are_the_engines_to_count() -> None:
    metrics = Metrics(profile())
    metrics.opened, metrics.bytes_in = 2, 10
    metrics.refused["max_sessions"] += 1
    metrics.beat(beat(0, sessions=5))
    metrics.elsewhere[2] = Counts(3, {"max_sessions": 4, "draining": 1}, 100, 7, 2, since=1, served=8)
    told = metrics.whole
    assert told == Counts(5, {"max_sessions": 5, "draining": 1}, 110, 7, detached=2, since=1, served=9)
    assert metrics.live == 6
    assert metrics.gateway_lost(2).served == 8
    assert metrics.whole == Counts(5, told.refused, 110, 7, served=9)
    assert (metrics.live, metrics.gateways_lost) == (5, 1)
    metrics.elsewhere[2] = Counts(1)  # another in its place
    metrics.gateway_lost(2)
    metrics.gateway_lost(3)  # one that never said anything
    assert metrics.whole.opened == 6


def test_a_gateway_serves_in_beats_in_which_it_has_calls_and_the_engine_in_those_that_brought_frames() -> (
    None
):
    metrics = Metrics(profile())
    for opened, closed, calls, stalled in ((0, 0, 3, 0), (2, 0, 5, 5), (2, 1, 4, 3), (2, 2, 0, 0)):
        metrics.opened, metrics.closed = opened, closed
        metrics.beat(beat(0, sessions=calls, stalled=stalled))
    assert (metrics.own.served, metrics.served) == (2, 2)


def test_beats_add_up() -> None:
    metrics = Metrics(profile())
    metrics.beat(beat(0, sessions=2, speaking=2, tokens_in=5, tokens_out=12, firsts=[0.4, 0.6], lasts=[1, 1]))
    metrics.beat(
        beat(
            2, sessions=3, speaking=3, skipped=1, empty=2, stalled=1, tokens_out=6, firsts=[0.5], lasts=[1.1]
        )
    )
    found = page(metrics)
    assert found["metronome_ticks_total", ""] == 2
    assert found["metronome_skipped_beats_total", ""] == 1
    assert found["metronome_frames_total", ""] == 5
    assert found["metronome_speaking_frames_total", ""] == 5
    assert found["metronome_empty_frames_total", ""] == 2
    assert found["metronome_stalled_frames_total", ""] == 1
    assert found["metronome_tokens_total", "in"] == 5
    assert found["metronome_tokens_total", "out"] == 18
    assert found["metronome_tick_seconds_count", ""] == 2
    assert found["metronome_tick_seconds_sum", ""] == pytest.approx(2.0)
    assert found["metronome_tick_start_lateness_seconds_sum", ""] == pytest.approx(0.002)
    assert found["metronome_freshness_seconds_count", "first"] == 3
    assert found["metronome_freshness_seconds_sum", "last"] == pytest.approx(3.1)


def test_a_beat_without_calls_does_not_make_busy_ones_look_shorter() -> None:
    metrics = Metrics(profile())
    metrics.beat(beat(0, took=1.5))
    for number in range(1, 100):
        metrics.beat(beat(number, sessions=0, took=0.0))
    assert page(metrics)["metronome_tick_seconds_count", ""] == 1
    assert page(metrics)["metronome_ticks_total", ""] == 100
    assert metrics.summary()["tick_s"]["p50"] > 1.0


def test_a_tick_so_long_that_its_only_caller_hung_up_is_counted_as_long() -> None:
    metrics = Metrics(profile())
    metrics.beat(beat(0, sessions=0, took=360.0))
    seen = page(metrics)
    assert (seen["metronome_tick_seconds_count", ""], seen["metronome_tick_seconds_sum", ""]) == (1, 360.0)


def test_places_taken_and_given_back_between_two_beats_count_at_once() -> None:
    metrics = Metrics(profile())
    metrics.engine_ready(ready())
    assert (metrics.live, metrics.free) == (0, 8)
    metrics.opened += 3
    assert (metrics.live, metrics.free) == (3, 5)
    metrics.beat(beat(0, sessions=3, room=2))  # the pool promises less than the cap allows
    assert (metrics.live, metrics.free) == (3, 2)
    metrics.opened += 4
    assert (metrics.live, metrics.free) == (7, 0)
    metrics.closed += 7
    assert (metrics.live, metrics.free) == (0, 5)


@pytest.mark.parametrize(
    ("cap", "live", "since", "room", "free"),
    [
        (8, 3, 0, None, 5),
        (8, 3, 0, 2, 2),
        (8, 3, 0, 9, 5),
        (0, 0, 0, None, 0),
        (0, 1, -1, None, 0),  # one hung up since, and the cap lets nobody in all the same
        (2, 5, 0, None, 0),  # a cap that fell below those who are in
        (2, 5, -4, None, 1),
        (4, 4, -1, 0, 1),  # who hangs up leaves both a place and its blocks
        (8, 3, 2, 2, 0),
    ],
)
def test_free_is_the_cap_less_the_live_calls_and_no_more_than_the_pool_has_room_for(
    cap: int, live: int, since: int, room: int | None, free: int
) -> None:
    metrics = Metrics(profile())
    metrics.opened = live
    metrics.beat(beat(0, sessions=live, cap=cap, room=room))
    metrics.opened, metrics.closed = live + max(0, since), max(0, -since)
    assert (metrics.live, metrics.cap[0], metrics.free) == (live + since, cap, free)


def test_before_the_first_beat_the_cap_is_that_of_the_engine(start: Start) -> None:
    """A controller that has measured nothing lets one call in."""
    server = start(frame_s=30.0, max_sessions=3, options=["--admit", "forecast"])
    found = json.loads(fetch(server, "/capacity")[0])
    assert (found["free"], found["cap"], found["cap_reason"]) == (1, 1, "ramp")


def test_before_the_engine_has_said_anything_nobody_is_let_in() -> None:
    metrics = Metrics(profile())
    assert (metrics.free, metrics.cap) == (0, (0, "starting"))


def test_a_new_engine_begins_empty_and_counters_go_on() -> None:
    metrics = Metrics(profile())
    metrics.opened += 2
    metrics.beat(beat(0, sessions=2, room=1, mute=1, fell_mute=1, kv_leased=40))
    metrics.engine_ready(ready())
    metrics.engine_restarts += 1
    found = page(metrics)
    assert (metrics.live, metrics.free) == (0, 8)
    assert found["metronome_mute_sessions", ""] == found["metronome_kv_leased_blocks", ""] == 0
    assert found["metronome_ticks_total", ""] == found["metronome_fell_mute_total", ""] == 1
    assert found["metronome_engine_restarts_total", ""] == 1


def test_the_cap_is_told_with_what_binds_it() -> None:
    metrics = Metrics(profile())
    metrics.engine_ready(ready())
    assert page(metrics)["metronome_admission_cap", "max_sessions"] == 8
    told = beat(sessions=5)
    told.tick.cap, told.tick.cap_reason = 6, "latency"
    metrics.beat(told)
    found = page(metrics)
    assert found["metronome_admission_cap", "latency"] == 6
    assert ("metronome_admission_cap", "max_sessions") not in found


def test_a_server_that_takes_no_calls_offers_none() -> None:
    found = page(Metrics(profile()), ready=False)
    assert found["metronome_ready", ""] == found["metronome_free_calls", ""] == 0
    assert found["metronome_max_sessions", ""] == 8


def test_the_pool_and_the_callers_are_told_as_they_stand() -> None:
    metrics = Metrics(profile(pool={"blocks": "free"}))
    metrics.opened += 5
    metrics.detached = 2
    metrics.refused.update({"max_sessions": 4, "pool_full": 1})
    metrics.bytes_in, metrics.bytes_out = 1000, 10
    metrics.beat(beat(sessions=5, kv_leased=20, kv_reserved=70, kv_total=80, mute=1, fell_mute=1))
    found = page(metrics)
    assert found["metronome_kv_leased_blocks", ""] == 20
    assert found["metronome_kv_reserved_blocks", ""] == 70
    assert found["metronome_kv_pool_blocks", ""] == 80
    assert found["metronome_kv_occupancy_ratio", ""] == 0.25
    assert found["metronome_sessions", "connected"] == 3
    assert found["metronome_sessions", "detached"] == 2
    assert found["metronome_mute_sessions", ""] == found["metronome_fell_mute_total", ""] == 1
    assert found["metronome_calls_total", ""] == 5
    assert found["metronome_refusals_total", "max_sessions"] == 4
    assert found["metronome_refusals_total", "pool_full"] == 1
    assert found["metronome_event_bytes_total", "in"] == 1000


# ---- A real server ----


def fetch(server: Server, path: str, accept: str = "*/*") -> tuple[str, str]:
    """(body, content type)."""
    request = urllib.request.Request(server.url + path, headers={"Accept": accept})  # noqa: S310
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        return answer.read().decode(), answer.headers["Content-Type"]


def samples(server: Server) -> dict[tuple[str, str], float]:
    return {
        (sample.name, "".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(fetch(server, "/metrics")[0])
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_the_page_is_prometheus_text_and_exactly_what_the_docs_list(server: Server) -> None:
    body, content_type = fetch(server, "/metrics")
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", body, re.MULTILINE))
    assert {name: kind for name, (kind, _) in documented().items()} == types


def test_labels_are_those_that_the_docs_list(start: Start) -> None:
    server = start(max_sessions=1)

    async def refuse_one() -> None:
        async with call(server):
            with pytest.raises(Exception, match="503"):
                async with call(server):
                    pass

    asyncio.run(refuse_one())
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(fetch(server, "/metrics")[0]):
        for sample in family.samples:
            name = (
                re.sub("_(bucket|sum|count)$", "", sample.name) if family.type == "histogram" else sample.name
            )
            found.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    assert found == {name: labels for name, (_, labels) in documented().items()}
    assert samples(server)["metronome_refusals_total", "max_sessions"] == 1


def test_openmetrics_is_given_to_who_asks_for_it(server: Server) -> None:
    body, content_type = fetch(server, "/metrics", "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {
        family.name
        for family in openmetrics.text_string_to_metric_families(body)  # type: ignore[no-untyped-call]
    }
    assert {"metronome_build", "metronome_ticks", "metronome_tick_seconds"} <= families


def test_a_call_leaves_its_traces_in_every_count(start: Start) -> None:
    server = start(frame_s=0.05, tau=3)

    async def speak() -> None:
        async with call(server) as caller:
            await caller.ticking()
            await caller.say(wire.AudioAppend(audio=bytes(32_000)))
            for _ in range(6):  # with the sixth, five are counted: a tick's own count comes after its events
                await caller.until(wire.TickEvent)
            during = samples(server)
            assert during["metronome_sessions", "connected"] == 1
            assert during["metronome_free_calls", ""] == 7
            assert during["metronome_kv_reserved_blocks", ""] > 0
            assert during["metronome_kv_occupancy_ratio", ""] > 0

    asyncio.run(speak())
    found = samples(server)
    assert found["metronome_calls_total", ""] == 1
    assert found["metronome_frames_total", ""] >= 5
    assert found["metronome_tokens_total", "out"] >= 15
    assert found["metronome_tokens_total", "in"] >= 3
    assert found["metronome_freshness_seconds_count", "first"] >= 5
    assert (
        found["metronome_freshness_seconds_sum", "last"] >= found["metronome_freshness_seconds_sum", "first"]
    )
    assert found["metronome_event_bytes_total", "in"] > 32_000
    assert found["metronome_event_bytes_total", "out"] > 500


def test_capacity_follows_calls_at_once_though_the_beat_is_slow(start: Start) -> None:
    server = start(frame_s=5.0, max_sessions=3)

    async def scene() -> list[tuple[int, int]]:
        async with call(server), call(server):
            return [capacity(server)]

    assert capacity(server) == (3, 0)
    assert asyncio.run(scene()) == [(1, 2)]
    assert json.loads(fetch(server, "/capacity")[0])["max_sessions"] == 3


def test_capacity_counts_what_the_pool_can_promise(start: Start) -> None:
    """A session of this profile can need 22 blocks: 50 are enough for two."""
    server = start(blocks=50, frame_s=0.05)

    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking()
            await caller.until(wire.TickEvent)
            await caller.until(wire.TickEvent)
            assert capacity(server) == (1, 1)
            kv = json.loads(fetch(server, "/capacity")[0])["kv"]
            assert (kv["reserved"], kv["total"], kv["block_size"]) == (22, 50, 4)

    asyncio.run(scene())


def capacity(server: Server) -> tuple[int, int]:
    """(free, live)."""
    found = json.loads(fetch(server, "/capacity")[0])
    assert found["state"] == "ok"
    return found["free"], found["live"]


def test_the_profile_is_listed_as_a_model(server: Server) -> None:
    found = json.loads(fetch(server, "/v1/models")[0])
    assert found["object"] == "list"
    (model,) = (Model.model_validate(entry) for entry in found["data"])
    assert (model.id, model.object, model.owned_by) == ("null", "model", "metronome")
    assert model.created > 1_700_000_000


def test_a_session_that_is_spoken_to_and_says_nothing_is_counted_and_logged_once(start: Start) -> None:
    """A pool too small for what comes in: the session stalls for ever."""
    server = start(policy="unbounded", blocks=4, mode="turn", frame_s=0.05, more="mute_s = 0.4")
    hum = (8000 * np.sin(np.arange(1600))).astype("<i2").tobytes()

    async def scene() -> None:
        async with call(server) as caller:
            await caller.updated(
                audio={
                    "input": {
                        "format": {"type": "audio/pcm", "rate": 16_000},
                        "turn_detection": {"type": "full_duplex"},
                    }
                },
                metronome={"ticks": True},
            )
            while not samples(server)["metronome_fell_mute_total", ""]:
                await caller.say(wire.AudioAppend(audio=hum))
                await caller.say(wire.AudioCommit())
                await caller.until(wire.TickEvent)
            for _ in range(5):
                await caller.until(wire.TickEvent)
            assert samples(server)["metronome_mute_sessions", ""] == 1

    asyncio.run(scene())
    code, said = server.stop()
    assert (code, said.count(" is mute: ")) == (0, 1), said
