"""The beat on a machine of two cores: eight live calls of real speech, and due times that do not drift.

Run:  python -m evals.beat.run --minutes 6   (about 7 minutes; 2 cores with nothing else to do)
      python -m evals.beat.run --mode turn         (the profile's own mode: few calls speak at a time)
      python -m evals.beat.run drift --minutes 10
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.stats import percentiles, theil_sen
from metronome_cli.trace import FrameRecord, TickRecord, read_records

from ..live import serve_and_load

SLOPE_SHARE = 0.01  # of the budget, per minute of age
SPEECH_SHARE = 0.8
DRIFT_S = 1e-6  # of a due time from start + k * period: float rounding, no more


def live(options: argparse.Namespace, folder: Path) -> tuple[Profile, dict[str, Any], bool]:
    """Server and callers as processes of their own; what both sides wrote down, and whether it held."""
    settings = {
        "model.mode": options.mode,
        "run.threads": options.threads,
        "admission.max_sessions": options.sessions,
    }
    profile = load_profile("laptop", settings)
    load = _serve_and_load(profile, options, folder)
    frames = list(read_records(folder / "load" / "frames.jsonl", FrameRecord))
    ticks = list(read_records(folder / "serve" / "trace.jsonl", TickRecord))
    found = {"load": _callers(load)} | summarise(frames, ticks, profile)
    found["limits"] = limits(found, profile, load["calls"], options)
    found["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "the server's own")
    return profile, found, all(limit["held"] for limit in found["limits"])


def drift(options: argparse.Namespace, folder: Path) -> tuple[Profile, dict[str, Any], bool]:
    """A server of the null model on an 80 ms beat: where its due times lie, and how late its ticks begin."""
    profile = load_profile(
        "laptop",
        {
            "model.kind": "null",
            "model.mode": "free",
            "beat.frame_s": 0.08,
            "beat.tau": 1,
            "pool.blocks": 40 * options.sessions,
            "admission.max_sessions": options.sessions,
        },
    )
    _serve_and_load(profile, options, folder)
    ticks = list(read_records(folder / "serve" / "trace.jsonl", TickRecord))
    found = beats(ticks, profile.beat.frame_s)
    found["limits"] = [
        _limit("due times off start + k * period, most (s)", DRIFT_S, found["due_off_s"]),
        _limit("skipped beats", 0, found["skipped_beats"]),
    ]
    return profile, found, all(limit["held"] for limit in found["limits"])


def beats(ticks: Sequence[TickRecord], period_s: float) -> dict[str, Any]:
    """Due times against the first one, and each tick's lateness and length. All ticks of the run count."""
    first = ticks[0]
    off = [tick.due - (first.due + (tick.tick - first.tick) * period_s) for tick in ticks]
    return {
        "ticks": len(ticks),
        "seconds": ticks[-1].due - first.due,
        "skipped_beats": sum(tick.skipped for tick in ticks),
        "due_off_s": max(map(abs, off)),
        "late_s": percentiles([tick.start - tick.due for tick in ticks], (50, 99, 100)),
        "tick_s": percentiles([tick.done - tick.start for tick in ticks], (50, 90, 99, 100)),
    }


def summarise(frames: Sequence[FrameRecord], ticks: Sequence[TickRecord], profile: Profile) -> dict[str, Any]:
    """What callers met (their clock) and what the engine did (its own)."""
    served = [tick for tick in ticks if tick.sessions]
    spoken = [frame for frame in frames if frame.first is not None and frame.last is not None]
    fill_s = _age_when_full(frames)
    return {
        "beat": beats(served, profile.beat.frame_s),
        "frames": len(frames),
        "frames_without_their_tokens": sum(frame.tokens_out != profile.beat.tau for frame in frames),
        "stalled": sum(frame.stalled for frame in frames),
        "tokens_in_per_frame": float(np.mean([frame.tokens_in for frame in frames])),
        "freshness_first_s": percentiles([f.first - f.due for f in spoken if f.first], (50, 90, 99, 100)),
        "freshness_last_s": percentiles([f.last - f.due for f in spoken if f.last], (50, 90, 99, 100)),
        "windows_full_at_s": fill_s,
        "slope_s_per_min": {
            "all ages": _slope(spoken, 0.0),
            "full windows": _slope(spoken, fill_s),
            "full windows, one point a tick": _slope_of_ticks(spoken, fill_s),
        },
    }


