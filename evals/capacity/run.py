"""Capacity told from a few runs: is an N that was left out told right, and a ramp that was not played?

Run:  python -m evals.capacity.run             (about 15 minutes on 2 quiet cores)
      python -m evals.capacity.run --tiny      (a minute: does it run?)

The real engine on real weights, without waiting between ticks (evals/calls.py). Windowed and unbounded calls
are held at several N; what a tick costs and what calls bring is fitted to those. Then callers come and go on
the same engine, faster than it can take them, and the simulator is given the same callers: how many got in,
and, unbounded, when did the first call find no block?
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import msgspec
import numpy as np

from metronome_cli.clock import SystemClock, VirtualClock
from metronome_cli.fit.capacity import Asked, Carried, plan
from metronome_cli.fit.capacity_answer import told
from metronome_cli.fit.ticks import Ticks, gather
from metronome_cli.load.arrivals import arrival_times, stay
from metronome_cli.load.lengths import Length
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.runtime.cost import HELD_OUT, Cost
from metronome_cli.runtime.device import Load
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.simulator import Call, Fleet
from metronome_cli.trace import TickRecord

from ..calls import Model
from ..ending import end, limit, save
from ..jobs import Job, play_all

RESULTS = Path(__file__).parent / "results"
SETTINGS: dict[str, Any] = {
    "model.kind": "text",
    "model.mode": "free",
    "beat.frame_s": 0.4,
    "beat.tau": 2,
    "beat.prefill_tokens": 48,
    "window.window": 128,
    "pool.blocks": 480,
}
# Windowed calls meet the deadline, which the forecast keeps; unbounded ones a cap that knows no memory.
POLICIES: dict[str, dict[str, Any]] = {
    "window": {"admission.admit": "forecast", "admission.max_sessions": 64},
    "unbounded": {"admission.admit": "fixed", "admission.max_sessions": 24},
}
LEVELS = (4, 8, 12, 16, 20, 24)
BEATS = 60  # at each N, twice: a window of 128 tokens is full after some 25
ASKS = 0.25  # questions a call and beat
HEADER = 21  # tokens that a call reads first: the profile's header, and the opening of the first answer
RAMP_S = 90.0
RATE_HZ = 3.0  # at the ramp's end
STAYS = {"window": Length.parse("lognormal:30s:0.5"), "unbounded": Length.parse("lognormal:3m:0.5")}
CLOSE = 0.05  # how far a simulated figure may lie from the real one


def profile_of(policy: str, threads: int) -> Profile:
    own = {"window.policy": policy, "run.threads": threads}
    return load_profile("laptop", SETTINGS | POLICIES[policy] | own)


def hold(policy: str, counts: Sequence[int], beats: int, threads: int) -> dict[str, list[Any]]:
    """Ticks at each N, without the first one, which reads the headers. Two sweeps: a slow minute is not to
    slow one N alone."""
    model, found = Model(profile_of(policy, threads), ASKS), {}
    for sweep, n in enumerate((*counts, *counts)):
        calls = model.play(FixedCap(n), [Call(0.0, math.inf)] * n, sweep, beats=beats)
        found[f"{policy} {n}, {sweep}"] = list(map(msgspec.to_builtins, calls.ticks[1:]))
        print(policy, n, round(float(np.median([t.done - t.start for t in calls.ticks])), 3), flush=True)
    return found


def offers(policy: str, seed: int, until_s: float) -> list[Call]:
    """A ramp of callers."""
    times = arrival_times("ramp", RATE_HZ, int(RATE_HZ * until_s / 2), until_s, seed)
    return [Call(at, stay(seed, n, STAYS[policy], until_s, 0.0)[0]) for n, at in enumerate(times)]


def ramp(policy: str, seeds: Sequence[int], until_s: float, threads: int) -> list[dict[str, Any]]:
    """Real ramps, one a seed."""
    model, found = Model(profile_of(policy, threads), ASKS), []
    for seed in seeds:
        calls = model.play(chosen(model.profile), offers(policy, seed, until_s), seed, until_s=until_s)
        found.append(_summary(calls.admitted, calls.refused, calls.ticks))
        print(policy, "ramp", seed, found[-1]["admitted"], found[-1]["t_sat"], flush=True)
    return found


def imagine(policy: str, cost: Cost, load: Load, seed: int, until_s: float) -> dict[str, Any]:
    """The same ramp, simulated."""
    kept = _Kept()
    fleet = Fleet(profile_of(policy, 1), cost, load, 1).run(offers(policy, seed, until_s), until_s, kept)
    return _summary(fleet.admitted, fleet.refused, kept.ticks)


class _Kept(Recorder):
    """Records for a picture, in memory."""

    def __init__(self) -> None:
        super().__init__(None, VirtualClock())
        self.ticks: list[TickRecord] = []

    def tick(self, tick: TickRecord, frames: Sequence[Any]) -> None:
        self.ticks.append(tick)


def _summary(admitted: int, refused: dict[str, int], ticks: Sequence[TickRecord]) -> dict[str, Any]:
    return {
        "admitted": admitted,
        "refused": refused,
        "t_sat": next((tick.done for tick in ticks if tick.stalled), None),
        "at": [round(tick.done, 3) for tick in ticks],
        "sessions": [tick.sessions for tick in ticks],
        "occupancy": [round(tick.kv_leased / tick.kv_total, 4) for tick in ticks],
        "took_s": [round(tick.done - tick.start, 4) for tick in ticks],
    }


def fit(ticks: Ticks) -> tuple[dict[str, Any], Cost, Load]:
    """The answer of `metronome fit capacity`, and what the simulator needs of it."""
    asked = Asked()
    found = plan(ticks, asked)
    of: Carried = found.of
    return told(found, asked), found.cost, Load(float(of.tokens_in), float(of.tokens_out), HEADER)


def judge(fits: dict[str, Any], ramps: dict[str, Any]) -> list[dict[str, Any]]:
    """The issue's limits."""
    rows = []
    for policy, found in fits.items():
        for cut in ("p50", "p95"):
            worst = max(abs(held[f"{cut}_error"]) for held in found["held_out"])
            rows.append(_limit(f"{policy}: worst error of a held-out N, {cut}", HELD_OUT, worst))
    for policy, pairs in ramps.items():
        for figure in ("admitted", "t_sat"):
            both = [(pair["real"][figure], pair["simulated"][figure]) for pair in pairs]
            told = [(real, other) for real, other in both if real is not None or other is not None]
            if not told:
                continue
            # One that stalled beside one that did not is as far off as can be.
            off = [abs(other / real - 1) if real and other else math.inf for real, other in told]
            rows.append(_limit(f"{policy} ramps: worst error of {figure}", CLOSE, max(off)))
    return rows


