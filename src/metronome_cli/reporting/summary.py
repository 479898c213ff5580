"""A run folder's summary.md and picture, made from the files in it.

Knows:   the names in a run folder, and that a redrawn run looks as it did.
Ignores: how a run is measured, and terminals.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..report import Report, read_report
from ..trace import FrameRecord, TickRecord, read_header, read_records
from .kinds import tables

FRAMES, TRACE, SUMMARY = "frames.jsonl", "trace.jsonl", "summary.md"


def redraw(folder: Path) -> list[Path]:
    """Write summary.md, and <command>.png where there are records; returns what was written."""
    report = read_report(folder)
    written = [folder / SUMMARY]
    if picture := _draw(folder, report):
        written.append(picture)
    written[0].write_text(markdown(report, [path.name for path in written[1:]]), "utf-8")
    return written


def markdown(report: Report, pictures: list[str]) -> str:
    """The report for a reader, the verdict first."""
    parts = [f"# metronome {report.command}: {report.profile.get('name', '')}".rstrip(": ") + "\n"]
    parts.append(f"{report.results.get('verdict') or ('held' if report.held else 'a limit was missed')}\n")
    if report.notes:
        parts.append("\n".join(f"- {note}" for note in report.notes) + "\n")
    parts += [table.markdown() for table in tables(report)]
    parts += [f"![{name}]({name})\n" for name in pictures]
    parts.append(_provenance(report))
    return "\n".join(parts)


def _provenance(report: Report) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    device = ", ".join(f"{key} {value}" for key, value in report.device.items())
    lines = [
        f"- command: `metronome {shlex.join(report.argv)}`",
        f"- begun: {report.wall_start}, seed {report.seed}",
        f"- device: {device}",
        f"- versions: {versions}",
    ]
    return "## Provenance\n\n" + "\n".join(lines) + "\n"


def _draw(folder: Path, report: Report) -> Path | None:
    if own := _PICTURES.get(report.command):
        return own(folder, report)
    if not (folder / TRACE).exists() or not (folder / FRAMES).exists():
        return None
    # matplotlib takes half a second to load; a run without records does not need it.
    from .plots import draw

    path = folder / f"{report.command}.png"
    ticks = list(read_records(folder / TRACE, TickRecord))
    frames = list(read_records(folder / FRAMES, FrameRecord))
    name = report.profile.get("name", "")
    title = f"metronome {report.command}" + (f", profile {name}" if name else "")
    draw(path, title, ticks, frames, _arms(folder, report), report.results.get("moment"))
    return path


def _draw_search(folder: Path, report: Report) -> Path:
    from .plots import draw_points

    path, found = folder / f"{report.command}.png", report.results
    draw_points(path, f"metronome load --find-n: {found['verdict']}", found["points"], found["budget_s"])
    return path


def _draw_sinks(folder: Path, report: Report) -> Path:
    from .sinks import draw_sinks

    path, found = folder / f"{report.command}.png", report.results
    draw_sinks(path, f"metronome probe sinks: {found['checkpoint']}, {found['tokens']} tokens", found)
    return path


def _draw_fit(folder: Path, report: Report) -> Path:
    from .fit import PICTURE, draw_fit

    path = folder / PICTURE
    draw_fit(path, f"metronome fit collapse-model: {report.results['verdict']}", report.results)
    return path


def _draw_capacity(folder: Path, report: Report) -> Path:
    from .capacity import draw_capacity

    path = folder / f"{report.command}.png"
    draw_capacity(path, f"metronome fit capacity: {report.results['verdict']}", report.results)
    return path


def _draw_quality(folder: Path, report: Report) -> Path | None:
    if not any(kind in row for row in report.results["rows"] for kind in ("turn", "free")):
        return None
    from .quality import draw_quality

    path = folder / f"{report.command}.png"
    draw_quality(path, report.results)
    return path


def _draw_fleet(folder: Path, report: Report) -> Path:
    from .simulate import draw_simulated

    path = folder / f"{report.command}.png"
    draw_simulated(path, f"metronome simulate: {report.results['verdict']}", report.results)
    return path


# Of the commands whose picture is not that of tick and frame records.
_PICTURES: Mapping[str, Callable[[Path, Report], Path | None]] = {
    "find-n": _draw_search,
    "probe-quality": _draw_quality,
    "probe-sinks": _draw_sinks,
    "fit-collapse-model": _draw_fit,
    "fit-capacity": _draw_capacity,
    "simulate": _draw_fleet,
}


def _arms(folder: Path, report: Report) -> Mapping[str, Mapping[str, Any]]:
    """Each arm's zero and budget; a server's own records have one arm that begins with their header."""
    if "arms" in report.results:
        return dict(report.results["arms"])
    zero = read_header(folder / TRACE).monotonic_zero
    return {"": {"started": zero, "frame_s": None, **report.results}}
