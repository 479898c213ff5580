"""`metronome serve`: hold live calls on the beat of a profile.

Knows:   the options, and what is shown in a terminal.
Ignores: how calls are held. Heavy imports wait until the command runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .changes import Changes, Name, load_changed, takes_changes
from .profile import warn_of_pool
from .report import show, unsaved

if TYPE_CHECKING:
    from ..errors import MetronomeError
    from ..profile import Profile
    from ..report import Report
    from ..server.link import EngineLink


ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="METRONOME_API_KEY",
        metavar="KEY",
        help="Only who sends this key may call. Other users can see options: a file is safer.",
    ),
]


@takes_changes
def serve(
    *,
    profile: Name = "laptop",
    changes: Changes,
    api_key: ApiKey = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file of such keys, one a line.")] = None,
    out: Annotated[Path, typer.Option(help="Where the run's folder is made.")] = Path("runs"),
    record: Annotated[bool, typer.Option(help="Write the run's folder.")] = True,
    live: Annotated[bool, typer.Option(help="Show the beat, where standard error is a terminal.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Say where we are as one JSON line.")] = False,
) -> None:
    """Take live calls over WebSocket at /v1/realtime, until Ctrl-C.

    \b
    Examples:
      metronome serve
      metronome serve --profile laptop-text --port 0 --json
      metronome serve --policy unbounded --blocks 64
      metronome serve --profile moshi --model ./moshi-weights
      metronome serve --admit forecast --max-sessions 32 --no-live
    """
    from ..server.access import read_keys
    from ..server.logs import set_up_logging

    checked = load_changed(profile, changes)
    set_up_logging("metronome")
    report, failure = _run(checked, out if record else None, live, as_json, read_keys(api_key, api_key_file))
    if not as_json:
        show(report, as_json)
    if failure:
        raise failure
    raise typer.Exit(0 if report.held else 1)


def _run(
    profile: Profile, out: Path | None, live: bool, as_json: bool, keys: tuple[str, ...]
) -> tuple[Report, MetronomeError | None]:
    """Serve until stopped; the report's `held` is whether the engine and all gateways lived to the end.

    The error says why the run's folder is not whole: a full disk must not cost the answer.
    """
    import asyncio

    from ..clock import SystemClock
    from ..report import new_report, run_folder
    from ..server import gateway
    from ..server.access import warn_if_exposed
    from .live import watching

    if sys.stderr.isatty():
        typer.echo(f"metronome: {_loaded(profile)} ...", err=True)
    clock = SystemClock()
    server = profile.server
    with gateway.listen(server.host, server.port, server.gateways) as listener:
        url = gateway.url_of(listener)
        warn_if_exposed(listener.getsockname()[0], keys)
        folder = run_folder(out, "serve", profile.name, clock) if out else None
        report = new_report("serve", profile, clock)
        with watching(live) as watch:

            def up(link: EngineLink) -> None:
                _announce(profile, url, folder, as_json)
                watch(link)

            try:
                with asyncio.Runner(loop_factory=gateway.new_loop) as runner:
                    link = runner.run(gateway.serve(profile, listener, folder, clock, up, keys))
            finally:
                dropped = _drop_if_empty(folder)
    report.held = link.deaths == 0 == link.metrics.gateways_lost
    report.results = {"url": url, **link.metrics.summary()}
    if link.state == "engine_dead":
        report.notes.append("the server ended by itself: its engine was not started again (server.restarts)")
    return report, None if folder is None or dropped else _kept(report, folder, link.metrics.unrecorded)


def _kept(report: Report, folder: Path, unrecorded: str) -> MetronomeError | None:
    """Save the report; why the folder is not whole, if so. `unrecorded`: why its records are not."""
    from ..errors import MetronomeError

    report.notes += [unrecorded] if unrecorded else []
    try:
        report.save(folder)
    except OSError as error:
        return unsaved(folder, error)
    return MetronomeError(unrecorded) if unrecorded else None


def _loaded(profile: Profile) -> str:
    """What is waited for, by name."""
    from ..models.factory import weights_of

    weights = " and ".join(weights_of(profile).values())
    return f"loading {weights}" if weights else f"starting {profile.name}, whose model has no weights"


def _announce(profile: Profile, url: str, folder: Path | None, as_json: bool) -> None:
    where = f"{url.replace('http', 'ws', 1)}/v1/realtime"
    most, period = profile.admission.max_sessions, profile.beat.frame_s
    kept = f"; recording in {folder}" if folder else ""
    typer.echo(
        f"metronome: {profile.name} is ready at {where}, up to {most} calls, a beat every {period:g} s{kept}",
        err=True,
    )
    warn_of_pool(profile)
    if as_json:
        typer.echo(json.dumps({"url": url, "run": str(folder) if folder else None}))


def _drop_if_empty(folder: Path | None) -> bool:
    """A server that never came up leaves no folder behind; whether this was one."""
    if folder is None or not folder.is_dir() or any(folder.iterdir()):
        return False
    folder.rmdir()
    return True
