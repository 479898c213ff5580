"""Which tables a report has, by the command that made it.

Knows:   every command that reports, and who makes its tables.
Ignores: what is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..report import Report
from .capacity import capacity_tables
from .fit import fit_tables
from .quality import quality_tables
from .serve import serve_tables
from .simulate import simulate_tables
from .sinks import sinks_tables
from .tables import Table, demo_tables, load_tables, search_tables

_MAKERS: Mapping[str, Callable[[Mapping[str, Any]], list[Table]]] = {
    "demo": demo_tables,
    "load": load_tables,
    "find-n": search_tables,
    "serve": serve_tables,
    "probe-quality": quality_tables,
    "probe-sinks": sinks_tables,
    "fit-collapse-model": fit_tables,
    "fit-capacity": capacity_tables,
    "simulate": simulate_tables,
}


def tables(report: Report) -> list[Table]:
    """What a report says, the answer first. A report of another command has no tables here."""
    make = _MAKERS.get(report.command)
    return make(report.results) if make else []