def _limit(name: str, most: float, measured: float) -> dict[str, Any]:
    return limit(name, most, measured, measured <= most)


def draw_picture(fits: dict[str, Any], ramps: dict[str, Any], target: Path) -> None:
    """Held-out N above; a ramp's live calls and occupancy below, real and simulated."""
    figure, panels = plt.subplots(3, 2, figsize=(10, 9), layout="constrained")
    for column, policy in enumerate(fits):
        held = fits[policy]["held_out"]
        for cut, colour in (("p50", "tab:blue"), ("p95", "tab:red")):
            counts = [row["n"] for row in held]
            panels[0, column].plot(counts, [row[f"{cut}_s"] for row in held], "o", color=colour, label=cut)
            predicted = [row[f"predicted_{cut}_s"] for row in held]
            panels[0, column].plot(counts, predicted, "x", color=colour, label=f"{cut}, from the others")
        panels[0, column].set(title=policy, xlabel="sessions", ylabel="tick (s)", ylim=(0, None))
        for row, key, label in ((1, "sessions", "live calls"), (2, "occupancy", "pool in use")):
            for pair in ramps[policy]:
                for name, colour in (("real", "tab:blue"), ("simulated", "tab:orange")):
                    first = name if pair is ramps[policy][0] else None
                    panels[row, column].plot(
                        pair[name]["at"], pair[name][key], color=colour, lw=0.9, label=first
                    )
            panels[row, column].set(xlabel="time (s)", ylabel=label, ylim=(0, None))
        for panel in panels[:, column]:
            panel.legend(fontsize="small")
    figure.savefig(target / "capacity.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="ramps of each policy")
    parser.add_argument("--threads", type=int, default=1, help="two share few calls out badly (README)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--played", type=Path, default=Path("runs/eval-capacity"), help="what was played")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help="so short that the figures mean nothing")
    options = parser.parse_args()
    counts, beats, until_s = ((2, 3, 4), 12, 8.0) if options.tiny else (LEVELS, BEATS, RAMP_S)
    seeds = range(options.seed, options.seed + (1 if options.tiny else options.runs))
    plays: tuple[tuple[Any, Sequence[int], float], ...] = ((hold, counts, beats), (ramp, seeds, until_s))
    jobs: dict[str, Job] = {
        f"{policy} {what.__name__}": partial(what, policy, asked, length, options.threads)
        for policy in POLICIES
        for what, asked, length in plays
    }
    played = play_all(jobs, options.played, 1)
    fits: dict[str, Any] = {}
    ramps: dict[str, Any] = {}
    for policy in POLICIES:
        levels = msgspec.convert(played[f"{policy} hold"], dict[str, list[TickRecord]])
        fits[policy], cost, load = fit(gather(levels))
        ramps[policy] = [
            {"seed": seed, "real": real, "simulated": imagine(policy, cost, load, seed, until_s)}
            for seed, real in zip(seeds, played[f"{policy} ramp"], strict=True)
        ]
    report = new_report("eval-capacity", profile_of("window", options.threads), SystemClock(), options.seed)
    report.results = {"fits": fits, "ramps": ramps}
    save(report, judge(fits, ramps), options.out)
    draw_picture(fits, ramps, options.out)
    end(report)


if __name__ == "__main__":
    main()
