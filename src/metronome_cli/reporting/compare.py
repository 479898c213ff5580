"""Several runs side by side: one table, one picture.

Knows:   the reports of load runs, of both arms of a demo, and of searches.
Ignores: how a run is measured, and terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import FieldError
from ..report import Report
from .tables import NOTHING, Table, counted, not_delivered, seconds, share

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
    """Runs as columns, figures as rows. Names that would be broken in the head of a column are numbers
    there, which a table of their own explains."""
    rows = tuple((title, *(figure(run) for run in runs.values())) for title, figure in _FIGURES)
    if max(map(len, runs)) <= _SHORT:
        return [Table("Side by side", ("what", *runs), rows)]
    numbers = [str(number) for number in range(1, len(runs) + 1)]
    names = Table("Runs", ("", "run"), tuple(zip(numbers, runs, strict=True)))
    return [names, Table("Side by side", ("what", *numbers), rows)]


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


def _fresh(end: str) -> Callable[[Results], str]:
    return lambda run: counted(run["freshness"] and run["freshness"][end])


def _verdict(run: Results) -> str:
    missed = [limit["name"] for limit in run["limits"] if not limit["held"]]
    return "yes" if not missed else f"no: {'; '.join(missed)}"


def _slope(run: Results) -> str:
    found = run.get("slope")
    return f"{found['s_per_min']:+.4f} ({found['low']:+.4f}, {found['high']:+.4f})" if found else NOTHING


_FIGURES: tuple[tuple[str, Callable[[Results], str]], ...] = (
    ("every limit held", _verdict),
    ("server", lambda run: str(run["offered"]["url"])),
    ("calls opened", lambda run: str(run["calls"]["opened"])),
    ("calls refused", lambda run: str(sum(run["calls"]["refused"].values()))),
    ("dialled again", lambda run: str(run["calls"].get("redials", 0))),
    ("calls cut off", lambda run: str(run["calls"]["cut_off"])),
    ("length (s)", lambda run: seconds(run["elapsed_s"], 1)),
    ("frame (s)", lambda run: seconds(run["frame_s"])),
    ("freshness, first token p50 / p90 / p99 (s)", _fresh("first_s")),
    ("freshness, last token p50 / p90 / p99 (s)", _fresh("last_s")),
    ("slope (s per minute, 95 %)", _slope),
    ("after speech p50 / p90 / p99 (s)", lambda run: counted(run["after_speech_s"])),
    ("cadence", lambda run: share(run["frames"]["cadence"])),
    ("frames stalled / empty / missing", lambda run: not_delivered(run["frames"])),
    ("beats skipped", lambda run: str(run["skipped_beats"])),
    ("moment of silence (s)", lambda run: seconds(run["silence_at_s"], 1)),
    ("speech given back", lambda run: share((run.get("sound") or {}).get("share"))),
    ("replies misheard", lambda run: share((run.get("replies_wer") or {}).get("wer"))),
    ("words misheard", lambda run: share((run.get("wer") or {}).get("wer"))),
    ("our own packet lag p99 (s)", lambda run: counted(run["client"]["lag_s"], ("p99",))),
    ("our own CPU share", lambda run: share(run["client"]["cpu_share"])),
)
