"""`metronome serve`: hold live calls on the beat of a profile.

Knows:   the options, and what is shown in a terminal.
Ignores: how calls are held. Heavy imports wait until the command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..profile import Profile


def serve(
    *,
    profile: Annotated[str, typer.Option(help="A built-in profile, or a path ending in .toml.")] = "laptop",
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 for any free one.")] = None,
    policy: Annotated[str | None, typer.Option(help="Retention: window, unbounded or recycle.")] = None,
    window: Annotated[str | None, typer.Option(help='W in tokens, or in seconds as "20 s".')] = None,
    sinks: Annotated[str | None, typer.Option(help='S in tokens, or "header".')] = None,
    positions: Annotated[str | None, typer.Option(help="anchored or absolute.")] = None,
    blocks: Annotated[int | None, typer.Option(help="Blocks in the KV pool.")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="Most calls at a time.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all sampling.")] = None,
    out: Annotated[Path, typer.Option(help="Where the run's folder is made.")] = Path("runs"),
    record: Annotated[bool, typer.Option(help="Write the run's folder.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Say where we are as one JSON line.")] = False,
) -> None:
    """Take live calls over WebSocket at /v1/realtime, until Ctrl-C.

    \b
    Examples:
      metronome serve
      metronome serve --profile laptop-text --port 0 --json
      metronome serve --policy unbounded --blocks 64
    """
    from ..profile import load_profile

    asked = {
        "server.host": host,
        "server.port": port,
        "window.policy": policy,
        "window.window": _number(window),
        "window.sinks": _number(sinks),
        "window.positions": positions,
        "pool.blocks": blocks,
        "admission.max_sessions": max_sessions,
        "run.seed": seed,
    }
    overrides = {key: value for key, value in asked.items() if value is not None}
    held = _run(load_profile(profile, overrides), out if record else None, as_json)
    raise typer.Exit(0 if held else 1)


def _run(profile: Profile, out: Path | None, as_json: bool) -> bool:
    """Serve until stopped; whether the engine lived to the end."""
    import asyncio
    import logging

    from ..clock import SystemClock
    from ..report import new_report, run_folder
    from ..server import gateway

    logging.basicConfig(level=logging.WARNING, format="metronome: %(message)s")
    clock = SystemClock()
    with gateway.listen(profile.server.host, profile.server.port) as listener:
        url = gateway.url_of(listener)
        folder = run_folder(out, "serve", profile.name, clock) if out else None
        report = new_report("serve", profile, clock)
        try:
            link = asyncio.run(
                gateway.serve(
                    profile, listener, folder, clock, lambda: _announce(profile, url, folder, as_json)
                )
            )
        finally:
            _drop_if_empty(folder)
    report.held = link.state != "engine_dead"
    report.results = {"url": url, "calls": link.calls, "refused": dict(link.refused)}
    if folder and folder.exists():
        report.save(folder)
    return report.held


def _announce(profile: Profile, url: str, folder: Path | None, as_json: bool) -> None:
    where = f"{url.replace('http', 'ws', 1)}/v1/realtime"
    most, period = profile.admission.max_sessions, profile.beat.frame_s
    kept = f"; recording in {folder}" if folder else ""
    typer.echo(
        f"metronome: {profile.name} is ready at {where}, up to {most} calls, a beat every {period:g} s{kept}",
        err=True,
    )
    if as_json:
        typer.echo(json.dumps({"url": url, "run": str(folder) if folder else None}))


def _drop_if_empty(folder: Path | None) -> None:
    """A server that never came up leaves no folder behind."""
    if folder and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _number(text: str | None) -> int | str | None:
    """A count as a number; anything else as it stands, for the profile to judge."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else text
