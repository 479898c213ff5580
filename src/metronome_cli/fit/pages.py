"""What a server's Prometheus page says of its KV pool.

Knows:   the names of the pool's occupancy, sessions and blocks on the pages of metronome, vLLM and SGLang.
Ignores: how a page is fetched (live.py), and what is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ..errors import FieldError, TargetUnreachable

ALL = "all"  # --engine: every pool on the page, as if they were one
_SCARCE = 0.95  # below this share a request that waits does so for a place in the batch, not for memory
_STARTED = "process_start_time_seconds"
_RESTARTS = (
    "metronome_engine_restarts_total"  # the gateway, and so its totals, outlive the engine and its pool
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of server calls things. Of several names for occupancy the first on the page counts.

    All are shares 0..1, vLLM's too, though their names end in perc.
    """

    name: str
    occupancy: tuple[str, ...]
    sessions: str
    waiting: str = ""
    pool: str = ""
    promised: str = ""


KINDS = (
    Kind(
        "metronome",
        ("metronome_kv_occupancy_ratio",),
        "metronome_sessions",
        pool="metronome_kv_pool_blocks",
        promised="metronome_kv_reserved_blocks",
    ),
    Kind(
        "vllm",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
    ),
    Kind("sglang", ("sglang:token_usage",), "sglang:num_running_reqs", "sglang:num_queue_reqs"),
)
_PREFIXES = ("metronome_", "vllm:", "sglang:", _STARTED)


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool on a page, told apart from others by its labels."""

    kind: Kind
    labels: dict[str, str]
    occupancy: float

    def __str__(self) -> str:
        labels = ",".join(f'{name}="{value}"' for name, value in sorted(self.labels.items()))
        return f"{self.kind.name}{{{labels}}}"

    def is_called(self, word: str) -> bool:
        """Whether --engine `word` means this one: a kind, a label's value, or label=value."""
        values = {*self.labels.values(), *(f"{name}={value}" for name, value in self.labels.items())}
        return word in values | {self.kind.name}


@dataclass(frozen=True, slots=True)
class Reading:
    """A page at one moment. Totals, by name and labels, only grow while a server lives."""

    occupancy: float
    sessions: float | None
    stalled: float | None  # requests that wait for memory
    pool: int | None
    promised: float | None  # share of the pool that calls with a bound may hold
    totals: dict[tuple[str, frozenset[tuple[str, str]]], float]
    beat: tuple[float, float, float] | None = None  # seconds of all beats with sessions, their number, period


def reading(page: str, url: str, engine: str = "") -> Reading:
    """What the text of a page says; `url` is for messages only. Errors as in `Page.read`."""
    samples = list(_samples(page, url))
    found = _pools(samples)
    if not found:
        names = ", ".join(name for kind in KINDS for name in kind.occupancy)
        raise TargetUnreachable(f"{url} is no metrics page that is known: expected one of {names}")
    chosen = _chosen(found, engine, url)
    for pool in chosen:
        _check_share(pool, url)
    kind = chosen[0].kind
    occupancy = sum(pool.occupancy for pool in chosen) / len(chosen)
    waiting = _total(samples, kind.waiting, chosen)
    blocks, promised = (_total(samples, name, chosen) for name in (kind.pool, kind.promised))
    return Reading(
        occupancy,
        _total(samples, kind.sessions, chosen),
        waiting if waiting is None or occupancy >= _SCARCE else 0.0,
        None if blocks is None else int(blocks),
        promised / blocks if blocks and promised is not None else None,
        {(s.name, frozenset(s.labels.items())): s.value for s in samples if _only_grows(s.name)},
        _beat(samples, chosen),
    )


def went_back(before: Reading, after: Reading) -> bool:
    """Whether another life of the server, or of its engine, is talking now."""
    for key, then in before.totals.items():
        now = after.totals.get(key, then)
        if now < then or (now > then and key[0] in (_RESTARTS, _STARTED)):
            return True
    return False


def _samples(page: str, url: str) -> Iterator[Sample]:
    """What the parser makes of the lines of servers that are known. Buckets are most of a page, and the
    parser goes through it character by character: they are left out."""
    lines = [line for line in page.splitlines() if line.startswith(_PREFIXES) and "_bucket{" not in line]
    for line in lines:
        try:
            for family in text_string_to_metric_families(line):
                yield from family.samples
        except (ValueError, IndexError):
            raise TargetUnreachable(f"{url}: {line[:60]!r} is no line of a metrics page") from None


def _pools(samples: Sequence[Sample]) -> list[Pool]:
    found = []
    for kind in KINDS:
        names = [name for name in kind.occupancy if any(sample.name == name for sample in samples)]
        found += [Pool(kind, s.labels, s.value) for s in samples if names and s.name == names[0]]
    return found


def _chosen(found: Sequence[Pool], engine: str, url: str) -> Sequence[Pool]:
    """The pools that --engine means; without it, there must be one."""
    if engine == ALL and len({pool.kind.name for pool in found}) == 1:
        return found
    meant = [pool for pool in found if pool.is_called(engine)] if engine else found
    if len(meant) == 1:
        return meant
    shown = "; ".join(map(str, found))
    cure = (
        f"{url} tells of {len(found)} pools: {shown}. Name one by a label's value, or take {ALL} of one kind"
    )
    raise FieldError("engine", engine, cure)


def _check_share(pool: Pool, url: str) -> None:
    if not 0.0 <= pool.occupancy <= 1.0:
        raise FieldError(
            f"{url}: occupancy of {pool}", pool.occupancy, "expected a share, 0 to 1, not percent"
        )


def _total(samples: Sequence[Sample], name: str, chosen: Sequence[Pool]) -> float | None:
    """The sum over the chosen pools; None when the page does not tell."""
    values = [
        sample.value
        for sample in samples
        if name
        and sample.name == name
        and any(pool.labels.items() <= sample.labels.items() for pool in chosen)
    ]
    total = sum(values)
    return total if values and math.isfinite(total) else None


def _beat(samples: Sequence[Sample], chosen: Sequence[Pool]) -> tuple[float, float, float] | None:
    names = ("metronome_tick_seconds_sum", "metronome_tick_seconds_count", "metronome_frame_seconds")
    spent, count, period = (_total(samples, name, chosen) for name in names)
    return None if spent is None or count is None or not period else (spent, count, period)


def _only_grows(name: str) -> bool:
    return name.endswith("_total") or name == _STARTED
