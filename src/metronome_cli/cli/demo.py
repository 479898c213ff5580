"""`metronome demo`: the same calls twice on the same memory, unbounded and under the window.

Knows:   the two arms, the order of things, and what the pair of them is to show.
Ignores: how calls are held, lines fitted and pictures drawn; it joins the parts that know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .assets import showing_progress
from .load import AsJson, Duration, Out, Speech, busy, ended_like_interrupted, keep, read_speech, recording
from .local_server import serving
from .progress import watching
from .report import show

if TYPE_CHECKING:
    from ..errors import MetronomeError
    from ..load.runner import Run
    from ..profile import Profile
    from ..report import Report
    from ..runtime.recorder import Recorder
    from ..speech import Clip

ARMS = ("unbounded", "window")
EARLY = 1 / 3  # of the unbounded run: all that the forecast may see
HEALTHY_S = 30.0  # in steps of 10 s, buckets.BUCKET_S
SILENCE_BETWEEN = (0.3, 0.7)  # of the unbounded run's length


def demo(
    *,
    profile: Annotated[str, typer.Option(help="A built-in profile, or a path ending in .toml.")] = "demo",
    sessions: Annotated[
        int | None,
        typer.Option(min=1, help="Calls held at once; as many as the profile admits when left out."),
    ] = None,
    duration: Duration = "90s",  # type: ignore[assignment]  # typer parses the default as it parses input
    speech: Speech = "speech",
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the profile's.")] = None,
    out: Out = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Show the collapse and the cure: real calls, first with an unbounded cache, then with the window.

    Starts a server of its own for each, holds the same paced calls on the same pool, and puts the two side by
    side: freshness over time, and the moment of silence beside the one predicted from the first third.
    Exit code 0 when the unbounded calls fell silent and the windowed ones stayed fresh to the end, else 3.

    \b
    Examples:
      metronome demo
      metronome demo --sessions 4 --duration 2m --json
    """
    from ..profile import load_profile

    overrides = {} if seed is None else {"run.seed": seed}
    chosen = load_profile(profile, overrides)
    _bring_assets(chosen, speech)
    with ended_like_interrupted():
        calls = sessions or chosen.admission.max_sessions
        found, failure = play(Pair(chosen, profile, calls, duration, read_speech(speech)), out)
    show(found, as_json)
    if failure:
        raise failure
    raise typer.Exit(0 if found.held else 3)


@dataclass(frozen=True, slots=True)
class Pair:
    """What both arms share. `source` is what the server's --profile takes."""

    profile: Profile
    source: str
    sessions: int
    duration_s: float
    clips: list[Clip]


def play(pair: Pair, out: Path) -> tuple[Report, MetronomeError | None]:
    """Both arms, into one run folder. The error says why that is not whole."""
    from ..clock import SystemClock
    from ..load import results
    from ..report import new_report

    report = new_report("demo", pair.profile, SystemClock())
    arms: dict[str, Any] = {}
    with recording(out, "demo", pair.profile.name) as (folder, recorder):
        for arm in ARMS:
            run = _hold(pair, arm, recorder)
            arms[arm] = results.summarise(run)
            report.notes += [f"{arm}: {note}" for note in (*results.notes(arms[arm]), *busy())]
            if arm == ARMS[0]:
                report.results["moment"] = moment(run, arms[arm]["silence_at_s"])
            if run.stopped:
                break
    report.results |= {"arms": arms, "limits": limits(arms)}
    report.held = all(limit["held"] for limit in report.results["limits"])
    report.results["verdict"] = verdict(report.results)
    return report, keep(report, folder, recorder.failure)


def _hold(pair: Pair, arm: str, recorder: Recorder) -> Run:
    from ..clock import SystemClock
    from ..load.runner import Plan, run_load

    profile, calls, length = pair.profile, pair.sessions, pair.duration_s
    typer.echo(f"{arm}: starting a server, then {calls} calls for {length:g} s", err=True)
    options = ["--no-record", "--profile", pair.source, "--policy", arm, "--seed", str(profile.run.seed)]
    options += ["--max-sessions", str(max(calls, profile.admission.max_sessions))]
    with serving(options) as url, watching(arm, length) as watch:
        plan = Plan(url, calls, length, profile.run.seed, profile.beat.frame_s, arm)
        return run_load(plan, pair.clips, SystemClock(), recorder, watch)


def moment(run: Run, measured_s: float | None) -> dict[str, Any]:
    """The moment of silence as measured, beside the one that the run's first third foretells."""
    from ..errors import FieldError
    from ..fit.collapse import before, fit_line

    early = EARLY * (run.end - run.start)
    seconds = [tick.done - run.start for tick in run.ticks]
    occupancy = [tick.kv_leased / tick.kv_total for tick in run.ticks]
    found: dict[str, Any] = {"measured_s": measured_s, "fitted_until_s": early}
    try:
        line = fit_line(*before(seconds, occupancy, early))
    except FieldError as error:
        return found | {"predicted_s": None, "error_share": None, "line": None, "why": str(error)}
    off = None if measured_s is None else line.t_sat / measured_s - 1
    fitted = {"rho0": line.rho0, "rate_per_s": line.rate, "points": line.points}
    return found | {"predicted_s": line.t_sat, "error_share": off, "line": fitted}


