"""`metronome load --find-n`: one run after another until the largest N that holds is known.

Knows:   the folder of a search (one run folder a point) and how an ended search goes on.
Ignores: which N comes next (load/search.py) and when a point is lost (load/saturation.py).
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..errors import MetronomeError, NotMeasured, ProfileError
from .load import be_patient, busy, hold, keep, name_of, read_speech, recording_in
from .report import unsaved

if TYPE_CHECKING:
    from ..load.plan import Plan
    from ..report import Report
    from ..speech import Clip

PLAN = "plan.json"
INTERRUPTED = "interrupted"
_FULL = 0.95  # of a window, from which on a call costs no more as it gets older
_SETTLE_S = 1.0  # between two points: the server takes back what the last calls held


def search(
    plan: Plan, speech: str, most: int, resume: Path | None, out: Path, wait_s: float = 0.0
) -> tuple[Report, BaseException | None]:
    """Search from `plan.sessions` up to `most`; the error says what ended it, or why its folder is not whole.

    A search that was ended is not held, whatever it found: the answer is not known. The error is raised
    instead, and nothing is left behind, when it ended before anything was found.
    """
    from ..clock import SystemClock
    from ..report import new_report

    report = new_report("find-n", None, SystemClock(), plan.seed)
    asked, clips = plan.settings() | {"speech": speech, "most": most}, read_speech(speech)
    be_patient(plan, wait_s)
    folder = _begin(plan, asked, resume, out)
    points, why, end, lost = _saved(folder), "", None, None
    try:
        lost = _climb(plan, most, clips, folder, points)
    except (MetronomeError, KeyboardInterrupt) as error:
        if not points and not folder.exists():
            raise
        why, end = str(error) or INTERRUPTED, error
    if why:
        # What cannot be judged needs other settings, and so another search.
        over = isinstance(end, NotMeasured) or not folder.exists()
        more = "" if over else f"; go on with --resume {folder}"
        report.notes.append(f"{why}{more}")
    _conclude(report, asked, points, why)
    report.notes += busy()
    report.held = report.held and end is None
    failure = keep(report, folder)
    return report, end or failure or lost


def _climb(
    plan: Plan, most: int, clips: list[Clip], folder: Path, points: dict[int, Report]
) -> MetronomeError | None:
    """Try one N after another, into `points`, until the answer is known; why a run folder is not whole.

    NotMeasured when a point cannot be judged, KeyboardInterrupt when it was interrupted; its folder stays.
    """
    from ..clock import SystemClock
    from ..load.search import next_n

    clock, lost = SystemClock(), None
    while (n := next_n({n: point.held for n, point in points.items()}, plan.sessions, most)) is not None:
        if points:
            clock.wait_until(clock.now() + _SETTLE_S)
        point, failure = _try(replace(plan, sessions=n, keep_speech=0), clips, folder)
        lost = lost or failure
        if point.results["stopped_early"]:
            raise KeyboardInterrupt
        if unmeasured := _unmeasured(point):
            raise NotMeasured(f"N = {n} cannot be judged: {'; '.join(unmeasured)}")
        points[n] = point
    return lost


def _begin(plan: Plan, asked: dict[str, Any], resume: Path | None, out: Path) -> Path:
    """The folder of the search; one that is taken up again must have been asked the same."""
    from ..clock import SystemClock
    from ..report import run_folder

    if resume is None:
        folder = run_folder(out, "find-n", name_of(plan), SystemClock())
        try:
            (folder / PLAN).write_text(json.dumps(asked, indent=2) + "\n", "utf-8")
        except OSError as error:
            raise unsaved(folder, error) from None
        return folder
    try:
        before = json.loads((resume / PLAN).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ProfileError("resume", str(resume), f"give the folder of a --find-n ({error})") from None
    for name, value in asked.items():
        if before.get(name) != value:
            cure = f"it was {before.get(name)!r} in {resume}: ask for the same, or begin anew"
            raise ProfileError(name, value, cure)
    return resume


def _saved(folder: Path) -> dict[int, Report]:
    """The points that were measured to their end, and judged."""
    from ..report import read_report

    done = sorted(path.parent for path in folder.glob("n-*/report.json"))
    found = {int(point.name.removeprefix("n-")): read_report(point) for point in done}
    return {
        n: point for n, point in found.items() if not (point.results["stopped_early"] or _unmeasured(point))
    }


def _try(plan: Plan, clips: list[Clip], search: Path) -> tuple[Report, MetronomeError | None]:
    """One point: fresh calls, and a run folder of its own below that of the search; why that is not whole."""
    from ..load.saturation import doomed

    folder = search / f"n-{plan.sessions:04}"
    shutil.rmtree(folder, ignore_errors=True)  # of a point that was not measured to its end
    try:
        folder.mkdir()
    except OSError as error:
        raise unsaved(search, error) from None
    try:
        with recording_in(folder) as recorder:
            report, _ = hold(plan, clips, recorder, doomed)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if search.exists() and [path.name for path in search.iterdir()] == [PLAN]:
            shutil.rmtree(search)  # nothing was found: nothing to go on with
        raise
    failure = keep(report, folder, recorder.failure)
    typer.echo(f"N = {plan.sessions}: {_in_words(report)}", err=True)
    return report, failure


def _unmeasured(point: Report) -> list[str]:
    """Why nothing is known of a point; one that was lost, early or at its end, is judged by that alone."""
    from ..load.search import too_few

    found = point.results
    if found["doomed"]:
        return []
    if unknown := [row["name"] for row in found["limits"] if row["held"] is None]:
        return point.notes or unknown
    return [few] if point.held and (few := too_few(found)) else []


def _in_words(point: Report) -> str:
    if point.results["stopped_early"]:
        return INTERRUPTED
    if unmeasured := _unmeasured(point):
        return f"cannot be judged: {unmeasured[0]}"
    return "holds" if point.held else _missed(point)


def _conclude(report: Report, asked: dict[str, Any], points: dict[int, Report], why: str) -> None:
    """Fill in what was found; `why` says what ended the search before its end."""
    from ..load.search import largest

    n = largest({n: point.held for n, point in points.items()})
    rows = [_row(number, point) for number, point in sorted(points.items())]
    next_up = next((row for row in rows if row["n"] > n), None)
    lost = f"; {next_up['n']} calls: {next_up['why']}" if next_up else ""
    filled = next((row["window_filled"] for row in rows if row["n"] == n), None)
    full = "" if filled is None else f", their windows {100 * filled:.0f} % full at the end"
    more = " (not searched to the end)" if why else lost
    at_least = "at least " if n == asked["most"] or why else ""
    none = "no number of calls holds" if rows else "no number of calls was judged"
    report.results = {
        "offered": asked,
        "n": n,
        "budget_s": next((row["budget_s"] for row in rows if row["budget_s"]), None),
        "points": rows,
        "ended_early": why,
        "verdict": f"N = {at_least}{n}{full}{more}" if n else f"{none}{more}",
    }
    report.held = n > 0
    if filled is not None and filled < _FULL and not why:
        report.notes.append(
            f"calls get slower until their windows are full, and these were at {100 * filled:.0f} %: "
            "a longer --duration tells of calls that stay"
        )


def _row(n: int, point: Report) -> dict[str, Any]:
    found = point.results
    fresh, client = found["freshness"] or {}, found["client"]
    return {
        "n": n,
        "held": point.held,
        "why": "" if point.held else _missed(point),
        "elapsed_s": found["elapsed_s"],
        "budget_s": found["budget_s"],
        "first_s": fresh.get("first_s"),
        "last_s": fresh.get("last_s"),
        "after_speech_s": found["after_speech_s"],
        "cadence": found["frames"]["cadence"],
        "skipped_beats": found["skipped_beats"],
        "window_filled": found["window_filled"],
        "lag_s": client["lag_s"],
        "cpu_share": client["cpu_share"],
    }


def _missed(point: Report) -> str:
    from ..load.limits import missed

    return point.results["doomed"] or "; ".join(missed(point.results))
