"""A live server's pool, followed by `metronome fit collapse-model`.

Knows:   how long to read before a forecast, how it is painted again, and when following ends.
Ignores: how a page is read and what is fitted; fit/ does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from .load import ended_like_interrupted
from .report import grid

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..errors import FieldError
    from ..fit.answer import Answer, Asked
    from ..fit.live import Course

_REPAINT_S = 2.0
_MOST = 1800  # readings that a forecast is made of while following: half an hour at one a second

Paint = Callable[["Answer | FieldError"], None]


def gather(url: str, engine: str, every_s: float, for_s: float, asked: Asked) -> list[Answer]:
    """Read the page for `for_s`, then forecast. What was noted meanwhile is told even if that fails."""
    from ..errors import FieldError
    from ..fit.answer import answer

    course = _course(url, engine, None)
    with _reading(for_s) as told:
        for number, _ in enumerate(course.every(every_s, for_s), 1):
            told(number * every_s)
    try:
        return [answer(course.source(), asked)]
    except FieldError:
        for note in course.notes:
            typer.echo(note, err=True)
        raise


def follow(
    url: str, engine: str, every_s: float, asked: Asked, fail_under: float | None, as_json: bool
) -> list[Answer]:
    """Forecast again and again until Ctrl-C, or until the pool will be full within `fail_under` seconds.

    The last forecast; none when following ended before there was one.
    """
    from ..errors import FieldError
    from ..fit.answer import answer

    course, latest = _course(url, engine, _MOST), None
    apart = max(1, round(_REPAINT_S / every_s))
    try:
        with ended_like_interrupted(), _painting(as_json) as paint:
            for number, _ in enumerate(course.every(every_s)):
                if number % apart:
                    continue
                try:
                    latest = answer(course.source(), asked)
                except FieldError as error:
                    paint(error)
                    continue
                paint(latest)
                if fail_under is not None and latest.left_s is not None and latest.left_s < fail_under:
                    break
    except KeyboardInterrupt:
        pass
    return [] if latest is None else [latest]


def _course(url: str, engine: str, most: int | None) -> Course:
    from ..clock import SystemClock
    from ..fit.live import Course, Page

    return Course(Page(url, SystemClock(), engine), most)


@contextmanager
def _painting(as_json: bool) -> Iterator[Paint]:
    """What shows a forecast, or why there is none yet: painted over in a terminal, else one line each."""
    from rich.console import Console
    from rich.live import Live

    console = Console(markup=False, highlight=False)
    if as_json or not console.is_terminal:
        yield lambda found: typer.echo(_line(found, as_json))
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(_board(found), refresh=True)


def _line(found: Answer | FieldError, as_json: bool) -> str:
    if isinstance(found, Exception):
        return json.dumps({"t_sat": None, "why": str(found)}) if as_json else f"no forecast yet: {found}"
    return json.dumps(found.told) if as_json else str(found.told["verdict"])


def _board(found: Answer | FieldError) -> RenderableType:
    from rich.console import Group

    from ..reporting.fit import fit_tables

    if isinstance(found, Exception):
        return _line(found, as_json=False)
    tables = map(grid, fit_tables({"fits": [found.told]}))
    return Group(*tables, _line(found, as_json=False), *found.told["notes"])


@contextmanager
def _reading(for_s: float) -> Iterator[Callable[[float], None]]:
    """A bar on standard error while a page is read; nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f} s"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=for_s)
        yield lambda seconds: progress.update(task, completed=seconds)
