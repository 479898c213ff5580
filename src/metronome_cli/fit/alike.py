"""Whether runs are of one set-up, so that their ticks may be fitted together.

Knows:   the report that lies beside a trace, and which fields of it a tick's cost depends on.
Ignores: ticks, and what is fitted to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import FieldError
from ..report import read_report

# Sections of a profile. Admission, ports, seeds and the number of blocks change no tick's cost.
_COSTLY = ("model", "beat", "window", "pool", "run")
_FREE = ("pool.blocks", "run.seed")
_SHOWN = 3  # fields that differ


def check_alike(traces: Iterable[Path]) -> list[Path]:
    """FieldError that names two runs of different set-ups, with what differs. The traces beside which
    nothing tells of which they are."""
    first: tuple[Path, Mapping[str, Any]] | None = None
    untold = []
    for trace in traces:
        setup = _setup(trace.parent)
        if setup is None:
            untold.append(trace)
        elif first is None:
            first = (trace, setup)
        elif setup != first[1]:
            raise FieldError("trace", str(trace), _difference(setup, *first))
    return untold


def _difference(setup: Mapping[str, Any], first: Path, other: Mapping[str, Any]) -> str:
    differing = [name for name in sorted({*setup, *other}) if setup.get(name) != other.get(name)]
    told = [f"{name} {setup.get(name)!r} and {other.get(name)!r}" for name in differing[:_SHOWN]]
    rest = f" and {len(differing) - _SHOWN} more fields" if len(differing) > _SHOWN else ""
    cure = "name only runs of one set-up (a pattern takes all that it fits)"
    return f"is of another set-up than {first} ({'; '.join(told)}{rest}): {cure}"


def _setup(folder: Path) -> dict[str, Any] | None:
    """What a tick's cost depends on, by field; None where no report tells it (a load is not told either)."""
    try:
        report = read_report(folder)
    except FieldError:
        return None
    if not report.profile:
        return None
    sections = {name: report.profile.get(name) for name in _COSTLY}
    found = {
        f"{name}.{key}": value
        for name, section in sections.items()
        for key, value in (section.items() if isinstance(section, dict) else ())
    }
    found |= {f"device.{key}": value for key, value in report.device.items()}
    return {name: value for name, value in found.items() if name not in _FREE}
