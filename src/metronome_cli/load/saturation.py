"""When a run cannot come out well any more, so that waiting for its end is a waste.

Knows:   the limits of a run, and how many frames it can still bring.
Ignores: what is done about it.

The rule is exact, not a guess from a trend: p99 and cadence allow one frame in a hundred to fail. Once more
have failed than a hundredth of all frames that the run can bring to its end, nothing that follows can mend
it. A refused or lost call and silence are final at once.
"""

from __future__ import annotations

from .figures import alive, silence
from .limits import CADENCE
from .runner import Run

_FINAL = ("refused", "cut_off", "unreachable")


def doomed(run: Run, now: float) -> str | None:
    """Why `run` cannot hold its limits any more; None while it can, or while nobody knows."""
    for call in run.calls:
        if call.fate in _FINAL:
            return f"a call was {call.fate.replace('_', ' ')} ({call.why})"
    budget = run.plan.budget_s or run.period_s
    if not (run.period_s and budget and run.frames):
        return None
    if silence(run.frames, now, run.period_s, run.start) is not None:
        return "every call is silent"
    bad = sum(not alive(f) or (f.last is not None and f.last - f.due > budget) for f in run.frames)
    most = run.plan.sessions * run.plan.duration_s / run.period_s
    if bad > (1 - CADENCE) * most + 1:
        return f"{bad} frames came late or not at all, of at most {most:.0f} that this run can bring"
    return None
