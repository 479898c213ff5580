"""The counts of a server under Prometheus' names: what /metrics says.

Knows:   names, units, labels and help of every metric; docs/metrics.md is the same list for readers.
Ignores: how anything is counted, HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from .. import __version__
from .metrics import Metrics, Spread


class Exposition(Collector):
    """The page. `is_ready` says whether new calls are taken."""

    def __init__(self, metrics: Metrics, is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._is_ready = is_ready
        self._registry = CollectorRegistry(auto_describe=True)
        self._registry.register(self)

    def page(self, accept: str) -> tuple[bytes, str]:
        """(body, content type): OpenMetrics for an Accept header that asks for it, else Prometheus' text."""
        encode, content_type = choose_encoder(accept)
        return encode(self._registry), content_type

    def collect(self) -> Iterator[Metric]:
        """Every metric as it stands."""
        yield from self._server()
        yield from self._calls()
        yield from self._frames()
        yield from self._pool()

    def _server(self) -> Iterator[Metric]:
        metrics, profile = self._metrics, self._metrics.profile
        restarts, lost = metrics.engine_restarts, metrics.gateways_lost
        build = {"version": __version__, "profile": profile.name}
        yield InfoMetricFamily("metronome_build", "What runs here.", value=build)
        yield _gauge("ready", "1 while new calls are taken.", self._is_ready())
        yield _gauge("frame_seconds", "The period of the beat: what a tick may take.", profile.beat.frame_s)
        yield _count(
            "engine_busy", "Times that callers were told of an engine without a beat.", metrics.engine_busy
        )
        yield _count(
            "engine_hangs", "Engine processes that were ended for saying nothing.", metrics.engine_hangs
        )
        yield _count("engine_restarts", "Times that the engine process was started again.", restarts)
        yield _count("gateways_lost", "Gateway processes that died, their calls with them.", lost)

    def _calls(self) -> Iterator[Metric]:
        metrics, most = self._metrics, self._metrics.profile.admission.max_sessions
        whole = metrics.whole
        mute = metrics.latest.mute if metrics.latest else 0
        sessions = {"connected": max(0, metrics.live - whole.detached), "detached": whole.detached}
        traffic = {"in": whole.bytes_in, "out": whole.bytes_out}
        calls, reason = metrics.cap
        cap = {reason: calls}
        yield _gauges("sessions", "Sessions of the engine, by their caller's connection.", "state", sessions)
        yield _gauge("max_sessions", "Most sessions at a time.", most)
        yield _gauges("admission_cap", "Most sessions at this moment, by what binds it.", "reason", cap)
        yield _gauge("free_calls", "Calls that would be let in now.", metrics.free if self._is_ready() else 0)
        yield _gauge("mute_sessions", "Sessions that are spoken to and say nothing.", mute)
        yield _count("fell_mute", "Sessions that were ever mute.", metrics.fell_mute)
        yield _count("failed_sessions", "Sessions that could not go on.", metrics.failed)
        yield _count("calls", "Calls let in.", whole.opened)
        yield _counts("refusals", "Calls turned away.", "reason", whole.refused)
        yield _counts("event_bytes", "Bytes of events from and to callers.", "direction", traffic)

    def _frames(self) -> Iterator[Metric]:
        metrics = self._metrics
        tokens = {"in": metrics.tokens_in, "out": metrics.tokens_out}
        fresh = {"first": metrics.first_s, "last": metrics.last_s}
        yield _count("ticks", "Beats that were kept.", metrics.ticks)
        yield _count("skipped_beats", "Beats left out because a tick took too long.", metrics.skipped)
        yield _spread(
            "tick_seconds", "From the start of a tick with sessions to its last token.", metrics.tick_s
        )
        yield _spread("tick_start_lateness_seconds", "From a tick's due time to its start.", metrics.late_s)
        yield _count("frames", "Frames due: one per session and tick.", metrics.frames)
        yield _count("speaking_frames", "Frames in which a session was to speak.", metrics.speaking)
        yield _count(
            "empty_frames", "Frames without a fresh token though their session was to speak.", metrics.empty
        )
        yield _count("stalled_frames", "Frames for which no block was free.", metrics.stalled)
        yield _spreads(
            "freshness_seconds", "From a frame's due time to its first and last token.", "token", fresh
        )
        yield _counts("tokens", "Tokens appended and decoded.", "direction", tokens)

    def _pool(self) -> Iterator[Metric]:
        tick = self._metrics.latest.tick if self._metrics.latest else None
        total = self._metrics.pool
        leased, reserved = (tick.kv_leased, tick.kv_reserved) if tick else (0, 0)
        yield _gauge("kv_leased_blocks", "Blocks that sessions hold.", leased)
        yield _gauge("kv_reserved_blocks", "Blocks promised to bounded sessions, held or not.", reserved)
        yield _gauge("kv_pool_blocks", "Blocks in the pool.", total)
        yield _gauge("kv_occupancy_ratio", "Leased blocks by all blocks, 0 to 1.", leased / max(1, total))


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"metronome_{name}", about, value=value)


def _gauges(name: str, about: str, label: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"metronome_{name}", about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _count(name: str, about: str, value: float) -> Metric:
    return CounterMetricFamily(f"metronome_{name}", about, value=value)


def _counts(name: str, about: str, label: str, values: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"metronome_{name}", about, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _spread(name: str, about: str, spread: Spread) -> Metric:
    return HistogramMetricFamily(f"metronome_{name}", about, buckets=_buckets(spread), sum_value=spread.sum)


def _spreads(name: str, about: str, label: str, spreads: dict[str, Spread]) -> Metric:
    family = HistogramMetricFamily(f"metronome_{name}", about, labels=[label])
    for key, spread in spreads.items():
        family.add_metric([key], _buckets(spread), spread.sum)
    return family


def _buckets(spread: Spread) -> list[tuple[str, float]]:
    bounds = [*map(repr, spread.bounds), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(spread.counts), strict=True)]
