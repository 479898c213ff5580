"""Ticks that served calls, from traces: what each had to do, and how long it took.

Knows:   run folders, trace.jsonl and its arms; which ticks say something about cost.
Ignores: when they happened, and what is fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError
from ..trace import TickRecord
from .alike import check_alike
from .sources import expand, read_arms, trace_at

_COLUMNS = ("sessions_T", "took_T", "blocks_T", "tokens_in_T", "tokens_out_T", "reserved_T", "run_T")
_SAME = 0.01  # by how much two periods may differ and count as one


@dataclass(frozen=True, slots=True)
class Ticks:
    """All arrays are [T], one place a tick, run after run; every tick served at least one call."""

    sessions_T: NDArray[np.float64]
    took_T: NDArray[np.float64]  # seconds from start to done, above 0
    blocks_T: NDArray[np.float64]  # held by calls when it was over
    tokens_in_T: NDArray[np.float64]
    tokens_out_T: NDArray[np.float64]
    reserved_T: NDArray[np.float64]  # blocks promised to calls, held or not; 0: calls have no bound
    run_T: NDArray[np.float64]  # which run it is of, counted from 0
    period_s: float | None  # of the beat; None where runs differ
    pool: int | None  # blocks of a device; None where runs differ or do not tell
    names: tuple[str, ...]  # of the runs
    untold: tuple[str, ...] = ()  # files of several beside which nothing tells of which set-up they are

    def __len__(self) -> int:
        return len(self.took_T)

    def only(self, kept_T: NDArray[np.bool_] | NDArray[np.int64]) -> Ticks:
        """Some of them, by a mask or by places."""
        return replace(self, **{name: getattr(self, name)[kept_T] for name in _COLUMNS})


def read_ticks(words: Iterable[str]) -> Ticks:
    """The ticks of all runs that `words` name: run folders, trace.jsonl files or patterns, each arm a run.

    FieldError names the file and what was expected, or two runs whose set-ups differ.
    """
    runs: dict[str, list[TickRecord]] = {}
    paths = list(dict.fromkeys(map(trace_at, expand(words))))
    for path in paths:
        arms = read_arms(path)
        if not arms:
            raise FieldError(f"{path} ticks", 0, "expected at least one tick")
        runs |= arms
    untold = check_alike(paths) if len(paths) > 1 else []
    return replace(gather(runs), untold=tuple(map(str, untold)))


def gather(runs: Mapping[str, Sequence[TickRecord]]) -> Ticks:
    """The ticks of named runs that tell what a tick costs: none without calls, and none with a call that
    got no block, since what it brought was dropped. FieldError for a run that has no other."""
    rows = []
    for number, (name, ticks) in enumerate(runs.items()):
        told = [_row(tick, number) for tick in ticks if tick.sessions and not tick.stalled]
        if not told:
            cure = "expected ticks that served calls, all of which got their blocks"
            raise FieldError(f"{name}: sessions", max((tick.sessions for tick in ticks), default=0), cure)
        took = [row[1] for row in told]
        if not min(took) > 0 or not np.isfinite(took).all():
            least = round(min(took), 6)
            raise FieldError(f"{name}: done - start", least, "expected ticks that took more than 0 s")
        rows += told
    columns = np.asarray(rows, np.float64).T
    periods = [period for ticks in runs.values() if (period := _period_s(ticks)) is not None]
    pools = {ticks[-1].kv_total for ticks in runs.values()}
    return Ticks(
        **dict(zip(_COLUMNS, columns, strict=True)),
        period_s=periods[0] if periods and np.ptp(periods) <= _SAME * periods[0] else None,
        pool=(pools.pop() or None) if len(pools) == 1 else None,
        names=tuple(runs),
    )


def _row(tick: TickRecord, run: int) -> tuple[float, ...]:
    load = (tick.kv_leased, tick.tokens_in, tick.tokens_out, tick.kv_reserved)
    return (tick.sessions, tick.done - tick.start, *load, run)


def _period_s(ticks: Sequence[TickRecord]) -> float | None:
    """Beats that were skipped count: a run that is always late still tells its period."""
    beats, dues = np.array([(tick.tick, tick.due) for tick in ticks]).T
    apart = np.diff(beats) > 0
    return float(np.median(np.diff(dues)[apart] / np.diff(beats)[apart])) if apart.any() else None
