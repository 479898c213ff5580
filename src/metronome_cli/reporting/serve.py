"""A server's whole run as one table.

Knows:   the `results` of a serve report.
Ignores: how they were counted, files, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .tables import Table, counted, reasons, seconds, share, spread


def serve_tables(results: Mapping[str, Any]) -> list[Table]:
    """Who called, how the beat was, what the pool held. Nothing of a run that older releases recorded."""
    if "ticks" not in results:
        return []
    fresh, frames, pool, tokens = (results[key] for key in ("freshness", "frames", "kv", "tokens"))
    facts = [
        ("calls", str(results["calls"])),
        ("calls refused", reasons(results["refused"])),
        ("calls that were ever mute", str(results["mute_calls"])),
        ("calls that could not go on", str(results.get("failed_calls", 0))),
        ("beats kept / skipped", f"{results['ticks']} / {results['skipped_beats']}"),
        ("frame (s)", seconds(results["frame_s"])),
        ("tick p50 / p90 / p99 (s)", counted(results["tick_s"])),
        ("tick begun late p50 / p90 / p99 (s)", spread(results["tick_late_s"], digits=4)),
        ("freshness, first token p50 / p90 / p99 (s)", counted(fresh["first_s"])),
        ("freshness, last token p50 / p90 / p99 (s)", counted(fresh["last_s"])),
        ("frames due / stalled / empty", f"{frames['due']} / {frames['stalled']} / {frames['empty']}"),
        ("tokens in / out", f"{tokens['in']} / {tokens['out']}"),
        ("pool at its fullest", f"{share(pool['most_leased'] / pool['total'])} of {pool['total']} blocks"),
        ("engine without a beat / hung / restarted", _engine(results)),
    ]
    return [Table("Server", ("what", "figure"), tuple(facts))]


def _engine(results: Mapping[str, Any]) -> str:
    """Times that it was without a beat for long, that it was ended for it, and that it was started again."""
    counts = (results.get(f"engine_{what}", 0) for what in ("busy", "hangs", "restarts"))
    return " / ".join(map(str, counts))
