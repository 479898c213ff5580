"""Tables on standard output: as wide as the terminal; in a pipe or a file no line is ever broken.

Knows:   how wide standard output is.
Ignores: what is in a table. Reports have tables of their own (report.py).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

_WIDEST = 10_000  # more than any line of ours has


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], whole: Sequence[str] = ()) -> None:
    """A plain table. Columns in `whole` hold what is there to be copied: no terminal is too narrow for them.

    The terminal's width is its own; COLUMNS says another.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in whole, overflow="fold")
    for row in rows:
        table.add_row(*row)
    is_bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    console = Console(markup=False, highlight=False, width=None if is_bounded else _WIDEST)
    with console.capture() as drawn:
        console.print(table)
    for line in drawn.get().splitlines():
        typer.echo(line.rstrip())
