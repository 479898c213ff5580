"""What `metronome fit capacity` says: a plain document, a sentence, notes, the parts of a picture.

Knows:   a plan for a device, the ticks behind it, and the names in the document.
Ignores: how it was made, where ticks came from, tables, drawing, terminals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import to_builtins

from ..runtime.cost import HELD_OUT
from .capacity import Asked, Capacity
from .ticks import Ticks

_FULL = 0.7  # of what is reserved: a full window holds more, short of the most that one frame can bring
_MOST_DRAWN = 600  # ticks


def told(capacity: Capacity, asked: Asked) -> dict[str, Any]:
    """The whole answer as a plain document."""
    held_out = [
        {
            "n": held.n,
            "ticks": held.ticks,
            "p50_s": held.p50_s,
            "predicted_p50_s": held.predicted_p50_s,
            "p50_error": held.errors[0],
            "p95_s": held.p95_s,
            "predicted_p95_s": held.predicted_p95_s,
            "p95_error": held.errors[1],
        }
        for held in capacity.held_out
    ]
    of = capacity.of
    return {
        "n": capacity.n,
        "binds": capacity.binds,
        "deadline": {"estimate": capacity.deadline_sessions, "low": capacity.low, "high": capacity.high},
        "memory_sessions": capacity.memory_sessions,
        "budget_s": capacity.budget_s,
        "margin": asked.margin,
        "limit_s": capacity.limit_s,
        "percentile": asked.percentile,
        "level": asked.level,
        "worst_error": capacity.worst,
        "most_error": HELD_OUT,
        "held_out": held_out,
        "cost": to_builtins(capacity.cost),
        "per_session": {
            "blocks": float(of.blocks),
            "tokens_in": float(of.tokens_in),
            "tokens_out": float(of.tokens_out),
        },
    }


def verdict(answer: dict[str, Any]) -> str:
    """The document in words."""
    at, tested = answer["deadline"], answer["held_out"]
    why = {
        "deadline": f"the {answer['percentile']:g}th percentile of ticks reaches {answer['limit_s']:.3g} s"
    }
    why["memory"] = f"the pool is promised; the deadline would take {at['estimate']}"
    parts = [f"{answer['n']} sessions fit, then {why[answer['binds']]}"]
    if answer["binds"] == "deadline":
        parts[0] += f" ({100 * answer['level']:g} % interval {at['low']} to {at['high']})"
    parts.append(f"each of {len(tested)} N told from the others within {100 * answer['worst_error']:.1f} %")
    return "; ".join(parts) + "."


def notes(answer: dict[str, Any], ticks: Ticks) -> list[str]:
    """What a reader should know before relying on it."""
    found = [
        f"the deadline's figure is for p{answer['percentile']:g} of ticks, with {100 * answer['margin']:g} % "
        "of the budget left free; `fit collapse-model` lets the median beat take all of it, and tells more"
    ]
    most = int(ticks.sessions_T.max())
    if ticks.untold:
        found.append(
            f"nothing beside {len(ticks.untold)} of the traces tells their profile, {ticks.untold[0]} first: "
            "all must be of one"
        )
    if answer["n"] > 2 * most:
        found.append(f"{answer['n']} is more than twice the {most} sessions that were measured")
    if answer["memory_sessions"] is None:
        found.append(
            "no memory ceiling: the calls have no bound (see fit collapse-model), the pools differ, or the "
            "traces are of a load, which is told no promise"
        )
    elif (share := ticks.blocks_T.sum() / ticks.reserved_T.sum()) < _FULL:
        found.append(
            f"calls held {100 * share:.0f} % of what they reserve: ticks of full windows take longer"
        )
    return found


def drawn(ticks: Ticks, capacity: Capacity, asked: Asked) -> dict[str, Any]:
    """Ticks (thinned) and the carried percentiles by N, for a picture."""
    kept = ticks.only(np.unique(np.linspace(0, len(ticks) - 1, _MOST_DRAWN).round().astype(np.int64)))
    far = max(float(ticks.sessions_T.max()), 1.15 * min(capacity.n, 3 * ticks.sessions_T.max()))
    counts = np.unique(np.linspace(1, far, 40).round().astype(int)).tolist()
    cuts = [np.percentile(capacity.of.at(n), (50, asked.percentile)).tolist() for n in counts]
    return {
        "ticks": {"sessions": kept.sessions_T.tolist(), "took_s": kept.took_T.tolist()},
        "carried": {"sessions": counts, "p50_s": [p50 for p50, _ in cuts], "cut_s": [cut for _, cut in cuts]},
    }
