"""`metronome load`: paced calls against a server, and what their callers got.

Knows:   the command's options, the run folder, and which parts of load/ and reporting/ it joins.
Ignores: how a call is held and what makes a figure honest; load/ does.
"""

from __future__ import annotations

import math
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .progress import watching
from .report import show

if TYPE_CHECKING:
    from ..load.runner import Plan
    from ..report import Report
    from ..runtime.recorder import Recorder
    from ..speech import Clip

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_seconds(text: str) -> float:
    """Seconds from "90", "90s", "1.5m" or "1h"."""
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise typer.BadParameter(f"{text!r} is no length of time: use 90s, 1.5m or 1h")
    return seconds


Duration = Annotated[float, typer.Option(parser=parse_seconds, metavar="TIME", help="Length of a run.")]
Speech = Annotated[
    str,
    typer.Option(help="What callers say: a folder of .wav or .flac files, or the name of a speech asset."),
]
Out = Annotated[Path, typer.Option(help="Where run folders are made.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")]


def load(
    url: Annotated[str, typer.Argument(metavar="URL", help="A server: http(s):// or ws(s)://.")] = (
        "http://127.0.0.1:8765"
    ),
    *,
    sessions: Annotated[int, typer.Option(min=1, help="Calls held at once.")] = 4,
    duration: Duration = "60s",  # type: ignore[assignment]  # typer parses the default as it parses input
    spread: Annotated[
        float,
        typer.Option(parser=parse_seconds, metavar="TIME", help="Time in which the calls join, one by one."),
    ] = "2s",  # type: ignore[assignment]
    speech: Speech = "speech",
    seed: Annotated[int, typer.Option(min=0, help="Order, gaps and phases of what callers say.")] = 0,
    as_json: AsJson = False,
    out: Out = Path("runs"),
) -> None:
    """Hold paced calls of real speech against a server, and report what their callers got.

    Packets leave every 20 ms by the wall clock, whether or not the server keeps up; freshness counts from
    the moment a frame's last sample was due. Exit code 0 when every limit held, 3 when not, 4 when nobody
    answers.

    \b
    Examples:
      metronome load --sessions 8 --duration 5m
      metronome load ws://127.0.0.1:8765/v1/realtime --speech ./clips --json
    """
    from ..load.runner import Plan

    plan = Plan(url, sessions, duration, seed, spread)
    with ended_like_interrupted():
        report = measure(plan, read_speech(speech), out)
    show(report, as_json)
    raise typer.Exit(0 if report.held else 3)


def measure(plan: Plan, clips: list[Clip], out: Path) -> Report:
    """Run `plan`, and leave a run folder with everything it found."""
    from ..clock import SystemClock
    from ..load import results
    from ..load.runner import run_load
    from ..report import new_report
    from ..reporting.summary import redraw

    clock = SystemClock()
    report = new_report("load", None, clock, plan.seed)
    with recording(out, "load", urlsplit(plan.url).netloc or plan.url) as (folder, recorder):
        with watching(f"{plan.sessions} calls", plan.duration_s) as watch:
            run = run_load(plan, clips, clock, recorder, watch)
        report.results = results.summarise(run)
    report.held, report.notes = results.held(report.results), results.notes(report.results)
    report.save(folder)
    redraw(folder)
    typer.echo(f"run: {folder}", err=True)
    return report


def read_speech(name_or_folder: str) -> list[Clip]:
    """The clips of a folder or of an asset."""
    from ..models.assets import locate
    from ..speech import read_clips

    return read_clips(locate(name_or_folder))


@contextmanager
def ended_like_interrupted() -> Iterator[None]:
    """SIGTERM and SIGHUP (a closed terminal) unwind as Ctrl-C does: no server left behind, nothing lost."""
    ends = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(end, signal.default_int_handler) for end in ends]
    try:
        yield
    finally:
        for end, handler in zip(ends, before, strict=True):
            signal.signal(end, handler)


@contextmanager
def recording(out: Path, command: str, name: str) -> Iterator[tuple[Path, Recorder]]:
    """A new run folder and its recorder; a run that failed before its first record leaves no folder."""
    from ..clock import SystemClock
    from ..report import run_folder
    from ..runtime.recorder import Recorder

    clock = SystemClock()
    folder = run_folder(out, command, name, clock)
    recorder = Recorder(folder, clock)
    try:
        yield folder, recorder
    except BaseException:
        recorder.close()
        if (folder / "trace.jsonl").read_bytes().count(b"\n") <= 1:
            shutil.rmtree(folder)
        raise
    finally:
        recorder.close()
