"""Several runs side by side: one table, one picture.

Knows:   the reports of load runs, of both arms of a demo, and of searches.
Ignores: how a run is measured, and terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import FieldError
from ..report import Report
from .tables import NOTHING, Table, count_of, not_delivered, seconds, share, spread

PICTURE = "comparison.png"
_SHORT = 12  # characters, of a name that fits the head of a column
Results = Mapping[str, Any]


def compared(runs: Mapping[str, Report]) -> dict[str, Results]:
    """Name -> results of each run that can stand beside another; a demo gives its two arms."""
    found: dict[str, Results] = {}
    for name, report in runs.items():
        if report.command == "load":
            found[name] = report.results
        elif report.command == "demo":
            found |= {f"{name} {arm}": results for arm, results in report.results["arms"].items()}
        else:
            cure = "compare runs of load and demo; show it by itself"
            raise FieldError("run", f"{name} ({report.command})", cure)
    return found


def comparison(runs: Mapping[str, Results]) -> list[Table]:
    """Who was called; then runs as columns, figures as rows, without rows that none of them has.

    Names that would be broken in the head of a column are numbers there.
    """
    short = max(map(len, runs)) <= _SHORT
    heads = list(runs) if short else [str(number) for number in range(1, len(runs) + 1)]
    names = [] if short else [("run", list(runs))]
    who = [("", heads), *names, ("server", [str(run["offered"]["url"]) for run in runs.values()])]
    told = Table(
        "Runs", tuple(head for head, _ in who), tuple(zip(*(cells for _, cells in who), strict=True))
    )
    figures = [*_limit_rows(runs), *_FIGURES]
    rows = [(title, *(figure(run) for run in runs.values())) for title, figure in figures]
    known = tuple(row for row in rows if set(row[1:]) != {NOTHING})
    return [told, Table("Side by side", ("what", *heads), known)]


def draw_comparison(path: Path, runs: Mapping[str, Results]) -> None:
    """Freshness by elapsed time, a line for each run."""
    from .plots import draw_courses

    draw_courses(path, "metronome report", {name: run["buckets"] for name, run in runs.items()})


def short_names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with as much of the path as tells them apart."""
    depth = 1
    while len(set(names := ["/".join(folder.parts[-depth:]) for folder in folders])) < len(folders):
        if depth >= max(len(folder.parts) for folder in folders):
            raise FieldError("run", str(folders[0]), "name each run once")
        depth += 1
    return names


Figure = tuple[str, Callable[[Results], str]]


def _limit_rows(runs: Mapping[str, Results]) -> list[Figure]:
    """Whether all limits were kept, and those that some run did not keep."""
    missed = [limit["name"] for run in runs.values() for limit in run["limits"] if not limit["held"]]
    rows: list[Figure] = [
        ("every limit held", lambda run: _yes(all(limit["held"] for limit in run["limits"])))
    ]
    return rows + [(f"held: {name}", partial(_held, name)) for name in dict.fromkeys(missed)]


def _held(name: str, run: Results) -> str:
    return next((_yes(limit["held"]) for limit in run["limits"] if limit["name"] == name), NOTHING)


def _yes(held: bool | None) -> str:
    return "not measurable" if held is None else "yes" if held else "no"


def _times(name: str, cuts: Callable[[Results], Mapping[str, float] | None], *keys: str) -> list[Figure]:
    """A row for each percentile, and one that tells of how many values they are: cells that are short."""

    def at(key: str) -> Callable[[Results], str]:
        return lambda run: spread(cuts(run), (key,))

    rows: list[Figure] = [(f"{name}, {key} (s)", at(key)) for key in keys]
    return [*rows, (f"{name}, of so many", lambda run: count_of(cuts(run)))]


def _fresh(end: str) -> Callable[[Results], Mapping[str, float] | None]:
    return lambda run: run["freshness"] and run["freshness"][end]


def _slope(run: Results) -> str:
    found = run.get("slope")
    return f"{found['s_per_min']:+.3f}" if found else NOTHING


def _slope_between(run: Results) -> str:
    found = run.get("slope")
    return f"{found['low']:+.3f} to {found['high']:+.3f}" if found else NOTHING


_FIGURES: tuple[Figure, ...] = (
    ("calls opened", lambda run: str(run["calls"]["opened"])),
    ("calls refused", lambda run: str(sum(run["calls"]["refused"].values()))),
    ("dialled again", lambda run: str(run["calls"].get("redials", 0))),
    ("calls cut off", lambda run: str(run["calls"]["cut_off"])),
    ("length (s)", lambda run: seconds(run["elapsed_s"], 1)),
    ("frame (s)", lambda run: seconds(run["frame_s"])),
    *_times("first token", _fresh("first_s"), "p50", "p90", "p99"),
    *_times("last token", _fresh("last_s"), "p50", "p90", "p99"),
    ("slope of the first (s per minute)", _slope),
    ("slope, 95 % between", _slope_between),
    *_times("after speech", lambda run: run["after_speech_s"], "p50", "p90", "p99"),
    ("cadence", lambda run: share(run["frames"]["cadence"])),
    ("frames stalled / empty / missing", lambda run: not_delivered(run["frames"])),
    ("beats skipped", lambda run: str(run["skipped_beats"])),
    ("moment of silence (s)", lambda run: seconds(run["silence_at_s"], 1)),
    ("window filled at the end", lambda run: share(run.get("window_filled"), digits=0)),
    ("speech given back", lambda run: share((run.get("sound") or {}).get("share"))),
    ("replies misheard", lambda run: share((run.get("replies_wer") or {}).get("wer"))),
    ("words misheard", lambda run: share((run.get("wer") or {}).get("wer"))),
    ("our own packet lag, p99 (s)", lambda run: spread(run["client"]["lag_s"], ("p99",))),
    ("our own CPU share", lambda run: share(run["client"]["cpu_share"])),
)
