"""What a load run found: percentiles, counts, the moment of silence, and whether its limits held.

Knows:   the records and calls of one run.
Ignores: how they came about, and how they are shown. Everything here is arithmetic on records.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from ..stats import percentiles
from ..trace import FrameRecord, TickRecord
from .call import Call
from .runner import Run

BUCKET_S = 10.0

# A healthy frame is closed within one period of its due time, and the next is due one period later: when the
# last one alive lies further back than this many periods, the server has gone quiet.
_QUIET_PERIODS = 3.0


def summarise(run: Run) -> dict[str, Any]:
    """The `results` of a load report. `_s` means seconds, `_at_s` seconds from the run's start."""
    elapsed = run.end - run.start
    found: dict[str, Any] = {
        "offered": {
            "url": run.plan.url,
            "sessions": run.plan.sessions,
            "duration_s": run.plan.duration_s,
            "spread_s": run.plan.spread_s,
            "seed": run.plan.seed,
            "clips": [clip.name for clip in run.clips],
        },
        "started": run.start,
        "elapsed_s": elapsed,
        "stopped_early": run.stopped,
        "frame_s": run.period_s,
        "calls": _calls(run.calls),
        "frames": _frames(run),
        "skipped_beats": sum(tick.skipped for tick in run.ticks),
        "freshness": freshness(run.frames),
        "after_speech_s": percentiles([wait for call in run.calls for wait in waits_after_speech(call)]),
        "client": _client(run, elapsed),
        "silence_at_s": silence(run.frames, run.end, run.period_s, run.start),
        "buckets": buckets(run.frames, run.ticks, run.start, elapsed),
        "sessions": _sessions(run),
    }
    found["limits"] = limits(found)
    return found


def freshness(frames: Iterable[FrameRecord]) -> dict[str, Any] | None:
    """Seconds from a frame's due time to its first and last token; None when no frame brought one.

    `first_less_lag` takes out what the caller itself was late with the frame's last sample.
    """
    spoken = [frame for frame in frames if frame.first is not None and frame.last is not None]
    if not spoken:
        return None
    return {
        "first_s": percentiles([f.first - f.due for f in spoken if f.first is not None]),
        "last_s": percentiles([f.last - f.due for f in spoken if f.last is not None]),
        "first_less_lag_s": percentiles([f.first - f.due - f.lag for f in spoken if f.first is not None]),
    }


def alive(frame: FrameRecord) -> bool:
    """Whether a frame did what it was to do: it brought a token, or had none to bring and was not stalled."""
    return frame.first is not None or not (frame.stalled or frame.speaking)


def silence(
    frames: Sequence[FrameRecord], end: float, period_s: float | None, start: float = 0.0
) -> float | None:
    """The first moment from which no session got anything but stalled, empty or missing frames until `end`.

    In seconds from `start`: when the first such frame was due. None while somebody is still served, and None
    for servers that tell no ticks: without due times nobody can say that a frame is missing.
    """
    if period_s is None or not frames:
        return None
    last_alive = max((frame.due for frame in frames if alive(frame)), default=None)
    if last_alive is None:
        return min(frame.due for frame in frames) - start
    if end - last_alive <= _QUIET_PERIODS * period_s:
        return None
    return min((f.due for f in frames if f.due > last_alive), default=last_alive + period_s) - start


