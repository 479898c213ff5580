"""Admission under a ramp far above capacity: do the controllers settle, and who lets calls into the wall?

Run:  python -m evals.admission.run                     (about 75 minutes on 2 quiet cores)
      python -m evals.admission.run --policies window   (35 minutes: do they settle?)

Real servers and real spoken calls (evals/live.py), three runs an arm. First the true N of windowed calls, by
`metronome load --find-n` with the controllers' target as its budget. Then ever more callers dial, far more
than can be held, and hang up after 80 to 160 s. Windowed: how many does each controller hold?
Unbounded, the same target and pool: does a call ever go without a block? Of that there are further repeats,
with typed calls on the same thinker, without sockets and without waiting between ticks (evals/calls.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.load.arrivals import arrival_times, stay
from metronome_cli.load.lengths import Length
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.runtime.simulator import Call
from metronome_cli.trace import TickRecord, read_records

from ..calls import Model
from ..ending import end, limit, save
from ..jobs import Job, play_all
from ..live import serve_and_load

RESULTS = Path(__file__).parent / "results"
CONTROLLERS = ("aimd", "gradient", "forecast")
POLICIES = ("window", "unbounded")
JUDGED = ("aimd", "forecast")  # on unbounded calls
SETTLED_BEATS = 60  # after the first call, from which on there are to be as many calls as fit


@dataclass(frozen=True)
class Ramp:
    """Callers that dial ever faster: `rate_hz` at the end."""

    settings: Mapping[str, Any]
    until_s: float
    rate_hz: float
    lasts: str
    asks: float = 0.0  # questions that a typed call is asked per beat

    @property
    def offered(self) -> int:
        return int(self.rate_hz * self.until_s / 2)

    def profile(self, policy: str, controller: str, threads: int) -> Profile:
        own = {"window.policy": policy, "admission.admit": controller, "run.threads": threads}
        return load_profile("laptop", {**self.settings, "admission.max_sessions": 64, **own})

    def calls(self, seed: int) -> list[Call]:
        """What `metronome load` offers."""
        times = arrival_times("ramp", self.rate_hz, self.offered, self.until_s, seed)
        length = Length.parse(self.lasts)
        return [Call(at, stay(seed, n, length, self.until_s, 0.0)[0]) for n, at in enumerate(times)]


SPOKEN = Ramp(
    {
        "model.mode": "free",
        "window.window": 192,
        "pool.blocks": 256,  # 12 windowed calls; eight unbounded ones fill it in 90 s
        "admission.horizon_s": 160.0,
        "admission.percentile": 99.0,  # as --find-n judges
    },
    until_s=164.0,
    rate_hz=1.0,
    lasts="uniform:80s:160s",
)
TYPED = Ramp(
    {
        "model.kind": "text",
        "model.mode": "free",
        "beat.frame_s": 0.4,
        "beat.tau": 2,
        "beat.prefill_tokens": 48,
        "window.window": 128,
        "pool.blocks": 240,
        "admission.horizon_s": 48.0,
    },
    until_s=52.0,
    rate_hz=4.0,
    lasts="uniform:20s:48s",
    asks=0.25,
)
FIND_S = 60.0  # for which --find-n tries an N


def target_s(profile: Profile) -> float:
    return profile.admission.target_share * profile.beat.frame_s


def true_n(seed: int, threads: int) -> dict[str, Any]:
    """The most windowed calls whose freshness keeps the controllers' target."""
    profile = SPOKEN.profile("window", "fixed", threads)
    asked = [
        "--find-n",
        "--sessions",
        "6",
        "--duration",
        f"{FIND_S:g}s",
        "--budget",
        f"{target_s(profile):g}s",
    ]
    with tempfile.TemporaryDirectory() as kept:
        return serve_and_load(profile, seed, asked, Path(kept))


def serve_ramp(policy: str, controller: str, seed: int, threads: int) -> list[dict[str, Any]]:
    """One real run: the server's own record of its ticks."""
    callers = [
        *("--offer", str(SPOKEN.offered), "--arrivals", "ramp", "--arrival-rate", f"{SPOKEN.rate_hz:g}"),
        *("--call-length", SPOKEN.lasts, "--duration", f"{SPOKEN.until_s:g}s", "--redials", "0"),
    ]
    profile = SPOKEN.profile(policy, controller, threads)
    with tempfile.TemporaryDirectory() as kept:
        load = serve_and_load(profile, seed, callers, Path(kept))
        ticks = list(read_records(Path(kept, "serve", "trace.jsonl"), TickRecord))
    return [{"seed": seed, "callers": load["calls"], **summarise(ticks, profile)}]


