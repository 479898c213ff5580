"""A load run as it goes on: one line on standard error, and none where nobody watches.

Knows:   rich, and what a glance at a run holds.
Ignores: how the run is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..load.runner import Glance


@contextmanager
def watching(label: str, duration_s: float) -> Iterator[Callable[[Glance], None] | None]:
    """What a run calls with each glance; None when standard error is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(label), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} s"))
    state = TextColumn("{task.fields[state]}")
    # Redrawn with each glance only: a bar that moves ten times a second costs CPU that the server may need.
    with Progress(*columns, state, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(label, total=duration_s, state="dialling")
        yield lambda glance: progress.update(
            task, completed=glance.elapsed_s, state=_line(glance), refresh=True
        )


def _line(glance: Glance) -> str:
    fresh = "-" if glance.fresh_p50_s is None else f"{glance.fresh_p50_s:.2f} s"
    refused = f", {glance.refused} refused" if glance.refused else ""
    return f"{glance.live} live, fresh p50 {fresh}, {glance.stalled} stalled{refused}"
