"""What a run must keep to be held, and what it came to, in one line.

Knows:   the `results` of one load run.
Ignores: records, and how anything is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..tail import Cuts, end_of
from .figures import tail

# As with p99, one frame in a hundred may fail its session without the run failing its callers.
CADENCE = 0.99
FRESHNESS = "freshness to the last token (s)"
JUDGED_BY_SPEECH = "first token after speech (s)"

Limit = Mapping[str, Any]


def limits(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run must keep to be held, and what it measured; `held` is None where that was not possible.

    Of a time, `end` says what is held to the limit: "p99", or "max" of too few values (`n`) for one.
    """
    calls, frames = found["calls"], found["frames"]
    rows = [
        _limit("calls refused", 0, sum(calls["refused"].values())),
        _limit("calls lost", 0, calls["lost"]),
    ]
    if not frames["closed"] and found["offered"]["budget_s"]:
        return [*rows, _time_limit(JUDGED_BY_SPEECH, found["budget_s"], found["after_speech_s"])]
    fresh, quiet = found["freshness"], found["silence_at_s"]
    return [
        *rows,
        _time_limit(FRESHNESS, found["budget_s"], fresh and fresh["last_s"]),
        {
            "name": "cadence (frames delivered / due)",
            "limit": CADENCE,
            "measured": frames["cadence"],
            "held": None if frames["cadence"] is None else frames["cadence"] >= CADENCE,
        },
        {
            "name": "moment of silence (s)",
            "limit": "none",
            "measured": quiet,
            "held": quiet is None if frames["closed"] else None,
        },
    ]


def held(found: Mapping[str, Any]) -> bool:
    """Whether every limit was kept; a limit that could not be measured was not."""
    return all(limit["held"] for limit in found["limits"])


def missed(found: Mapping[str, Any]) -> list[str]:
    """Each limit that was missed, with what was measured; those that could not be measured are left out."""
    return [in_words(limit) for limit in found["limits"] if limit["held"] is False]


def in_words(limit: Limit) -> str:
    """A limit and what was measured, such as "freshness to the last token 2.721 of 2 s (max of 14)"."""
    name, measured = limit["name"].split(" (")[0], limit["measured"]
    if "end" in limit:
        return f"{name} {measured:.3f} of {limit['limit']:g} s ({limit['end']} of {limit['n']})"
    if limit["limit"] == CADENCE:
        return f"{name} {100 * measured:.1f} of {100 * CADENCE:g} %"
    if limit["limit"] == "none":
        return "never silent" if measured is None else f"silent from {measured:.1f} s on"
    return f"{measured} {name}"


def verdict(found: Mapping[str, Any]) -> str:
    """What a run came to; of one that missed a limit also by what, and what to try."""
    if short := missed(found):
        return f"Missed: {'; '.join(short)}. {_try(found)}"
    unknown = [limit["name"].split(" (")[0] for limit in found["limits"] if limit["held"] is None]
    if unknown:
        return f"Not measured: {', '.join(unknown)}."
    return f"Held: {', '.join(in_words(limit) for limit in found['limits'][2:])}."


def _try(found: Mapping[str, Any]) -> str:
    """What went wrong, as far as a caller can know, and what may mend it."""
    calls, frames, beats = found["calls"], found["frames"], found["beat_s"]
    if calls["refused"]:
        why = ", ".join(calls["refused"])
        took = f"The server let in {calls['opened']} of {calls['dialled']} calls ({why})"
        return f"{took}: try fewer, or let it take more."
    if calls["lost"]:
        return "Lines went dead: its log, or the notes here, say why."
    if frames["stalled"]:
        return (
            "The pool was full: try fewer calls, a window for each (serve --policy window), or more --blocks."
        )
    if beats and found["frame_s"] and tail(beats) > found["frame_s"]:
        took = f"Beats took {tail(beats):.1f} of {found['frame_s']:g} s"
        return f"{took}: try fewer calls, or end other programs where the server runs."
    return "Try fewer calls; and see our own packet lag, which is no doing of the server's."


def _limit(name: str, limit: float | None, measured: float | None) -> dict[str, Any]:
    fits = None if limit is None or measured is None else measured <= limit
    return {"name": name, "limit": limit, "measured": measured, "held": fits}


def _time_limit(name: str, limit: float | None, found: Cuts | None) -> dict[str, Any]:
    """A limit on p99, with how many values it is of; where they are too few, the largest is held to it."""
    if found is None:
        return _limit(name, limit, None)
    return {**_limit(name, limit, tail(found)), "end": end_of(found), "n": found["n"]}