def play_ramps(policy: str, controller: str, seeds: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """Typed calls, without sockets and without waiting."""
    profile = TYPED.profile(policy, controller, threads)
    model, found = Model(profile, TYPED.asks), []
    for seed in seeds:
        calls = model.play(chosen(profile), TYPED.calls(seed), seed, until_s=TYPED.until_s)
        found.append({"seed": seed, "refused": calls.refused, **summarise(calls.ticks, profile)})
    return found


def summarise(recorded: Sequence[TickRecord], profile: Profile) -> dict[str, Any]:
    """Where a run settled, and whether a call went without a block. Beats count from the first call."""
    ticks = list(dropwhile(lambda tick: not tick.sessions, recorded))
    settled = [tick for tick in ticks[SETTLED_BEATS:] if tick.sessions]
    return {
        "settled_at": float(np.mean([tick.sessions for tick in settled])) if settled else 0.0,
        "first_stall_beat": next((beat for beat, tick in enumerate(ticks) if tick.stalled), None),
        "late_share": float(np.mean([tick.done - tick.due > target_s(profile) for tick in settled or ticks])),
        "sessions": [tick.sessions for tick in ticks],
        "cap": [tick.cap for tick in ticks],
        "occupancy": [round(tick.kv_leased / tick.kv_total, 3) for tick in ticks],
        "took_s": [round(tick.done - tick.due, 3) for tick in ticks],
    }


def is_near(settled_at: float, n: int) -> bool:
    """Whether a controller came as near to N as the issue asks."""
    return abs(settled_at - n) <= max(1.0, 0.05 * n)


def judge(arms: dict[str, Any], n: int) -> list[dict[str, Any]]:
    """The issue's limits, arm by arm."""
    rows = []
    for arm, runs in arms.items():
        policy, name = arm.split()
        if policy == "window":
            near = sum(is_near(run["settled_at"], n) for run in runs)
            rows.append(_limit(f"{arm}: runs settled within max(1, 5 %) of N", len(runs), near))
        elif name in JUDGED:
            walls = sum(run["first_stall_beat"] is not None for run in runs)
            rows.append(
                _limit(f"{arm}: runs that hit the wall", 0 if name == "forecast" else len(runs), walls)
            )
    return rows


def _limit(name: str, asked: int, measured: int) -> dict[str, Any]:
    return limit(name, asked, measured, measured == asked)


def draw_picture(arms: dict[str, Any], n: int, target: Path) -> None:
    """Live calls by beat: windowed above, unbounded below, beats from a stall on in red."""
    figure, panels = plt.subplots(
        2, len(CONTROLLERS), figsize=(11, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for row, policy in zip(panels, POLICIES, strict=True):
        for panel, name in zip(row, CONTROLLERS, strict=True):
            for run in arms.get(f"{policy} {name}", []):
                stall = run["first_stall_beat"]
                until = len(run["sessions"]) if stall is None else stall + 1
                panel.plot(run["sessions"][:until], color="tab:blue", lw=0.9, alpha=0.7)
                if stall is not None:
                    beats = range(stall, len(run["sessions"]))
                    panel.plot(beats, run["sessions"][stall:], color="tab:red", lw=0.9, alpha=0.7)
            panel.axhline(n, color="black", lw=0.7, ls="--")
            panel.set_title(f"{name}, {policy}")
    for panel in panels[-1]:
        panel.set_xlabel("beat")
    for panel in panels[:, 0]:
        panel.set_ylabel("live calls (dashed: true N)")
    figure.savefig(target / "admission.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="real ones, of each arm")
    parser.add_argument("--repeats", type=int, default=7, help="of each unbounded arm, without sockets")
    parser.add_argument("--threads", type=int, default=2, help="of the engine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument("--played", type=Path, default=Path("runs/eval-admission"), help="what was played")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    again = range(seeds.stop, seeds.stop + options.repeats)
    jobs: dict[str, Job] = {"true-n": partial(true_n, options.seed, options.threads)}
    for policy in options.policies:
        for name in CONTROLLERS:
            for seed in seeds:
                jobs[f"{policy} {name} {seed}"] = partial(serve_ramp, policy, name, seed, options.threads)
    if again and "unbounded" in options.policies:
        for name in JUDGED:
            repeats = partial(play_ramps, "unbounded", name, again, options.threads)
            jobs[f"unbounded {name} again"] = repeats
    played = play_all(jobs, options.played, 1)
    found = played["true-n"]
    arms = {
        f"{policy} {name}": [
            run for job, runs in played.items() if job.startswith(f"{policy} {name} ") for run in runs
        ]
        for policy in options.policies
        for name in CONTROLLERS
    }
    profile = SPOKEN.profile("window", "forecast", options.threads)
    report = new_report("eval-admission", profile, SystemClock(), options.seed)
    report.results = {"true_n": found, "arms": arms}
    save(report, judge(arms, found["n"]), options.out)
    draw_picture(arms, found["n"], options.out)
    for name, runs in arms.items():
        print(name, [round(run["settled_at"], 1) for run in runs], [run["first_stall_beat"] for run in runs])
    end(report)


if __name__ == "__main__":
    main()
