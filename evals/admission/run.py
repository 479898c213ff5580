"""Admission under a ramp far above capacity: do the controllers settle, and who lets calls into the wall?

Run:  python -m evals.admission.run               (about 15 minutes on 2 quiet cores)
      python -m evals.admission.run --runs 3      (fewer unbounded runs)

The real engine on real weights, without waiting between ticks (evals/calls.py): a tick's latency is what
it took. First the true N is measured at fixed numbers of windowed calls, by the same target. Then calls come
as a Poisson process, three times as many as can be held, and hang up after 20 to 48 s. Windowed: how many
does each controller hold? Unbounded, the same target and pool: does a call ever go without a block?
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.models.factory import build
from metronome_cli.probes.questions import read_questions
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission import Admission, FixedCap
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.runtime.beat import TickEngine
from metronome_cli.trace import TickRecord

from ..calls import Calls
from ..jobs import play_all

RESULTS = Path(__file__).parent / "results"
CONTROLLERS = ("aimd", "gradient", "forecast")
FRAME_S, BEATS = 0.4, 130
SETTINGS: dict[str, Any] = {
    "model.kind": "text",
    "model.mode": "free",
    "beat.frame_s": FRAME_S,
    "beat.tau": 2,
    "beat.prefill_tokens": 48,
    "window.window": 128,
    "pool.blocks": 240,  # 16 windowed calls; so many unbounded ones for 40 beats or so
    "admission.max_sessions": 64,
    "admission.horizon_s": BEATS * FRAME_S,  # no call lasts longer
}
ASKS = 0.25  # questions a call and beat: what fills an unbounded cache
RAMP_BEATS = 20  # until as many calls arrive with every beat as ever will
SETTLED_BEATS = 60  # from which on there are to be as many calls as fit
STAY = (10**6, 10**6)
LASTS = (50, 120)  # beats; a call hangs up after any number between
OFFERED = 3.0  # times the calls that hang up when as many live as fit
SHARE = 5  # ramps that one process plays on a model that it has loaded


class Model:
    """One policy's engine, and how many calls it has seen."""

    def __init__(self, policy: str, threads: int) -> None:
        self.profile = profile_of(policy, "fixed", threads)
        self._engine: TickEngine = build(self.profile)
        self._texts = [question.text for question in read_questions("builtin", audio=False, seed=0)]
        self._opened = 0

    def play(
        self,
        admission: Admission,
        arrivals: Sequence[int],
        seed: int,
        lasts: tuple[int, int] = (10**6, 10**6),
    ) -> Calls:
        """As many beats as `arrivals` has, or until a call finds no block; each brings so many calls."""
        calls = Calls(self._engine, self.profile, admission, seed, self._opened)
        random = np.random.default_rng((23, seed))
        live: dict[int, int] = {}  # each call's last beat
        for beat, arriving in enumerate(arrivals):
            for number in [number for number, last in live.items() if last <= beat]:
                calls.close(number)
                del live[number]
            ends = beat + random.integers(*lasts, arriving, endpoint=True)
            opened = [(calls.open(), int(end)) for end in ends]
            live |= {number: end for number, end in opened if number is not None}
            for number in live:
                if random.random() < ASKS:
                    calls.say(number, self._texts[int(random.integers(len(self._texts)))])
            if calls.tick().stalled:
                break
        calls.close_all()
        self._opened += sum(arrivals)
        return calls


def profile_of(policy: str, controller: str, threads: int) -> Profile:
    own = {"window.policy": policy, "admission.admit": controller, "run.threads": threads}
    return load_profile("laptop", SETTINGS | own)


def true_n(seed: int, threads: int) -> dict[str, Any]:
    """The most windowed calls whose latency keeps the target: each number tried for as many beats as a
    controller looks at, windows full, until one misses it."""
    model = Model("window", threads)
    asked = model.profile.admission
    target_s = asked.target_share * model.profile.beat.frame_s
    tried: dict[int, float] = {}
    low, high = 1, None
    count = 8
    while high is None or high - low > 1:
        beats = 12 + 2 * asked.window_ticks
        calls = model.play(FixedCap(count), [count, *[0] * (beats - 1)], seed)
        late = [tick.done - tick.due for tick in calls.ticks[12:]]
        tried[count] = float(np.percentile(late, asked.percentile))
        if tried[count] <= target_s:
            low = count
        else:
            high = count
        count = count * 2 if high is None else (low + high) // 2
        print(f"N={low} holds, {high} does not", flush=True)
    return {"n": low, "target_s": target_s, "tried_s": dict(sorted(tried.items()))}


