"""What a load run found: percentiles, counts, the moment of silence, and what a reader should know first.

Knows:   the records and calls of one run.
Ignores: how they came about, and how they are shown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..speech import RATE
from ..tail import end_of
from ..trace import FrameRecord
from .buckets import BUCKET_S, by_age, by_elapsed, width
from .call import Call
from .caller import BROKEN
from .figures import (
    Missed,
    alive,
    cuts,
    freshness,
    last_hung_up,
    missed_frames,
    silence,
    slope,
    tail,
    waits_after_speech,
)
from .limits import limits
from .over import GOING_DOWN
from .runner import Run
from .spoken import Spoken, spoken_errors

_MOMENT_S = 2.0  # lines that go dead within it went together: some are told, some have to notice


def summarise(run: Run, bucket_s: float = BUCKET_S) -> dict[str, Any]:
    """The `results` of a load report. `_s` means seconds, `_at_s` seconds from the run's start."""
    elapsed, missed = run.end - run.start, _missed(run)
    found: dict[str, Any] = {
        "offered": run.plan.settings() | {"clips": [clip.name for clip in run.clips]},
        "protocol": _protocol(run),
        "started": run.start,
        "elapsed_s": elapsed,
        "stopped_early": run.stopped,
        "doomed": run.doomed,
        "frame_s": run.period_s,
        "budget_s": run.plan.budget_s or run.period_s,
        "calls": _calls(run.calls, run.start),
        "over": run.over and {"at_s": run.over.at - run.start, "why": run.over.why},
        "frames": _frames(run, missed),
        "skipped_beats": sum(tick.skipped for tick in run.ticks),
        "beat_s": cuts([tick.done - tick.due for tick in run.ticks]),
        "window_filled": _window_filled(run),
        "freshness": freshness(run.frames),
        "slope": slope(run.frames),
        "after_speech_s": cuts([wait for call in run.calls for wait in waits_after_speech(call)]),
        "speech_share": _speech_share(run.calls),
        "sound": _sound(run),
        "cancels": _cancels(run.calls),
        "client": _client(run, elapsed),
        "silence_at_s": silence(run.frames, last_hung_up(run.calls, run.end), run.period_s, run.start),
        "buckets": by_elapsed(run.frames, run.ticks, run.start, elapsed, bucket_s, missed),
        "ages": by_age(run.frames, width(elapsed, most=12, least_s=1.0), missed),
        "sessions": _sessions(run),
    }
    found["limits"] = limits(found)
    return found


def word_errors(run: Run) -> dict[str, Any] | None:
    """Word errors of what the server heard; None where the script is unknown or nothing was told."""
    script = {clip.name: clip.text for clip in run.clips}
    mine = _by_session(run.frames)
    calls = [(call.stream, heard_by(call, mine[call.number])) for call in run.calls]
    calls = [(stream, heard) for stream, heard in calls if heard]
    if not calls or all(text is None for text in script.values()):
        return None
    from ..models.normal import normal  # takes seconds to load, and most runs have nothing to compare
    from .heard import heard_errors

    return heard_errors(calls, script, normal)


def spoken_by(run: Run) -> list[Spoken]:
    """The speech that was kept, of calls that got any."""
    return [call.spoken for call in run.calls if call.spoken and call.spoken.pcm]


def reply_errors(run: Run, listen: Callable[[list[NDArray[np.float32]]], list[str]]) -> dict[str, Any] | None:
    """Word errors of what a listener hears of the kept speech against its transcripts; None without any.

    `listen` writes down clips of mono float32 at speech.RATE.
    """
    spoken = spoken_by(run)
    if not spoken:
        return None
    from ..models.normal import normal

    return spoken_errors(spoken, listen([one.samples() for one in spoken]), normal)


def notes(found: dict[str, Any]) -> list[str]:
    """What a reader of the figures should know first."""
    said = [*_ends(found), *_losses(found["calls"]), *_unmeasured(found), *_own_doing(found)]
    return said + _errors(found["calls"])


def _errors(calls: dict[str, Any]) -> list[str]:
    said = []
    for code, count in calls["errors"].items():
        first, last = (f"{at:.1f}" for at in calls["errors_at_s"][code])
        when = f"after {first} s" if first == last else f"between {first} and {last} s"
        said.append(f"{count} error event{'s' * (count > 1)}: {code}, {when}")
    return said


def _ends(found: dict[str, Any]) -> list[str]:
    elapsed = f"ended early after {found['elapsed_s']:.1f} s"
    if found["stopped_early"]:
        return [f"interrupted: {elapsed}"]
    if found["doomed"]:
        return [f"{elapsed}: {found['doomed']}"]
    late = found["offered"]["sessions"] - found["calls"]["dialled"]
    if over := found["over"]:
        unmade = f"; {late} calls were not made" if late > 0 else ""
        return [f"nobody dialled any more after {over['at_s']:.1f} s: {over['why']}{unmade}"]
    return [f"{late} calls would have come after the end of the run"] if late > 0 else []


