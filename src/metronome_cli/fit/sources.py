"""Series from files: our own traces, and CSV.

Knows:   run folders, trace.jsonl and its arms, CSV with t_s and kv_occupancy, patterns of file names.
Ignores: live servers (pages.py), and what is fitted to a series.
"""

from __future__ import annotations

import csv
import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import FieldError
from ..trace import TickRecord, read_header, read_records
from .limits import Beats
from .series import Series

TRACE = "trace.jsonl"
_TIME, _OCCUPANCY, _SESSIONS = "t_s", "kv_occupancy", "sessions"


@dataclass(frozen=True, slots=True)
class Source:
    """A series, how long its beats took where that is known, and what its readers should know."""

    series: Series
    beats: Beats | None = None
    notes: tuple[str, ...] = ()


def expand(words: Iterable[str]) -> list[Path]:
    """The files and folders that `words` name, each once and in order; a word may be a pattern such as
    "runs/*/trace.jsonl". FieldError for one that names nothing."""
    found: list[Path] = []
    for word in words:
        named = Path(word).exists()
        paths = [Path(name) for name in ([word] if named else sorted(glob.glob(word, recursive=True)))]
        if not named:  # "runs/*-load-*" also fits runs that have none, such as a fit's own of a load
            paths = [path for path in paths if not path.is_dir() or (path / TRACE).exists()]
        if not paths:
            cure = f"no file, and no run folder with a {TRACE}, has this name or fits it as a pattern"
            raise FieldError("trace", word, cure)
        found += paths
    return list(dict.fromkeys(found))


def read_trace(path: Path) -> list[Source]:
    """The sources in a run folder, a trace.jsonl (one source an arm) or a CSV file.

    Seconds count from an arm's first due time, or are a CSV's own. FieldError names file, row and what was
    expected.
    """
    if path.is_dir():
        if not (path / TRACE).exists():
            raise FieldError("trace", str(path), f"give a run folder that has a {TRACE}")
        path /= TRACE
    try:
        with path.open("rb") as file:
            ours = file.read(1) == b"{"
    except OSError as error:
        raise FieldError("trace", str(path), f"give a file that can be read ({error})") from None
    return _arms(path) if ours else [_table(path)]


def read_arms(path: Path) -> dict[str, list[TickRecord]]:
    """The ticks of each arm of a trace.jsonl, by file and arm; empty when it has none. FieldError when it is
    no such file."""
    if (kind := read_header(path).kind) != "trace":
        raise FieldError(f"{path} kind", kind, f"give the {TRACE} beside it: these are frames of sessions")
    arms: dict[str, list[TickRecord]] = {}
    for tick in read_records(path, TickRecord):
        arms.setdefault(f"{path} ({tick.arm})" if tick.arm else str(path), []).append(tick)
    return arms


def _arms(path: Path) -> list[Source]:
    # A server that tells no pool has nothing to be fitted.
    arms = {name: [tick for tick in ticks if tick.kv_total > 0] for name, ticks in read_arms(path).items()}
    found = [_arm(name, ticks) for name, ticks in arms.items() if ticks]
    if not found:
        raise FieldError(f"{path} kv_total", 0, "expected ticks that tell the blocks of a pool")
    return found


def _arm(name: str, ticks: Sequence[TickRecord]) -> Source:
    series = Series.checked(
        [tick.done - ticks[0].due for tick in ticks],
        [tick.kv_leased / tick.kv_total for tick in ticks],
        [float(tick.sessions) for tick in ticks],
        pool=ticks[-1].kv_total,
        stalled=[float(tick.stalled) for tick in ticks],
        name=name,
    )
    return Source(series, _beats(ticks))


def _beats(ticks: Sequence[TickRecord]) -> Beats | None:
    """None where nothing ever ran, or dues stand still."""
    busy = [tick for tick in ticks if tick.sessions]
    period = float(np.median(np.diff([tick.due for tick in ticks])))
    if not busy or not period > 0:
        return None
    return Beats([float(tick.sessions) for tick in busy], [tick.done - tick.due for tick in busy], period)


def _table(path: Path) -> Source:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="")
            names = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = names
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FieldError("trace", str(path), f"give a {TRACE} or a CSV file ({error})") from None
    if not {_TIME, _OCCUPANCY} <= set(names):
        expected = f"expected the columns {_TIME}, {_OCCUPANCY} and, where known, {_SESSIONS}"
        raise FieldError(f"{path} columns", ",".join(names), expected)
    sessions = _column(path, rows, _SESSIONS) if _SESSIONS in names else None
    times, occupancy = _column(path, rows, _TIME), _column(path, rows, _OCCUPANCY)
    return Source(Series.checked(times, occupancy, sessions, name=str(path)))


def _column(path: Path, rows: Sequence[dict[str, str]], name: str) -> list[float]:
    values = []
    for number, row in enumerate(rows, 1):
        try:
            values.append(float(row[name]))
        except ValueError:
            raise FieldError(f"{path}: {name}, row {number}", row[name], "expected a number") from None
    return values
