"""`metronome report`: finished runs, shown and drawn again from their files, or compared.

Knows:   how a report looks on standard output.
Ignores: what is in it; reporting/ makes the tables and the picture.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.table import Table as Grid

    from ..errors import MetronomeError
    from ..report import Report
    from ..reporting.tables import Table

_FRAME = 3  # columns of a terminal that the lines and the padding of each column take


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, such as runs/<time>-load-<name>.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document: the report, or {run: report} of several.")
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(help="Where the picture of several runs goes: beside the first of them when left out."),
    ] = None,
) -> None:
    """Draw a run's summary.md and picture again from its files and show its tables, or compare several runs.

    \b
    Examples:
      metronome report runs/20260101T120000Z-demo-demo
      metronome report runs/20260101T120000Z-demo-demo --json
      metronome report runs/*-load-* --picture before-and-after.png
    """
    if len(runs) > 1:
        return _compare(runs, as_json, picture)
    from ..errors import FieldError
    from ..report import read_report
    from ..reporting.summary import redraw

    try:
        drawn = redraw(runs[0])
        show(read_report(runs[0]), as_json)
    except (KeyError, TypeError) as error:
        cure = f"its report.json is damaged or of another release: it lacks {error}"
        raise FieldError("run", str(runs[0]), cure) from error
    typer.echo(f"drawn: {', '.join(map(str, drawn))}", err=True)
    return None


def _compare(folders: list[Path], as_json: bool, picture: Path | None) -> None:
    from ..report import read_report
    from ..reporting.compare import PICTURE, compared, comparison, draw_comparison, short_names

    reports = dict(zip(short_names(folders), map(read_report, folders), strict=True))
    results = compared(reports)
    path = picture or folders[0].parent / PICTURE
    draw_comparison(path, results)
    if as_json:
        document = ", ".join(
            f"{json.dumps(name)}: {found.model_dump_json()}" for name, found in reports.items()
        )
        typer.echo(f"{{{document}}}")
    else:
        print_tables(comparison(results))
    typer.echo(f"drawn: {path}", err=True)


def show(found: Report, as_json: bool) -> None:
    """The answer, on standard output: tables and a verdict, or one JSON document."""
    from ..reporting.kinds import tables

    if as_json:
        typer.echo(found.model_dump_json(indent=2))
        return
    console = print_tables(tables(found))
    for line in (*found.notes, found.results.get("verdict")):
        if line:
            console.print(line)


def print_tables(tables: Sequence[Table]) -> Console:
    """Tables for a reader; the console that they went to."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    for table in tables:
        console.print(grid(table, console.width))
    return console


def grid(table: Table, width: int = 80) -> Grid:
    """A table as a terminal of `width` columns shows it: figures are broken before names are."""
    from rich.table import Table as Grid

    shown = Grid(title=table.title, title_justify="left")
    whole = _names_fit(table, width)
    for number, column in enumerate(table.columns):
        named = number == 0
        shown.add_column(
            column, justify="left" if named else "right", overflow="fold", no_wrap=named and whole
        )
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _names_fit(table: Table, width: int) -> bool:
    """Whether the names in the first column have room beside the longest word of every other column."""
    names, *others = zip(table.columns, *table.rows, strict=True)
    words = (max(len(word) for cell in column for word in cell.split() or [""]) for column in others)
    return max(map(len, names)) + sum(words) + _FRAME * len(table.columns) < width


def unsaved(folder: Path, error: OSError) -> MetronomeError:
    """Why a run folder could not be written, by name, with what mends it."""
    from ..errors import MetronomeError

    if not folder.is_dir():
        cause, cure = "it was removed while the run went on", "leave it where it is until the run is over"
    else:
        where = f" ({error.filename})" if error.filename else ""
        cause, cure = f"{error.strerror or error}{where}", "make room on its disk, or give another --out"
    return MetronomeError(f"the run folder is not whole ({folder}): {cause}; {cure}")