def _losses(calls: dict[str, Any]) -> list[str]:
    """A server that went away, and one that asks to be called again after the end."""
    said = []
    if lost := calls["losses"]:
        count, why = calls["cut_off"], "; ".join(f"{count} {why}" for why, count in lost["why"].items())
        at = f"after {lost['first_at_s']:.1f} s"
        gone = f"; {calls['unreachable']} dials found nobody" if calls["unreachable"] else ""
        if lost["went"]:
            said.append(f"{lost['went']} went away {at}: all {count} calls were cut off{gone} ({why})")
        else:
            said.append(f"{count} calls were cut off, the first {at}{gone} ({why})")
    if calls["out_of_time"]:
        asked = calls["retry_after_s"]
        told = f" (the server said up to {asked:g} s, twice as long each time)" if asked else ""
        said.append(
            f"{calls['out_of_time']} refused calls were not dialled again: the run would have ended before "
            f"their time came{told}; a longer --duration lets them try"
        )
    return said


def _unmeasured(found: dict[str, Any]) -> list[str]:
    if not found["frames"]["closed"]:
        judged = "judged by" if found["offered"]["budget_s"] else "give a --budget to judge by"
        return [
            f"freshness is not measurable: the server (protocol {found['protocol'] or '?'}) told no tick; "
            f"{judged} the time after speech instead"
        ]
    if found["frame_s"] is None:
        return ["freshness is not judged: the server told fewer than two ticks"]
    if found["freshness"]:
        return []
    return [
        "freshness is not measurable: no frame brought a token; give the calls more time, or pauses to be "
        "answered in (--talk, --silence), and see that the server hears speech: model.kind text and null "
        'answer none, and are measured with model.mode = "free", in which every frame brings tokens'
    ]


def _own_doing(found: dict[str, Any]) -> list[str]:
    said, lag, frame_s = [], found["client"]["lag_s"], found["frame_s"]
    if lag and frame_s and tail(lag) > 0.1 * frame_s:
        said.append(
            f"the caller itself was late (packet lag {end_of(lag)} {tail(lag):.3f} s): this machine is too "
            "busy to measure that server"
        )
    if found["offered"]["cancel_rate"] and not found["cancels"]["sent"]:
        said.append("no reply was cancelled: none was begun, or this protocol has no way to")
    return said


def _protocol(run: Run) -> str:
    return next((call.protocol for call in run.calls if call.protocol), "")


def _calls(calls: Sequence[Call], start: float) -> dict[str, Any]:
    fates = Counter(call.fate for call in calls)
    return {
        "dialled": len(calls),
        "opened": sum(call.frames is not None for call in calls),
        "done": fates["done"],
        "vanished": fates["vanished"],
        "cut_off": fates["cut_off"],
        "unreachable": fates["unreachable"],
        "lost": fates["cut_off"] + fates["unreachable"],
        "losses": _lost(calls, start),
        "refused": dict(Counter(call.why for call in calls if call.fate == "refused")),
        **_redials(calls),
        "errors": dict(sum((call.errors for call in calls), Counter[str]())),
        "errors_at_s": _errors_at(calls, start),
    }


def _errors_at(calls: Sequence[Call], start: float) -> dict[str, tuple[float, float]]:
    """When the first and the last `error` event of each code came."""
    spans: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        for code, span in call.errors_at.items():
            spans[code] += span
    return {code: (min(span) - start, max(span) - start) for code, span in spans.items()}


def _lost(calls: Sequence[Call], start: float) -> dict[str, Any] | None:
    """When lines went dead and why. `went`: who went away with them, where none that was open was spared."""
    ends = {call: call.ended - start for call in calls if call.frames and call.ended is not None}
    cut = [call for call in ends if call.fate == "cut_off"]
    if not cut:
        return None
    first, last = (of(ends[call] for call in cut) for of in (min, max))
    spared = any(at > first and call.fate != "cut_off" for call, at in ends.items())
    went = "" if spared or last - first > _MOMENT_S else _who_went(cut)
    why = dict(Counter(call.why for call in cut).most_common())
    return {"first_at_s": first, "last_at_s": last, "went": went, "why": why}


def _who_went(cut: Sequence[Call]) -> str:
    """Whose end it was that ended these calls; "" where each may have had an end of its own."""
    if all(call.errors["engine_dead"] for call in cut):
        return "the server's engine"
    if all(call.errors["engine_hung"] for call in cut):
        return "the server's engine, which had stopped answering,"
    broken = all(call.why == BROKEN or any(str(code) in call.why for code in GOING_DOWN) for call in cut)
    return "the server" if broken else ""


