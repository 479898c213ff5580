"""The cliff: calls that talk and join at random, on one pool, unbounded, windowed and recycled.

Run:  python -m evals.cliff.run                       (about 45 minutes on 2 cores)
      python -m evals.cliff.run --runs 4 --served 0   (fewer draws of calls, no servers)

Twenty draws of typed calls on the real engine, without waiting between ticks (evals/calls.py), and three of
spoken calls on a real server (evals/live.py). A run collapses when a call has no block for its frame before
the run's end. What unbounded runs are to come to is foretold from each one's beginning, before it fills half
of the pool.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.errors import FieldError
from metronome_cli.fit.forecast import forecast
from metronome_cli.fit.series import Series
from metronome_cli.frame import SessionId
from metronome_cli.models.factory import build
from metronome_cli.probes.questions import read_questions
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.stats import percentiles
from metronome_cli.trace import TickRecord, read_records

from ..calls import Calls
from ..ending import end, limit, save
from ..jobs import Job, play_all
from ..live import serve_and_load

RESULTS = Path(__file__).parent / "results"
ARMS = ("unbounded", "window", "recycle")
SHARE = 5  # draws that one process plays on a model that it has loaded
EARLY = 0.5  # of the pool: what a forecast may see
WINDOW = {"beat.prefill_tokens": 64, "window.window": 128}
TYPED_BLOCKS, SPOKEN_BLOCKS = 150, 140  # so that about half of the unbounded draws fill them
TYPED_FRAME_S = 6.0  # no tick takes so long, whatever else the machine does: pools fill at the same pace
SPOKEN = [  # of `metronome load`: eight calls that come in a minute, and stay for 90 s, more or less
    *("--offer", "8", "--arrivals", "poisson", "--arrival-rate", "0.15"),
    *("--call-length", "lognormal:90s:0.5", "--duration", "96s"),
]


@dataclass(frozen=True)
class Caller:
    """One call of a draw: when it joins and leaves, in frames, and how often it asks something."""

    joins: int
    leaves: int
    asks: float  # questions a frame


def draw(seed: int, calls: int, frames: int) -> list[Caller]:
    """Two thirds are there from the first seconds on; the others come later, and one in four leaves early."""
    random = np.random.default_rng((17, seed))
    early = random.random(calls) < 2 / 3
    joins = np.where(early, random.integers(0, 4, calls), random.integers(4, frames * 2 // 3, calls))
    stays = np.where(random.random(calls) < 0.25, random.uniform(0.3, 0.9, calls), 1.0)
    asks = 0.12 * random.lognormal(0, 0.4, calls)
    return [
        Caller(int(at), int(at + max(1, share * (frames - at))), float(rate))
        for at, share, rate in zip(joins, stays, asks, strict=True)
    ]


def play(calls: Calls, callers: Sequence[Caller], texts: Sequence[str], frames: int, seed: int) -> None:
    """One draw of calls, opened and closed between ticks."""
    random = np.random.default_rng((18, seed))
    live: dict[SessionId, Caller] = {}
    for frame in range(frames):
        for number in [number for number, caller in live.items() if caller.leaves <= frame]:
            calls.close(number)
            del live[number]
        for caller in callers:
            if caller.joins == frame and (opened := calls.open()) is not None:
                live[opened] = caller
        for number, caller in live.items():
            asks, which = random.random() < caller.asks, int(random.integers(len(texts)))
            if asks:
                calls.say(number, texts[which])
        calls.tick()
    calls.close_all()


def hold(arm: str, seeds: Sequence[int], calls: int, frames: int, threads: int) -> list[dict[str, Any]]:
    """Some draws on one arm's model: every run's ticks."""
    profile = profile_of(arm, threads)
    model = build(profile)
    texts = [question.text for question in read_questions("builtin", audio=False, seed=0)]
    found = []
    for seed in seeds:
        held = Calls(model, profile, FixedCap(2**31), seed, opened=1000 * seed)
        play(held, draw(seed, calls, frames), texts, frames, seed)
        found.append(_columns(seed, held.ticks, sum(held.refused.values())))
    return found


def serve(arm: str, seed: int) -> list[dict[str, Any]]:
    """One draw of spoken calls on a real server of one arm: its own record of its ticks."""
    own = {"model.mode": "free", "window.policy": arm, "pool.blocks": SPOKEN_BLOCKS}
    with tempfile.TemporaryDirectory() as kept:
        load = serve_and_load(load_profile("laptop", WINDOW | own), seed, SPOKEN, Path(kept))
        ticks = list(read_records(Path(kept, "serve", "trace.jsonl"), TickRecord))
    refused = sum(load["calls"]["refused"].values())
    return [_columns(seed, [tick for tick in ticks if tick.sessions], refused)]


def _columns(seed: int, ticks: Sequence[TickRecord], refused: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "refused": refused,
        "due": [round(tick.due - ticks[0].due, 4) for tick in ticks],
        "took": [round(tick.done - tick.start, 4) for tick in ticks],
        "sessions": [tick.sessions for tick in ticks],
        "stalled": [tick.stalled for tick in ticks],
        "leased": [tick.kv_leased for tick in ticks],
        "total": ticks[0].kv_total,
    }


def profile_of(arm: str, threads: int) -> Profile:
    own = {"model.kind": "text", "model.mode": "free", "window.policy": arm, "run.threads": threads}
    pace = {"pool.blocks": TYPED_BLOCKS, "beat.frame_s": TYPED_FRAME_S}
    return load_profile("laptop", {**pace, **WINDOW, **own})


def conclude_all(played: Mapping[str, Any]) -> dict[str, Any]:
    """Every arm, of its jobs' runs."""
    return {
        arm: conclude(
            arm, [run for name, runs in played.items() if name.startswith(f"{arm}-") for run in runs]
        )
        for arm in ARMS
    }


