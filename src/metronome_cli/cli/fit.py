"""`metronome fit`: models fitted to measurements.

Knows:   the command, its run folder, and which parts of fit/ and reporting/ it joins.
Ignores: how anything is read, fitted or drawn, and how a live server is followed (fit_live.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .fit_capacity import capacity
from .load import keep
from .report import show
from .times import RANGE, any_time, within

if TYPE_CHECKING:
    from ..errors import FieldError
    from ..fit.answer import Answer, Asked
    from ..report import Report

app = typer.Typer(no_args_is_help=True, help="Fit models to measurements.")
app.command()(capacity)
COMMAND = "fit-collapse-model"
_MOST_READINGS = 20_000  # of a page
_LIVE = {"duration": "for", "every": "every", "engine": "engine", "watch": "watch"}  # by parameter


Traces = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TRACE",
        help="Run folders, trace.jsonl files, CSV files with columns t_s, kv_occupancy and maybe sessions, "
        "or patterns of such names.",
    ),
]
MetricsUrl = Annotated[
    str | None, typer.Option(metavar="URL", help="Read a live server instead: metronome, vLLM or SGLang.")
]
For = Annotated[
    float,
    typer.Option(
        "--for",
        parser=any_time,
        metavar="TIME",
        help=f"How long a live server is read, {RANGE}; at most {_MOST_READINGS:,} times.",
    ),
]
Every = Annotated[
    float,
    typer.Option(
        parser=within("100ms", "1h"), metavar="TIME", help="How often a live server is asked, 100ms to 1h."
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        metavar="LABEL",
        help="Which pool of a page that has several: a label's value, label=value, or all (the mean "
        "occupancy, all sessions).",
    ),
]
Watch = Annotated[
    bool,
    typer.Option("--watch", help="Follow a live server until Ctrl-C, with a new forecast every few seconds."),
]
FailUnder = Annotated[
    float | None,
    typer.Option(
        parser=any_time,
        metavar="TIME",
        help=f"Exit with 3 when the pool will be full sooner than that, {RANGE}.",
    ),
]
At = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        max=0.99,
        metavar="SHARE",
        help="Use only what was known when occupancy first reached this, and score the forecast by the rest.",
    ),
]
SessionLength = Annotated[
    float | None,
    typer.Option(
        parser=any_time,
        metavar="TIME",
        help=f"How likely are calls of this length to collapse? {RANGE}.",
    ),
]
Level = Annotated[float, typer.Option(min=0.5, max=0.99, help="Of the intervals.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document; with --watch one a line.")]
Out = Annotated[Path, typer.Option(help="Where the run folder is made.")]


@app.command("collapse-model")
def collapse_model(
    ctx: typer.Context,
    traces: Traces = None,
    *,
    metrics_url: MetricsUrl = None,
    duration: For = "60s",  # type: ignore[assignment]  # typer parses the default as it parses input
    every: Every = "1s",  # type: ignore[assignment]
    engine: Engine = "",
    watch: Watch = False,
    fail_under: FailUnder = None,
    at: At = None,
    session_length: SessionLength = None,
    level: Level = 0.9,
    as_json: AsJson = False,
    out: Out = Path("runs"),
) -> None:
    """Tell when the KV pool will be full, with an interval, from traces or from a live server.

    Whether the pool still fills or has levelled off is tested, not assumed. Exit code 3 when it will be full
    sooner than --fail-under, 4 when nobody answers at the URL, or not with a metrics page.

    \b
    Examples:
      metronome fit collapse-model runs/20260101T120000Z-demo-demo
      metronome fit collapse-model trace.csv --at 0.5 --json
      metronome fit collapse-model "runs/*-load-*" --session-length 5m
      metronome fit collapse-model --metrics-url http://127.0.0.1:8000/metrics --for 2m
      metronome fit collapse-model --metrics-url http://127.0.0.1:8765 --watch --fail-under 60s
    """
    from ..clock import SystemClock
    from ..fit.answer import Asked
    from ..report import new_report

    _check(traces, metrics_url, watch, at)
    _check_live(_typed(ctx), metrics_url, watch, duration / every)
    report = new_report(COMMAND, None, SystemClock())
    asked = Asked(at, level, session_length)
    failed: list[FieldError] = []
    if metrics_url is None:
        answers, failed = _of_files(traces or [], asked)
    else:
        from .fit_live import follow, gather

        if watch:
            answers = follow(metrics_url, engine, every, asked, fail_under, as_json)
        else:
            answers = gather(metrics_url, engine, every, duration, asked)
    _conclude(report, answers, failed, fail_under)
    if not watch:
        _say(report, failed, as_json)
    _keep(report, out, metrics_url, traces or [])
    raise typer.Exit(2 if failed else 0 if report.held else 3)


def _check(traces: Sequence[str] | None, url: str | None, watch: bool, at: float | None) -> None:
    from ..errors import NOTHING, ProfileError

    if not traces and url is None:
        raise ProfileError("trace", NOTHING, "give traces, or a live server with --metrics-url")
    if traces and url is not None:
        raise ProfileError("metrics-url", url, "give traces or a live server, not both")
    if watch and at is not None:
        raise ProfileError(
            "at", at, "leave it out with --watch: nothing is known yet that could be held back"
        )


def _check_live(typed: Mapping[str, Any], url: str | None, watch: bool, readings: float) -> None:
    """What is typed for a live server is never left unused."""
    from ..errors import ProfileError

    for name, value in typed.items():
        if name in _LIVE and url is None:
            raise ProfileError(_LIVE[name], value, "it is for a live server: give one with --metrics-url")
    if watch and "duration" in typed:
        raise ProfileError("for", typed["duration"], "leave it out with --watch, which ends with Ctrl-C")
    if not watch and readings > _MOST_READINGS:
        cure = f"use a longer --every, or a shorter --for: {_MOST_READINGS:,} are the most"
        raise ProfileError("for / every", f"{readings:,.0f} readings", cure)


def _typed(ctx: typer.Context) -> dict[str, Any]:
    """The options that were given, without those that only have their default."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name: ctx.params[name] for name, of in sources.items() if of and of.name == "COMMANDLINE"}


