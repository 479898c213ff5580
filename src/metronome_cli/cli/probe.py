"""`metronome probe`: what a window and its sinks cost, and where a checkpoint's attention lies.

Knows:   the commands, their run folders, and which parts of models/, probes/ and reporting/ they join.
Ignores: how anything is measured or drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .quality import quality
from .report import show

app = typer.Typer(no_args_is_help=True, help="Measure what a bounded cache costs a model.")
app.command()(quality)

Checkpoint = Annotated[str, typer.Option(help="What to probe: an asset, a local folder or a hub id.")]
Text = Annotated[
    Path | None, typer.Option(help="A long UTF-8 text; the asset moby-dick when left out.", dir_okay=False)
]
Tokens = Annotated[int, typer.Option(min=512, help="How long the chat is, in tokens.")]
Seed = Annotated[int, typer.Option(min=0, help="Chooses the place in the text.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report instead of tables.")]
Out = Annotated[Path, typer.Option(help="Where the run folder is made.")]

_QUESTION = "What is the capital of France?"  # any that is answered in a few tokens


@app.command()
def sinks(
    checkpoint: Checkpoint = "smollm2-135m-instruct",
    text: Text = None,
    tokens: Tokens = 2048,
    seed: Seed = 0,
    as_json: AsJson = False,
    out: Out = Path("runs"),
) -> None:
    """Show how much attention rests on the first tokens of a call, and how many are worth pinning.

    The model reads a chat header, answers one question, and reads a long text; what the text's tokens look
    at is added up by place, layer and head. Time grows with the square of --tokens.

    \b
    Examples:
      metronome probe sinks
      metronome probe sinks --checkpoint ./my-checkpoint --text book.txt --tokens 4096
    """
    from ..clock import SystemClock
    from ..report import new_report, run_folder
    from ..reporting.summary import redraw

    clock = SystemClock()
    report = new_report("probe-sinks", None, clock, seed)
    report.results = _watched(checkpoint, text, tokens, seed)
    folder = run_folder(out, report.command, Path(checkpoint).name, clock)
    report.save(folder)
    redraw(folder)
    show(report, as_json)
    typer.echo(f"run: {folder}", err=True)


def _watched(checkpoint: str, text: Path | None, tokens: int, seed: int) -> dict[str, object]:
    from ..models.assets import locate
    from ..models.attention_mass import attention_mass
    from ..probes.sinks import excerpt, results
    from ..probes.stream import read_text
    from ..profile import ModelSection

    folder, read = locate(checkpoint), excerpt(read_text(text), tokens, seed)
    with _reading(tokens) as told:
        found = attention_mass(folder, ModelSection().header, _QUESTION, read, tokens, told)
    return {"checkpoint": checkpoint, "text": str(text or "moby-dick"), **results(found)}


@contextmanager
def _reading(tokens: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error while a text is read; nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=tokens)
        yield lambda done: progress.update(task, completed=done)