def conclude(arm: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One arm: how many of its runs collapsed, and what was foretold of each."""
    found = [summarise(arm, run) for run in runs]
    # From the middle of a run on windows are full.
    took = [second for run in runs for second in run["took"][len(run["took"]) // 2 :]]
    return {
        "runs": found,
        "collapsed": sum(one["collapsed_at_s"] is not None for one in found),
        "tick_s": percentiles(took, (50, 90)),
        "blocks_most": max(max(run["leased"]) for run in runs),
    }


def summarise(arm: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """When a run's calls first found no block, and what its beginning foretold of that."""
    occupancy = np.array(run["leased"]) / run["total"]
    at = next((due for due, stalled in zip(run["due"], run["stalled"], strict=True) if stalled), None)
    told = {}
    if arm == "unbounded":
        series = Series(np.array(run["due"]), occupancy, np.array(run["sessions"], np.float64))
        told = foretell(series.promising(np.zeros(len(series))), run["due"][-1])  # nobody has a bound
    return {
        "seed": run["seed"],
        "collapsed_at_s": at,
        "refused": run["refused"],
        "occupancy": [round(float(share), 4) for share in occupancy],
        **told,
    }


def foretell(series: Series, until_s: float) -> dict[str, Any]:
    """The probability that the pool is full before `until_s`, as seen at half fill."""
    try:
        seen = forecast(series, until=EARLY, session_length=until_s - float(series.t_s[0]))
    except FieldError as error:
        return {"probability": 0.0, "t_sat": None, "why": str(error)}
    t_sat = None if seen.t_sat is None else [seen.t_sat.low, seen.t_sat.estimate, seen.t_sat.high]
    return {"probability": seen.collapse_probability or 0.0, "t_sat": t_sat}


def judge(arms: dict[str, Any], served: dict[str, Any]) -> list[dict[str, Any]]:
    """The bounded arms hold, and what was foretold of the unbounded one came to pass."""
    runs = arms["unbounded"]["runs"]
    share = arms["unbounded"]["collapsed"] / len(runs)
    expected = float(np.mean([run["probability"] for run in runs]))
    rows = [
        limit(f"{arm}: runs that collapsed", "0", arms[arm]["collapsed"], arms[arm]["collapsed"] == 0)
        for arm in ARMS[1:]
    ]
    brier = float(np.mean([(run["probability"] - (run["collapsed_at_s"] is not None)) ** 2 for run in runs]))
    rows += [
        limit(
            f"{arm}, served: runs that collapsed", "0", served[arm]["collapsed"], not served[arm]["collapsed"]
        )
        for arm in ARMS[1:]
        if served
    ]
    return [
        limit("unbounded: share of runs that collapsed", "0.2 to 0.8", share, 0.2 <= share <= 0.8),
        limit(
            "the same, foretold, off by", "at most 0.15", abs(expected - share), abs(expected - share) <= 0.15
        ),
        limit("Brier score of the foretold (0.25: a coin)", "at most 0.15", brier, brier <= 0.15),
        *rows,
    ]


def draw_picture(arms: dict[str, Any], frame_s: float, target: Path) -> None:
    """Occupancy of every run, an arm a panel."""
    figure, panels = plt.subplots(1, len(ARMS), figsize=(11, 3.4), sharey=True, layout="constrained")
    for panel, arm in zip(panels, ARMS, strict=True):
        for run in arms[arm]["runs"]:
            seconds = frame_s * np.arange(1, len(run["occupancy"]) + 1)
            fell = run["collapsed_at_s"] is not None
            panel.plot(seconds, run["occupancy"], color="tab:red" if fell else "tab:blue", lw=0.8, alpha=0.7)
        panel.set_title(f"{arm}: {arms[arm]['collapsed']} of {len(arms[arm]['runs'])} runs collapsed")
        panel.set_xlabel("seconds of the calls")
        panel.set_ylim(0, 1.05)
    panels[0].set_ylabel("share of the pool")
    figure.savefig(target / "occupancy.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="draws of calls, each played on every arm")
    parser.add_argument("--served", type=int, default=3, help="draws of spoken calls on a server of each arm")
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--frames", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--played", type=Path, default=Path("runs/eval-cliff"), help="what was played")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    stop = options.seed + options.runs
    typed: dict[str, Job] = {
        f"{arm}-{first}": partial(
            hold, arm, range(first, min(first + SHARE, stop)), options.calls, options.frames, options.threads
        )
        for arm in ARMS
        for first in range(options.seed, stop, SHARE)
    }
    spoken: dict[str, Job] = {
        f"{arm}-served-{seed}": partial(serve, arm, seed)
        for arm in ARMS
        for seed in range(options.seed, options.seed + options.served)
    }
    played = play_all(spoken, options.played, 1)  # a server wants the machine for itself
    served = conclude_all(played) if spoken else {}
    arms = conclude_all(play_all(typed, options.played, options.processes))
    profile = profile_of("window", options.threads)
    report = new_report("eval-cliff", profile, SystemClock(), options.seed)
    report.results = {"arms": arms, "served": served}
    save(report, judge(arms, served), options.out)
    draw_picture(arms, profile.beat.frame_s, options.out)
    for name, found in (("typed", arms), ("spoken", served)):
        for arm in found:
            print(name, arm, found[arm]["collapsed"], "collapsed; tick", found[arm]["tick_s"])
    end(report)


if __name__ == "__main__":
    main()