def _redials(calls: Sequence[Call]) -> dict[str, Any]:
    """What the server said no to, attempt by attempt, and what dialling again came to."""
    refusals = [no for call in calls for no in call.refusals]
    waits = [no.retry_after_s for no in refusals if no.retry_after_s is not None]
    late = [call.waited_s for call in calls if call.refusals and call.waited_s is not None]
    return {
        "refusals": dict(Counter(no.reason for no in refusals)),
        "retry_after_s": max(waits, default=None),
        "redials": sum(call.attempts - 1 for call in calls if call.attempts),
        "let_in_late_s": cuts(late, (50, 90)),
        "out_of_time": sum(call.out_of_time for call in calls),
    }


def _missed(run: Run) -> list[Missed] | None:
    """Frames that were never told; None where nobody can say when one was due."""
    if not (run.period_s and run.frames):
        return None
    mine = _by_session(run.frames)
    return [
        missed
        for call in run.calls
        for missed in missed_frames(call, mine[call.number], run.end, run.period_s)
    ]


def _frames(run: Run, missed: Sequence[Missed] | None) -> dict[str, Any]:
    """Counts, and cadence: how many of the due frames did what they were to do."""
    due = None if missed is None else len(run.frames) + len(missed)
    delivered = sum(alive(frame) for frame in run.frames)
    return {
        "due": due,
        "closed": len(run.frames),
        "missing": None if missed is None else len(missed),
        "delivered": delivered,
        "spoken": sum(frame.first is not None for frame in run.frames),
        "stalled": sum(frame.stalled for frame in run.frames),
        "empty": sum(frame.empty for frame in run.frames),
        "cadence": delivered / due if due else None,
    }


def _window_filled(run: Run) -> float | None:
    """The middle call's share of its window that was filled at its end; None where no window was told."""
    tokens: Counter[int] = Counter()
    for frame in run.frames:
        tokens[frame.session] += frame.tokens_in + frame.tokens_out
    shares = [
        min(1.0, tokens[call.number] / call.window) for call in run.calls if call.window and call.frames
    ]
    return median(shares) if shares else None


def _sound(run: Run) -> dict[str, float] | None:
    """Seconds of speech given back, and per second sent: the cadence of a model that speaks all the time."""
    back = sum(call.sound_s for call in run.calls)
    sent = sum(call.stream.sent / RATE for call in run.calls if call.sound_s)
    audible = sum(call.audible_s for call in run.calls)
    return {"back_s": back, "audible_s": audible, "share": back / sent} if sent else None


def _speech_share(calls: Sequence[Call]) -> float | None:
    """How much of what callers sent was speech: a figure of capacity means little without it."""
    sent = sum(call.stream.sent for call in calls)
    return sum(call.stream.speech_share * call.stream.sent for call in calls) / sent if sent else None


def _cancels(calls: Sequence[Call]) -> dict[str, Any]:
    """Cancels sent, and how long after each one its reply still went on."""
    cancels = [cancel for call in calls for cancel in call.cancels.values()]
    late = [cancel.last - cancel.at for cancel in cancels if cancel.last is not None]
    return {"sent": len(cancels), "went_on": len(late), "went_on_s": cuts(late)}


def _client(run: Run, elapsed_s: float) -> dict[str, Any]:
    """This process's own lateness and load: a run with much of it measured us, not the server."""
    lags = [lag for call in run.calls if call.frames for lag in call.frames.lags]
    return {
        "packets": len(lags),
        "lag_s": cuts(lags, (50, 99)),
        "cpu_share": run.cpu_s / elapsed_s if elapsed_s else None,
    }


def _sessions(run: Run) -> list[dict[str, Any]]:
    mine = _by_session(run.frames)
    return [_session(call, mine[call.number], run.start) for call in run.calls]


def _by_session(frames: Sequence[FrameRecord]) -> dict[int, list[FrameRecord]]:
    mine: dict[int, list[FrameRecord]] = defaultdict(list)
    for frame in frames:
        mine[frame.session].append(frame)
    return mine


def _session(call: Call, frames: Sequence[FrameRecord], start: float) -> dict[str, Any]:
    return {
        "session": call.number,
        "server_id": call.server_id,
        "fate": call.fate,
        "why": call.why,
        "attempts": call.attempts,
        "waited_s": call.waited_s,
        "opened_at_s": call.frames.start - start if call.frames else None,
        "ended_at_s": call.ended - start if call.ended is not None else None,
        "frames": len(frames),
        "spoken": sum(frame.first is not None for frame in frames),
        "stalled": sum(frame.stalled for frame in frames),
        "speech_share": call.stream.speech_share,
        "heard": heard_by(call, frames),
    }


def heard_by(call: Call, frames: Sequence[FrameRecord]) -> str:
    """All that the server says it understood of a call."""
    return "".join(call.heard).strip() or " ".join(frame.heard for frame in frames if frame.heard)
