"""What must hold after either storm: nothing is left of it, and the call beside it noticed nothing.

Knows:   the results that both kinds of run bring home.
Ignores: what either did to the server, and what it checks besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOG_LINES = 40
NOT_JUDGED = "memory was not judged: the run was too short"


def after_the_storm(results: Mapping[str, Any], growth_kib: float) -> dict[str, bool]:
    """Whether each thing held, by the words for when it did not. `growth_kib`: beyond it memory leaks."""
    witness, capacity = results["witness_beside"], results["capacity_after"]
    return flat(results["growth"], growth_kib) | {
        "calls are left": capacity["live"] == 0 and capacity["free"] == capacity["max_sessions"],
        "blocks are left": capacity["kv"]["leased"] == capacity["kv"]["reserved"] == 0,
        "the engine died": results["engine_restarts"] == 0,
        "the log was flooded": len(results["log"]) <= LOG_LINES,
        "the witness's call did not last": witness["ended"] is None,
        "the witness missed a frame": witness["missing_frames"]
        == witness["empty"]
        == witness["stalled"]
        == 0,
        "the witness was told something wrong": not (
            witness["errors"] or witness["strange"] or witness["wrong_deltas"]
        ),
    }


def flat(growth: Mapping[str, Mapping[str, float] | None], limit: float) -> dict[str, bool]:
    """Flat is memory whose slope's whole interval is below the limit; else it grew, or nobody knows."""
    slopes = [slope for slope in growth.values() if slope]
    return {
        NOT_JUDGED: None not in growth.values(),
        "memory grew": all(slope["low"] < limit for slope in slopes),
        "memory may have grown: a longer run would tell": not any(
            slope["low"] < limit <= slope["high"] for slope in slopes
        ),
    }


def broken(checks: Mapping[str, bool]) -> list[str]:
    """What did not hold, in words."""
    return [fault for fault, held in checks.items() if not held]