def limits(arms: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the pair is to show: health, then silence without the bound; none of it with the bound."""
    free = arms["unbounded"]
    healthy_s = _healthy_s(free)
    share = None if free["silence_at_s"] is None else free["silence_at_s"] / free["elapsed_s"]
    low, high = SILENCE_BETWEEN
    shown = [
        {
            "name": "unbounded: answered in time at first, for (s)",
            "limit": f"{HEALTHY_S:g} or more",
            "measured": round(healthy_s),
            "held": healthy_s >= HEALTHY_S,
        },
        {
            "name": "unbounded: silent from, share of the run",
            "limit": f"{low} to {high}",
            "measured": share,
            "held": share is not None and low <= share <= high,
        },
    ]
    if "window" not in arms:
        return [*shown, {"name": "window: played", "limit": "yes", "measured": "no", "held": False}]
    window = arms["window"]
    dry = window["frames"]["closed"] - window["frames"]["delivered"]
    # A run has some hundred frames, so their p99 is one hiccup of the machine: it is shown, not judged.
    first = window["freshness"] and window["freshness"]["first_s"]["p90"]
    frame_s = window["frame_s"]
    judged = [limit for limit in window["limits"] if not limit["name"].startswith(("freshness", "cadence"))]
    return [
        *shown,
        *({**limit, "name": f"window: {limit['name']}"} for limit in judged),
        {
            "name": "window: freshness of the first token, p90 (s)",
            "limit": frame_s,
            "measured": first,
            "held": bool(first and frame_s and first <= frame_s),
        },
        {"name": "window: frames that failed their session", "limit": 0, "measured": dry, "held": dry == 0},
    ]


def verdict(found: Mapping[str, Any]) -> str:
    """Both arms in one line."""
    arms, at = found["arms"], found["moment"]
    calls, elapsed = arms["unbounded"]["calls"]["opened"], arms["unbounded"]["elapsed_s"]
    foretold = "" if at["predicted_s"] is None else f", predicted {at['predicted_s']:.1f} s"
    free = (
        f"no silence in {elapsed:.0f} s{foretold}"
        if at["measured_s"] is None
        else f"all {calls} calls silent from {at['measured_s']:.1f} s on{foretold}"
    )
    if "window" not in arms:
        return f"Unbounded: {free}. Window: not played."
    fresh = arms["window"]["freshness"]
    cut = ""
    if fresh:
        first, last = (fresh[end]["p90"] for end in ("first_s", "last_s"))
        cut = f", p90 {first:.2f} s to the first token, {last:.2f} s to the last"
    kept = all(limit["held"] for limit in found["limits"] if limit["name"].startswith("window"))
    shown = f"Unbounded: {free}. Window: {'fresh to the end' if kept else 'NOT fresh to the end'}{cut}."
    return " ".join([shown, *_why_not(found)])


def _why_not(found: Mapping[str, Any]) -> list[str]:
    """What the pair did not show here, and what to try."""
    from ..load.figures import tail

    missed = [limit["name"].split(" (")[0] for limit in found["limits"] if not limit["held"]]
    if not missed:
        return []
    said = f"Missed: {'; '.join(missed)}."
    beats, frame_s = (found["arms"]["unbounded"][key] for key in ("beat_s", "frame_s"))
    if not (beats and frame_s and tail(beats) > frame_s):
        return [said]
    took = f"Beats took {tail(beats):.1f} of {frame_s:g} s"
    return [said, f"{took}: end other programs and run it again, or with fewer --sessions."]


def _healthy_s(found: Mapping[str, Any]) -> float:
    """For how long, from the start on, all frames were answered, and the middle one within the frame."""
    for bucket in found["buckets"]:
        fresh = bucket["freshness"]
        dry = bucket["stalled"] or bucket["empty"] or not fresh or found["frame_s"] is None
        if dry or fresh["last_s"]["p50"] > found["frame_s"]:
            return float(bucket["from_s"])
    return float(found["elapsed_s"])


def _bring_assets(profile: Profile, speech: str) -> None:
    """Fetch what is missing, after saying so."""
    from ..models.assets import ASSETS, condition, fetch
    from ..models.factory import weights_of

    names = [name for name in (*weights_of(profile).values(), speech) if name in ASSETS]
    missing = [name for name in names if condition(ASSETS[name]).state != "have"]
    if missing:
        megabytes = sum(ASSETS[name].size for name in missing) / 1e6
        typer.echo(f"fetching {', '.join(missing)} (about {megabytes:.0f} MB on disk), once", err=True)
        with showing_progress() as report:
            fetch(missing, report)
