"""`metronome report`: a finished run, shown and drawn again from its files.

Knows:   how a report looks on standard output.
Ignores: what is in it; reporting/ makes the tables and the picture.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..report import Report


def report(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/<time>-load-<name>.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")] = False,
) -> None:
    """Draw a run's summary.md and picture again from its files, and show its tables.

    \b
    Examples:
      metronome report runs/20260101T120000Z-demo-demo
      metronome report runs/20260101T120000Z-demo-demo --json
    """
    from ..report import read_report
    from ..reporting.summary import redraw

    drawn = redraw(run)
    show(read_report(run), as_json)
    typer.echo(f"drawn: {', '.join(map(str, drawn))}", err=True)


def show(found: Report, as_json: bool) -> None:
    """The answer, on standard output: tables and a verdict, or one JSON document."""
    from rich.console import Console
    from rich.table import Table

    from ..reporting.tables import tables

    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    console = Console(markup=False, highlight=False)
    for table in tables(found):
        shown = Table(title=table.title, title_justify="left")
        for number, column in enumerate(table.columns):
            shown.add_column(column, justify="left" if number == 0 else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
    for line in (*found.notes, found.results.get("verdict")):
        if line:
            console.print(line)
