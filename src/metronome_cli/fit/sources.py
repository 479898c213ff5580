"""Series from files: our own traces, and CSV.

Knows:   run folders, trace.jsonl and its arms, CSV with t_s and kv_occupancy, patterns of file names.
Ignores: live servers (pages.py), and what is fitted to a series.
"""

from __future__ import annotations

import csv
import glob
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import FieldError
from ..files import read_whole
from ..trace import TickRecord, header_in, records_in
from .limits import Beats
from .series import Series

TRACE = "trace.jsonl"
_FRAMES, _SUFFIXES = "frames.jsonl", (".csv", ".jsonl")  # beside it, and of what may be another one
_TIME, _OCCUPANCY, _SESSIONS = "t_s", "kv_occupancy", "sessions"
_READ = (_TIME, _OCCUPANCY, _SESSIONS)


@dataclass(frozen=True, slots=True)
class Source:
    """A series, how long its beats took where that is known, and what its readers should know."""

    series: Series
    beats: Beats | None = None
    notes: tuple[str, ...] = ()
    is_over: bool = False  # nothing comes after its last row
    hung_up_s: float | None = None  # when calls left that were live before, where what came then is left out


def expand(words: Iterable[str]) -> list[Path]:
    """The files and folders that `words` name, each once and in order; a word may be a pattern such as
    "runs/*/trace.jsonl". FieldError for one that names nothing."""
    found: list[Path] = []
    for word in words:
        named = Path(word).exists()
        paths = [Path(name) for name in ([word] if named else sorted(glob.glob(word, recursive=True)))]
        if not named:
            paths = _traces_of(paths)
        if not paths:
            cure = f"no file, and no run folder with a {TRACE}, has this name or fits it as a pattern"
            raise FieldError("trace", word, cure)
        found += paths
    return list(dict.fromkeys(found))


def _traces_of(paths: Sequence[Path]) -> list[Path]:
    """What a pattern means of all that it fits. "runs/*-load-*" also fits runs without a trace, such as a
    fit's own of a load, and "runs/*-find-n-*/*" the report and the picture beside the runs: where it fits
    runs, only they and what may be a trace are meant."""
    found = [path for path in paths if not path.is_dir() or (path / TRACE).exists()]
    if not any(path.is_dir() or path.name == TRACE for path in found):
        return found
    return [path for path in found if path.is_dir() or (path.suffix in _SUFFIXES and path.name != _FRAMES)]


def name_of(words: Sequence[str]) -> str:
    """What stands for all that `words` name in the name of a run folder.

    A run's name is written with "_": a fit of a load must not look like a load to `runs/*-load-*`.
    """
    path, *others = expand(words)
    if others:
        return "several"
    if path.is_dir():
        return path.resolve().name.replace("-", "_")
    return path.resolve().parent.name.replace("-", "_") if path.name == TRACE else path.stem


def read_trace(path: Path) -> list[Source]:
    """The sources in a run folder, a trace.jsonl (one source an arm) or a CSV file.

    Seconds count from an arm's first due time, or are a CSV's own. FieldError names file, row and what was
    expected.
    """
    path = trace_at(path)
    content = read_whole(path, "trace")
    return _arms(path, content) if content.startswith(b"{") else [_table(path, content)]


def trace_at(path: Path) -> Path:
    """The trace in a run folder, or the file itself. FieldError for a folder without one."""
    if not path.is_dir():
        return path
    if (path / TRACE).exists():
        return path / TRACE
    if any(path.glob(f"*/{TRACE}")):
        every = glob.escape(str(path)) + "/*"
        raise FieldError("trace", str(path), f'it holds runs: name some of them, or all with "{every}"')
    raise FieldError("trace", str(path), f"give a run folder that has a {TRACE}")


def read_arms(path: Path) -> dict[str, list[TickRecord]]:
    """The ticks of each arm of a trace.jsonl, by file and arm; empty when it has none. FieldError when it is
    no such file."""
    content = read_whole(path, "trace")
    if not content.startswith(b"{"):
        cure = f"give a {TRACE} or its run folder: nothing else tells what each tick had to do"
        raise FieldError("trace", str(path), cure)
    return _arms_in(path, content)


def _arms_in(path: Path, content: bytes) -> dict[str, list[TickRecord]]:
    lines = io.BytesIO(content)
    if (kind := header_in(lines.readline(), path).kind) != "trace":
        raise FieldError(f"{path} kind", kind, f"give the {TRACE} beside it: these are frames of sessions")
    lines.seek(0)
    arms: dict[str, list[TickRecord]] = {}
    for tick in records_in(lines, path, TickRecord):
        arms.setdefault(f"{path} ({tick.arm})" if tick.arm else str(path), []).append(tick)
    return arms


def _arms(path: Path, content: bytes) -> list[Source]:
    # A server that tells no pool has nothing to be fitted.
    told = _arms_in(path, content)
    arms = {name: [tick for tick in ticks if tick.kv_total > 0] for name, ticks in told.items()}
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
    series = replace(series.promising(_promised(ticks)), windowed=_windowed(ticks))
    return Source(series, _beats(ticks), is_over=True)


def _windowed(ticks: Sequence[TickRecord]) -> bool | None:
    """Whether all calls that a load held said that they have a bound; None where one of them did not tell."""
    told = {tick.bounded for tick in ticks if tick.sessions}
    return None if None in told or not told else all(told)


def _promised(ticks: Sequence[TickRecord]) -> list[float] | None:
    """Shares of the pool; None of a load's trace: callers are told of no promises, and of no cap."""
    if not any(tick.kv_reserved or tick.cap for tick in ticks):
        return None
    return [tick.kv_reserved / tick.kv_total for tick in ticks]


def _beats(ticks: Sequence[TickRecord]) -> Beats | None:
    """None where nothing ever ran, or dues stand still."""
    busy = [tick for tick in ticks if tick.sessions]
    period = float(np.median(np.diff([tick.due for tick in ticks])))
    if not busy or not period > 0:
        return None
    return Beats([float(tick.sessions) for tick in busy], [tick.done - tick.due for tick in busy], period)


def _table(path: Path, content: bytes) -> Source:
    columns: dict[str, list[float]] = {}
    try:
        rows = csv.reader(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""))
        places = _places(path, [name.strip() for name in next(rows, [])])
        columns = {name: [] for name in places}
        for number, row in enumerate(filter(None, rows), 1):  # an empty line is no row
            for name, place in places.items():
                columns[name].append(_number(path, name, number, row[place] if place < len(row) else ""))
    except UnicodeDecodeError:
        raise FieldError("trace", str(path), f"it is no text: give a {TRACE} or a CSV file") from None
    except csv.Error as error:
        raise FieldError("trace", str(path), f"give a {TRACE} or a CSV file ({error})") from None
    sessions = columns.get(_SESSIONS)
    return Source(Series.checked(columns[_TIME], columns[_OCCUPANCY], sessions, name=str(path)), is_over=True)


def _places(path: Path, names: Sequence[str]) -> dict[str, int]:
    """Where the columns stand that are read."""
    if not {_TIME, _OCCUPANCY} <= set(names):
        expected = f"expected the columns {_TIME}, {_OCCUPANCY} and, where known, {_SESSIONS}"
        raise FieldError(f"{path} columns", ",".join(names), expected)
    for name in _READ:
        if names.count(name) > 1:
            raise FieldError(f"{path} columns", ",".join(names), f"give one column {name}, not several")
    return {name: names.index(name) for name in _READ if name in names}


def _number(path: Path, name: str, row: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FieldError(f"{path}: {name}, row {row}", text, "expected a number") from None
