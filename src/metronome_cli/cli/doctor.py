"""`metronome doctor`: whether this machine can do what a profile wants, and what each lack costs.

Knows:   the command's options, and how findings look in a terminal and as JSON.
Ignores: what is looked at (machine.py) and what it means (checks.py).
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .changes import Changes, Name, load_changed, takes_changes
from .console import print_table

if TYPE_CHECKING:
    from ..profile import Profile
    from .checks import Finding


@takes_changes
def doctor(
    *,
    profile: Name = "laptop",
    deep: Annotated[bool, typer.Option("--deep", help="Load its model too, and time a full tick.")] = False,
    out: Annotated[Path, typer.Option(help="Where run folders would be made.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    changes: Changes,
) -> None:
    """Look at this machine, and say what each found problem costs and how to mend it.

    It looks for what `serve` needs with the same options. Exit code 0 when nothing is wrong, 3 when something
    costs quality or speed.

    \b
    Examples:
      metronome doctor
      metronome doctor --profile laptop-text --deep
      metronome doctor --profile moshi --model ./moshi-weights --device cuda
    """
    findings = _look(load_changed(profile, changes), out, deep)
    if as_json:
        held = all(finding.fine for finding in findings)
        typer.echo(json.dumps({"held": held, "findings": [_as_json(finding) for finding in findings]}))
    else:
        _print(findings)
    raise typer.Exit(0 if all(finding.fine for finding in findings) else 3)


def _look(profile: Profile, out: Path, deep: bool) -> list[Finding]:
    from ..clock import SystemClock
    from ..models.assets import ASSETS, cache_folder, here
    from .checks import check_assets, check_machine, check_model, check_port, check_tick
    from .machine import look

    clock = SystemClock()
    findings = [*check_machine(look(cache_folder(), out, clock), profile), check_port(profile)]
    findings += check_assets(profile)
    # To read a checkpoint's files takes torch, and that takes seconds: only where there is one to be read.
    if deep or (here(profile.model.thinker) and profile.model.thinker not in ASSETS):
        findings.append(check_model(profile))
    return [*findings, check_tick(profile, clock)] if deep else findings


def _as_json(finding: Finding) -> dict[str, object]:
    return asdict(finding) | {"fine": finding.fine}


def _print(findings: list[Finding]) -> None:
    """What was found, and then a line for each problem, in words that can be copied."""
    rows = [("ok" if finding.fine else "!", finding.what, finding.found) for finding in findings]
    print_table(("", "what", "found"), rows, whole=("what",))
    problems = [finding for finding in findings if not finding.fine]
    for finding in problems:
        typer.echo(f"{finding.what}: {finding.found}. Costs: {finding.costs}. Mend: {finding.mend}")
    if not problems:
        typer.echo("nothing is wrong")