def _of_files(traces: Sequence[str], asked: Asked) -> tuple[list[Answer], list[FieldError]]:
    """What can be fitted, and why the rest cannot. When that is everything, the first reason is raised."""
    from ..errors import FieldError
    from ..fit.answer import answer
    from ..fit.sources import expand, read_trace

    answers: list[Answer] = []
    failed: list[FieldError] = []
    for path in expand(traces):
        try:
            sources = read_trace(path)
        except FieldError as error:
            failed.append(error)
            continue
        for source in sources:
            try:
                answers.append(answer(source, asked))
            except FieldError as error:
                failed.append(error)
    if not answers:
        raise failed[0]
    return answers, failed


def _conclude(
    report: Report, answers: Sequence[Answer], failed: Sequence[FieldError], fail_under: float | None
) -> None:
    fits = [found.told for found in answers]
    report.results = {"fits": fits, "drawn": [found.drawn for found in answers], "verdict": _verdict(answers)}
    several = len(fits) > 1
    report.notes = [f"{fit['source']}: {note}" if several else note for fit in fits for note in fit["notes"]]
    report.notes += [f"not fitted: {error}" for error in failed]
    soon = [found.left_s for found in answers if found.left_s is not None]
    report.held = fail_under is None or min(soon, default=fail_under) >= fail_under


def _verdict(answers: Sequence[Answer]) -> str:
    if not answers:
        return "Nothing was fitted."
    if len(answers) == 1:
        return str(answers[0].told["verdict"])
    filling = [found for found in answers if found.left_s is not None]
    if not filling:
        return f"None of {len(answers)} pools will be full."
    first = min(filling, key=lambda found: found.left_s or 0.0).told
    unsure = sum(bool(found.left_s) and found.told["bounded"] is None for found in filling)
    so = "" if not unsure else ", if calls have no bound" if unsure == len(filling) else _so_far(unsure)
    are = "is" if len(filling) == 1 else "are"
    return (
        f"{len(filling)} of {len(answers)} pools {are} full or will be{so}. "
        f"{first['source']}: {first['verdict']}"
    )


def _so_far(unsure: int) -> str:
    return f" ({unsure} of them if calls have no bound)"


def _say(report: Report, failed: Sequence[FieldError], as_json: bool) -> None:
    """The answer on standard output: one document, a list of several, or tables."""
    if not as_json:
        show(report, as_json)
        return
    documents: list[dict[str, Any]] = list(report.results["fits"])
    documents += [{"t_sat": None, "error": str(error)} for error in failed]
    for error in failed:
        typer.echo(f"not fitted: {error}", err=True)
    typer.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=2))


def _keep(report: Report, out: Path, url: str | None, traces: Sequence[str]) -> None:
    """The run folder; none when nothing was fitted."""
    from ..clock import SystemClock
    from ..fit.sources import name_of
    from ..report import run_folder, without_login

    if not report.results["fits"]:
        return
    name = name_of(traces) if url is None else without_login(url).split("://")[-1].split("/")[0]
    if failure := keep(report, run_folder(out, COMMAND, name, SystemClock())):
        raise failure