def limits(
    found: dict[str, Any], profile: Profile, calls: dict[str, Any], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """What the figure asks for. In turn mode nobody owes tokens in every frame."""
    budget = profile.beat.frame_s
    slope = found["slope_s_per_min"]["full windows"]
    steepest = max(abs(slope["low"]), abs(slope["high"])) if slope else None
    fresh = found["freshness_last_s"]
    rows = [
        _limit("calls that did not last", 0, options.sessions - calls["done"]),
        _limit("skipped beats", 0, found["beat"]["skipped_beats"]),
        _limit("stalled frames", 0, found["stalled"]),
        _limit("freshness to the last token, p99 (s)", budget, fresh and fresh["p99"]),
        _limit("silence in the quietest call (share)", 1 - SPEECH_SHARE, 1 - found["load"]["speech_share"]),
    ]
    if options.mode == "turn":
        return rows
    tokens = _limit("due frames without their tokens", 0, found["frames_without_their_tokens"])
    return [*rows, tokens, _limit("|slope|, upper bound (s per minute)", SLOPE_SHARE * budget, steepest)]


def _limit(name: str, limit: float, measured: float | None) -> dict[str, Any]:
    return {
        "name": name,
        "limit": limit,
        "measured": measured,
        "held": measured is not None and measured <= limit,
    }


def _age_when_full(frames: Sequence[FrameRecord]) -> float:
    """The age at which every call holds as many blocks as it ever will, less the one that comes and goes."""
    most: dict[int, int] = {}
    for frame in frames:
        most[frame.session] = max(most.get(frame.session, 0), frame.blocks)
    return max((f.age_s for f in frames if f.blocks < most[f.session] - 1), default=0.0)


def _slope(frames: Sequence[FrameRecord], from_s: float) -> dict[str, float] | None:
    """Theil-Sen of freshness to the last token against age in minutes, with its 95 % interval."""
    return _line([(f.age_s / 60, f.last - f.due) for f in frames if f.last is not None and f.age_s > from_s])


def _slope_of_ticks(frames: Sequence[FrameRecord], from_s: float) -> dict[str, float] | None:
    """The same of each tick's median: frames of one tick are slow together, and no eight witnesses."""
    ticks: dict[int, list[tuple[float, float]]] = {}
    for frame in frames:
        if frame.last is not None and frame.age_s > from_s:
            ticks.setdefault(frame.tick, []).append((frame.age_s / 60, frame.last - frame.due))
    return _line([(float(age), float(late)) for age, late in (np.median(tick, 0) for tick in ticks.values())])


def _line(points: Sequence[tuple[float, float]]) -> dict[str, float] | None:
    found = theil_sen([x for x, _ in points], [y for _, y in points])
    return {"estimate": found.estimate, "low": found.low, "high": found.high} if found else None


def _callers(load: dict[str, Any]) -> dict[str, Any]:
    """What of the load tool's report says how much the callers themselves are to be trusted."""
    return {
        "calls": load["calls"],
        "client": load["client"],
        "speech_share": min(session["speech_share"] for session in load["sessions"]),
    }


def _serve_and_load(profile: Profile, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Results of `metronome load`; both run folders end up in `folder`."""
    load = ["--sessions", str(options.sessions), "--duration", f"{60 * options.minutes:g}s"]
    return serve_and_load(profile, options.seed, [*load, "--speech", options.speech], folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", nargs="?", choices=("live", "drift"), default="live")
    parser.add_argument("--sessions", type=int, default=8, help="calls held at once")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long")
    parser.add_argument("--threads", type=int, default=2, help="of the engine")
    parser.add_argument("--mode", choices=("free", "turn"), default="free")
    parser.add_argument("--speech", default="speech", help="a folder, or a speech asset")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    name = options.which if options.which == "drift" else options.mode
    with tempfile.TemporaryDirectory() as folder:
        measure = drift if options.which == "drift" else live
        profile, results, held = measure(options, Path(folder))
        report = new_report("eval-beat", profile, SystemClock(), options.seed)
        report.results, report.held = results, held
        target = options.out / name
        target.mkdir(parents=True, exist_ok=True)
        report.save(target)
    print(json.dumps(results, indent=2))
    raise SystemExit(0 if held else 3)


if __name__ == "__main__":
    main()
