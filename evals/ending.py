"""How an eval with limits ends: its report, its limits on the screen, its exit code.

Knows:   rows of limits with `held`, where reports are kept.
Ignores: what was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from metronome_cli.report import Report


def limit(name: str, asked: object, measured: float, held: bool) -> dict[str, Any]:
    """One row of a report's limits."""
    return {"name": name, "limit": asked, "measured": measured, "held": held}


def save(report: Report, limits: list[dict[str, Any]], out: Path) -> None:
    """Keep the report in `out`; it was held when every limit was."""
    report.results["limits"] = limits
    report.held = all(row["held"] for row in limits)
    out.mkdir(parents=True, exist_ok=True)
    report.save(out)


def end(report: Report) -> None:
    """Show the limits, and exit with 0 when they were held, else with 3."""
    for row in report.results["limits"]:
        print(row)
    raise SystemExit(0 if report.held else 3)