def buckets(
    frames: Sequence[FrameRecord], ticks: Sequence[TickRecord], start: float, elapsed_s: float
) -> list[dict[str, Any]]:
    """Freshness, stalled and empty frames and pool occupancy, in steps of BUCKET_S of elapsed time."""
    # Hanging up takes some milliseconds; they are no bucket of their own.
    last = max(0, math.ceil(round(elapsed_s, 1) / BUCKET_S) - 1)
    framed: dict[int, list[FrameRecord]] = defaultdict(list)
    pool: dict[int, list[float]] = defaultdict(list)
    for frame in frames:
        framed[min(last, int((frame.due - start) // BUCKET_S))].append(frame)
    for tick in ticks:
        if tick.kv_total:
            bucket = min(last, int((tick.done - start) // BUCKET_S))
            pool[bucket].append(tick.kv_leased / tick.kv_total)
    return [
        {
            "from_s": number * BUCKET_S,
            "to_s": min((number + 1) * BUCKET_S, elapsed_s),
            "frames": len(framed[number]),
            "stalled": sum(frame.stalled for frame in framed[number]),
            "empty": sum(frame.empty for frame in framed[number]),
            "freshness": freshness(framed[number]),
            "occupancy": max(pool[number], default=None),
        }
        for number in range(last + 1)
    ]


def waits_after_speech(call: Call) -> list[float]:
    """Seconds from each end of speech to the first token after it: all that a server without ticks shows.

    It flatters a server that is still answering something older, so it never stands in for freshness.
    """
    if call.frames is None:
        return []
    tokens = call.frames.tokens
    ends = [call.frames.start + end for end in call.stream.speech_ends()]
    waits = []
    for end, following in pairwise([*ends, math.inf]):
        first = bisect_left(tokens, end)
        if first < len(tokens) and tokens[first] < following:
            waits.append(tokens[first] - end)
    return waits


def due_frames(call: Call, end: float, period_s: float) -> int:
    """Beats between a call's first tick event and its end, told or not."""
    if call.beats is None:
        return 0
    told = call.beats[1] - call.beats[0] + 1
    return told + int(((call.ended or end) - call.last_beat) // period_s)


def limits(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What a run must keep to be held, and what it measured; `held` is None where that was not possible."""
    calls, fresh, frame_s = found["calls"], found["freshness"], found["frame_s"]
    lost = calls["cut_off"] + calls["unreachable"]
    last = fresh["last_s"]["p99"] if fresh and frame_s else None
    quiet = found["silence_at_s"]
    return [
        _limit("calls refused", 0, sum(calls["refused"].values())),
        _limit("calls lost", 0, lost),
        _limit("freshness to the last token, p99 (s)", frame_s, last),
        {
            "name": "moment of silence (s)",
            "limit": "none",
            "measured": quiet,
            "held": None if frame_s is None else quiet is None,
        },
    ]


def held(found: dict[str, Any]) -> bool:
    """Whether every limit was kept; a limit that could not be measured was not."""
    return all(limit["held"] for limit in found["limits"])


def notes(found: dict[str, Any]) -> list[str]:
    """What a reader of the figures should know first."""
    said = []
    if found["stopped_early"]:
        said.append(f"ended early after {found['elapsed_s']:.1f} s, at the user's wish")
    if found["frame_s"] is None:
        said.append(
            "freshness is not measurable: the server told fewer than two ticks; see the time after speech"
        )
    elif found["freshness"] is None:
        said.append("freshness is not measurable: no frame brought a token")
    lag = found["client"]["lag_s"]
    if lag and found["frame_s"] and lag["p99"] > 0.1 * found["frame_s"]:
        said.append(
            f"the caller itself was late (packet lag p99 {lag['p99']:.3f} s): this machine is too busy to "
            "measure that server"
        )
    said += [f"{count} error events: {code}" for code, count in found["calls"]["errors"].items()]
    return said


def _limit(name: str, limit: float | None, measured: float | None) -> dict[str, Any]:
    fits = None if limit is None or measured is None else measured <= limit
    return {"name": name, "limit": limit, "measured": measured, "held": fits}


def _calls(calls: Sequence[Call]) -> dict[str, Any]:
    fates = Counter(call.fate for call in calls)
    return {
        "opened": sum(call.frames is not None for call in calls),
        "done": fates["done"],
        "cut_off": fates["cut_off"],
        "unreachable": fates["unreachable"],
        "refused": dict(Counter(call.why for call in calls if call.fate == "refused")),
        "errors": dict(sum((call.errors for call in calls), Counter[str]())),
    }


def _frames(run: Run) -> dict[str, Any]:
    """Counts, and cadence: how many of the due frames did what they were to do."""
    due = sum(due_frames(call, run.end, run.period_s) for call in run.calls) if run.period_s else None
    delivered = sum(alive(frame) for frame in run.frames)
    return {
        "due": due,
        "closed": len(run.frames),
        "delivered": delivered,
        "spoken": sum(frame.first is not None for frame in run.frames),
        "stalled": sum(frame.stalled for frame in run.frames),
        "empty": sum(frame.empty for frame in run.frames),
        "cadence": delivered / due if due else None,
    }


def _client(run: Run, elapsed_s: float) -> dict[str, Any]:
    """This process's own lateness and load: a run with much of it measured us, not the server."""
    lags = [lag for call in run.calls if call.frames for lag in call.frames.lags]
    return {
        "packets": len(lags),
        "lag_s": percentiles(lags, (50, 99)),
        "cpu_share": run.cpu_s / elapsed_s if elapsed_s else None,
    }


def _sessions(run: Run) -> list[dict[str, Any]]:
    mine: dict[int, list[FrameRecord]] = defaultdict(list)
    for frame in run.frames:
        mine[frame.session].append(frame)
    return [_session(call, mine[call.number], run.start) for call in run.calls]


def _session(call: Call, frames: Sequence[FrameRecord], start: float) -> dict[str, Any]:
    return {
        "session": call.number,
        "server_id": call.server_id,
        "fate": call.fate,
        "why": call.why,
        "opened_at_s": call.frames.start - start if call.frames else None,
        "ended_at_s": call.ended - start if call.ended is not None else None,
        "frames": len(frames),
        "spoken": sum(frame.first is not None for frame in frames),
        "stalled": sum(frame.stalled for frame in frames),
        "speech_share": call.stream.speech_share,
        "heard": " ".join(frame.heard for frame in frames if frame.heard),
    }
