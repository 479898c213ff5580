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
    """A table in a terminal of `width` columns: heads are broken before figures, figures before names."""
    from rich.table import Table as Grid

    shown = Grid(title=table.title, title_justify="left")
    for number, (column, room) in enumerate(zip(table.columns, _widths(table, width), strict=True)):
        shown.add_column(column, justify="right" if number else "left", overflow="fold", width=room)
    for row in table.rows:
        shown.add_row(*row)
    return shown


def _widths(table: Table, width: int) -> list[int | None]:
    """Characters for each column; None for each where all has room, and where not even the words have."""
    columns = list(zip(table.columns, *table.rows, strict=True))
    whole = [max(map(len, cells)) for cells in columns]
    room = width - _FRAME * len(columns) - 1
    least = [max(len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    if sum(whole) <= room or sum(least) > room:
        return [None] * len(columns)
    if whole[0] + sum(least[1:]) <= room:
        least[0] = whole[0]
    figures = [max([0, *map(len, cells[1:])]) for cells in columns]
    return [*_shared_out(_shared_out(least, figures, room), whole, room)]


def _shared_out(widths: list[int], wanted: list[int], room: int) -> list[int]:
    """Widths grown towards what is wanted, the narrowest first, as far as there is room for all of them."""
    grown = list(widths)
    while sum(grown) < room:
        short = [n for n, (have, want) in enumerate(zip(grown, wanted, strict=True)) if have < want]
        if not short:
            break
        grown[min(short, key=grown.__getitem__)] += 1
    return grown


def unsaved(folder: Path, error: OSError) -> MetronomeError:
    """Why a run folder could not be written, by name, with what mends it."""
    from ..errors import MetronomeError

    if not folder.is_dir():
        cause, cure = "it was removed while the run went on", "leave it where it is until the run is over"
    else:
        where = f" ({error.filename})" if error.filename else ""
        cause, cure = f"{error.strerror or error}{where}", "make room on its disk, or give another --out"
    return MetronomeError(f"the run folder is not whole ({folder}): {cause}; {cure}")