def hold(policy: str, controller: str, n: int, seeds: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """Some ramps against one controller."""
    model, profile = Model(policy, threads), profile_of(policy, controller, threads)
    target_s = profile.admission.target_share * profile.beat.frame_s
    found = []
    for seed in seeds:
        calls = model.play(chosen(profile), ramp(n, seed), seed, LASTS)
        found.append({"seed": seed, **summarise(calls.ticks, calls.refused, n, target_s)})
    return found


def ramp(n: int, seed: int) -> list[int]:
    """Calls that arrive with each beat: a Poisson process whose rate grows and then stays."""
    random = np.random.default_rng((29, seed))
    most = OFFERED * n / float(np.mean(LASTS))
    rates = most * np.minimum(1.0, (1 + np.arange(BEATS)) / RAMP_BEATS)
    rates[:RAMP_BEATS] += n / RAMP_BEATS  # so that the ramp alone brings as many as fit, and more
    return [int(count) for count in random.poisson(rates)]


def summarise(
    ticks: Sequence[TickRecord], refused: dict[str, int], n: int, target_s: float
) -> dict[str, Any]:
    """Where a run settled, and whether a call went without a block."""
    settled = [tick.sessions for tick in ticks[SETTLED_BEATS:]] or [0]
    off = float(np.mean(settled)) - n
    stalled = next((index for index, tick in enumerate(ticks) if tick.stalled), None)
    late = [tick.done - tick.due for tick in ticks[SETTLED_BEATS:]] or [0.0]
    return {
        "settled_at": float(np.mean(settled)),
        "off": off,
        "within": abs(off) <= max(1.0, 0.05 * n),
        "first_stall_beat": stalled,
        "late_share": float(np.mean([second > target_s for second in late])),
        "refused": refused,
        "sessions": [tick.sessions for tick in ticks],
        "cap": [tick.cap for tick in ticks],
        "occupancy": [round(tick.kv_leased / tick.kv_total, 3) for tick in ticks],
    }


def judge(arms: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's limits, arm by arm."""
    rows = []
    for name in CONTROLLERS:
        runs = arms[f"window {name}"]
        share = sum(run["within"] for run in runs)
        rows.append(_limit(f"window, {name}: runs settled within max(1, 5 %) of N", len(runs), share))
    walls = {
        name: sum(run["first_stall_beat"] is not None for run in arms[f"unbounded {name}"])
        for name in CONTROLLERS
    }
    count = len(arms["unbounded aimd"])
    rows.append(_limit("unbounded, aimd: runs that hit the wall", count, walls["aimd"]))
    rows.append(_limit("unbounded, forecast: runs that hit the wall", 0, walls["forecast"]))
    return rows


def _limit(name: str, limit: int, measured: int) -> dict[str, Any]:
    return {"name": name, "limit": limit, "measured": measured, "held": measured == limit}


def draw_picture(arms: dict[str, Any], n: int, target: Path) -> None:
    """Live calls by beat: windowed above, unbounded below, beats from a stall on in red."""
    figure, panels = plt.subplots(
        2, len(CONTROLLERS), figsize=(11, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    for row, policy in zip(panels, ("window", "unbounded"), strict=True):
        for panel, name in zip(row, CONTROLLERS, strict=True):
            for run in arms[f"{policy} {name}"]:
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
    parser.add_argument("--windowed-runs", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10, help="unbounded, of each controller")
    parser.add_argument("--threads", type=int, default=2, help="of each process")
    parser.add_argument(
        "--processes", type=int, default=1, help="each on cores of its own, or times mean nothing"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--played", type=Path, default=Path("runs/eval-admission"), help="what was played")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    measured = play_all({"true-n": partial(true_n, options.seed, options.threads)}, options.played, 1)
    found = measured["true-n"]
    runs_of = {"window": options.windowed_runs, "unbounded": options.runs}
    jobs = {
        f"{policy} {name} {first}": partial(
            hold, policy, name, found["n"], range(first, min(first + SHARE, runs)), options.threads
        )
        for policy, runs in runs_of.items()
        for name in CONTROLLERS
        for first in range(0, runs, SHARE)
    }
    played = play_all(jobs, options.played, options.processes)
    arms = {
        f"{policy} {name}": [
            run for job, runs in played.items() if job.startswith(f"{policy} {name} ") for run in runs
        ]
        for policy in runs_of
        for name in CONTROLLERS
    }
    profile = profile_of("window", "forecast", options.threads)
    report = new_report("eval-admission", profile, SystemClock(), options.seed)
    report.results = {"true_n": found, "arms": arms, "limits": judge(arms)}
    report.held = all(limit["held"] for limit in report.results["limits"])
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)
    draw_picture(arms, found["n"], options.out)
    for limit in report.results["limits"]:
        print(limit)
    raise SystemExit(0 if report.held else 3)


if __name__ == "__main__":
    main()
