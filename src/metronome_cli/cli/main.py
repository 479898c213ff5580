"""`metronome`: joins the commands, and turns errors into one line and an exit code.

Knows:   which commands there are, and what an error looks like in a terminal.
Ignores: what a command does. Nothing heavy is imported here or at the top of a command's file:
         `metronome --help` must not wait for torch or numpy (tests/test_light_start.py).
"""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from ..errors import MetronomeError
from . import assets, fit, probe, profile
from .demo import demo
from .doctor import doctor
from .load import load
from .report import report
from .serve import serve
from .simulate import simulate

# Plain help: it reads the same in a pipe, in docs/cli.md and in a terminal, and "[URL]" is no markup in it.
app = typer.Typer(
    name="metronome",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"metronome {__version__}")
        raise typer.Exit()


VersionFlag = Annotated[
    bool,
    typer.Option("--version", help="Show the version and leave.", callback=_show_version, is_eager=True),
]


@app.callback()
def _metronome(version: VersionFlag = False) -> None:
    """Serve, load and probe real-time interaction models on a beat.

    \b
    Exit codes: 0 held, 1 our error, 2 wrong use, 3 measured but a limit was missed or a score
    could not be taken, 4 nobody answers at the address, 130 interrupted.
    """


for command in (demo, serve, load, simulate, report, doctor):
    app.command()(command)
app.add_typer(probe.app, name="probe")
app.add_typer(fit.app, name="fit")
app.add_typer(profile.app, name="profile")
app.add_typer(assets.app, name="assets")


def main() -> None:
    """Run the command line; ends the process with the exit code that the errors name."""
    try:
        app(prog_name="metronome")
    except MetronomeError as error:
        typer.secho(f"metronome: {' '.join(str(error).split())}", fg=typer.colors.RED, err=True)
        raise SystemExit(error.exit_code) from None
    except OSError as error:  # a full disk, a folder that vanished, a closed output: nothing of ours
        typer.secho(f"metronome: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(MetronomeError.exit_code) from None
