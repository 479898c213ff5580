"""`metronome fit capacity`: how many calls one device holds, from traces at several numbers of calls.

Knows:   the command, its run folder, and which parts of fit/ and reporting/ it joins.
Ignores: how ticks are read and what is fitted to them; fit/ticks.py and fit/capacity.py do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .load import keep
from .report import show
from .times import within

COMMAND = "fit-capacity"

Traces = Annotated[
    list[str],
    typer.Argument(
        metavar="TRACE...",
        help="Run folders, trace.jsonl files, or patterns of such names; three or more numbers of calls.",
    ),
]
Budget = Annotated[
    float | None,
    typer.Option(
        parser=within("1ms", "1h"),
        metavar="TIME",
        help="What a tick may take, 1ms to 1h: the traces' period when left out.",
    ),
]
Margin = Annotated[float, typer.Option(metavar="SHARE", help="Of the budget, that is to stay free.")]
Percentile = Annotated[float, typer.Option(min=50, max=99.9, help="Of ticks, that leave the margin.")]
Level = Annotated[float, typer.Option(min=0.5, max=0.99, help="Of the interval.")]
Seed = Annotated[int, typer.Option(min=0, help="Of everything drawn.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, for simulate --cost too.")]
Out = Annotated[Path, typer.Option(help="Where the run folder is made.")]


def capacity(
    traces: Traces,
    *,
    budget: Budget = None,
    margin: Margin = 0.2,
    percentile: Percentile = 95.0,
    level: Level = 0.9,
    seed: Seed = 0,
    as_json: AsJson = False,
    out: Out = Path("runs"),
) -> None:
    """Tell how many sessions fit a device's beat and its pool, and which of the two binds.

    What a tick costs is fitted to sessions, resident blocks and tokens, and carried to any N. Every measured
    N is also predicted from the others: exit code 3 when one is off by more than 10 %.

    The traces are the server's, under calls at three or more N, ten beats each; see the first two examples,
    of which the second is for another terminal. A pattern takes all runs that it fits: once some of them had
    another window, model or machine, name those that go together.

    \b
    Examples:
      metronome serve
      for n in 2 4 8; do metronome load --sessions $n --duration 2m; done
      metronome fit capacity "runs/*-serve-laptop" --margin 0.2
      metronome fit capacity n4/trace.jsonl n8/trace.jsonl n16/trace.jsonl --budget 2s --json > cost.json
    """
    from ..clock import SystemClock
    from ..fit.capacity import Asked, plan
    from ..fit.capacity_answer import drawn, notes, told, verdict
    from ..fit.sources import name_of
    from ..fit.ticks import read_ticks
    from ..report import new_report, run_folder
    from ..runtime.cost import HELD_OUT

    clock = SystemClock()
    asked = Asked(budget, margin, percentile, level, seed)
    report = new_report(COMMAND, None, clock, seed)
    ticks = read_ticks(traces)
    found = plan(ticks, asked)
    answer = told(found, asked)
    report.results = {"fit": answer, "drawn": drawn(ticks, found, asked), "verdict": verdict(answer)}
    report.notes = notes(answer, ticks)
    report.held = found.worst <= HELD_OUT
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        show(report, as_json)
    if failure := keep(report, run_folder(out, COMMAND, name_of(traces), clock)):
        raise failure
    raise typer.Exit(0 if report.held else 3)
