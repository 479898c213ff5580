"""Predicted against measured: when real pools of real calls are full, as foretold at 30, 50 and 70 % fill.

Run:  python -m evals.predict.run                    (about 12 minutes on 2 cores)
      python -m evals.predict.run --draws 1          (one trace of each set-up)

Seven set-ups on the real engine and real weights, without waiting between ticks (evals/calls.py), unbounded
calls that talk, join and leave at random, each played until a call finds no block; and the published trace of
the 30B model. `python -m evals.predict.simulated` asks the same of 500 simulated traces.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.errors import FieldError
from metronome_cli.fit.forecast import forecast
from metronome_cli.fit.series import Series
from metronome_cli.frame import TickEngine
from metronome_cli.models.factory import build
from metronome_cli.probes.questions import read_questions
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission import FixedCap

from ..calls import Calls
from ..jobs import play_all

RESULTS = Path(__file__).parent / "results"
FILLS = (0.3, 0.5, 0.7)
MOST_BEATS = 400


@dataclass(frozen=True)
class SetUp:
    """What a trace is made of. `asks`: texts a call and beat; `joins`, `leaves`: calls a beat, on average."""

    name: str
    calls: int
    blocks: int
    tau: int = 6
    asks: float = 0.1
    spread: float = 0.2  # sigma of the logarithm of each call's own `asks`
    joins: float = 0.0
    leaves: float = 0.0
    waits: int = 0  # beats before the first call


SET_UPS = (
    SetUp("four talkers", calls=4, blocks=90),
    SetUp("eight talkers", calls=8, blocks=160),
    SetUp("sixteen, two tokens a frame", calls=16, blocks=200, tau=2),
    SetUp("much asked, little said", calls=6, blocks=140, tau=2, asks=0.35),
    SetUp("unlike callers", calls=8, blocks=160, spread=0.8),
    SetUp("they come and go", calls=8, blocks=150, joins=0.06, leaves=0.04),
    SetUp("a late start", calls=6, blocks=110, waits=9),
)


class Stage:
    """One engine for all set-ups that share its number of blocks and tokens a frame."""

    def __init__(self, set_up: SetUp, threads: int) -> None:
        settings = {
            "model.kind": "text",
            "model.mode": "free",
            "window.policy": "unbounded",
            "pool.blocks": set_up.blocks,
            "beat.tau": set_up.tau,
            "beat.prefill_tokens": 64,
            "run.threads": threads,
        }
        self.profile = load_profile("laptop", settings)
        self.set_up = set_up
        self._engine: TickEngine = build(self.profile)
        self._texts = [question.text for question in read_questions("builtin", audio=False, seed=0)]

    def play(self, seed: int) -> dict[str, list[float]]:
        """Calls until the pool is full. The trace ends with the beat in which a call found no block."""
        made, random = self.set_up, np.random.default_rng((31, seed))
        calls = Calls(self._engine, self.profile, FixedCap(2**31), seed, opened=10_000 * seed)
        live: dict[int, float] = {}
        for beat in range(MOST_BEATS):
            arriving = made.calls if beat == made.waits else int(random.poisson(made.joins))
            for _ in range(arriving if beat >= made.waits else 0):
                if (opened := calls.open()) is not None:
                    live[opened] = made.asks * float(random.lognormal(0, made.spread))
            if len(live) > 1 and random.random() < made.leaves:
                gone = list(live)[int(random.integers(len(live)))]
                calls.close(gone)
                del live[gone]
            for number, asks in live.items():
                if random.random() < asks:
                    calls.say(number, self._texts[int(random.integers(len(self._texts)))])
            if calls.tick().stalled:
                break
        calls.close_all()
        return {
            "t_s": [tick.due for tick in calls.ticks],
            "occupancy": [tick.kv_leased / tick.kv_total for tick in calls.ticks],
            "sessions": [float(tick.sessions) for tick in calls.ticks],
        }


def hold(set_up: SetUp, draws: int, threads: int) -> list[dict[str, list[float]]]:
    """All traces of one set-up."""
    stage = Stage(set_up, threads)
    return [stage.play(seed) for seed in range(draws)]


def published(path: Path) -> Series:
    """The 30B model's trace: it stalls between 145.5 and 148 s."""
    with path.open(newline="") as file:
        rows = [(float(row["t_s"]), float(row["kv_occupancy"])) for row in csv.DictReader(file)]
    t_s, occupancy = np.array(rows).T
    return Series(t_s, occupancy, name="published, 30B, N=128").promising(np.zeros(len(t_s)))


def foretold(series: Series, measured_s: float) -> list[dict[str, Any]]:
    """One row a fill: what was foretold there, and how far off."""
    rows = []
    for fill in FILLS:
        try:
            seen = forecast(series, until=fill)
        except FieldError as error:
            rows.append({"fill": fill, "why": str(error)})
            continue
        at = seen.t_sat
        rows.append(
            {
                "fill": fill,
                "shape": seen.shape,
                "t_sat": None if at is None else asdict(at),
                "error": None if at is None else at.estimate / measured_s - 1,
                "inside": at is not None and at.low <= measured_s <= at.high,
                "baseline_error": None if seen.baseline is None else seen.baseline / measured_s - 1,
            }
        )
    return rows


def conclude(name: str, seed: int, trace: Mapping[str, list[float]]) -> dict[str, Any]:
    """One trace and what was foretold of its end."""
    t_s, occupancy, sessions = (np.array(trace[key]) for key in ("t_s", "occupancy", "sessions"))
    measured_s = float(t_s[-1])
    series = Series(t_s=t_s, occupancy=occupancy, sessions=sessions)
    told = foretold(series.promising(np.zeros(len(series))), measured_s)  # nobody has a bound
    shown = [round(row.get("error") or float("nan"), 3) for row in told]
    print(f"{name} {seed}: full at {measured_s:.0f} s, off by {shown}", flush=True)
    return {"name": name, "seed": seed, "measured_s": measured_s, "foretold": told, **trace}


def summarise(traces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over all measured traces, by fill."""
    rows = []
    for place, fill in enumerate(FILLS):
        told = [trace["foretold"][place] for trace in traces if trace["foretold"][place].get("t_sat")]
        errors = [abs(row["error"]) for row in told]
        lines = [abs(row["baseline_error"]) for row in told if row["baseline_error"] is not None]
        rows.append(
            {
                "fill": fill,
                "traces": len(traces),
                "foretold": len(told),
                "median_error": float(np.median(errors)) if errors else None,
                "largest_error": max(errors, default=None),
                "inside_90": sum(row["inside"] for row in told),
                "median_error_of_the_line": float(np.median(lines)) if lines else None,
            }
        )
    return rows


def draw_picture(traces: list[dict[str, Any]], target: Path) -> None:
    """Every trace's forecasts beside what was measured, as shares of it."""
    figure, axis = plt.subplots(figsize=(8, 0.28 * len(traces) + 1.2), layout="constrained")
    for place, trace in enumerate(traces):
        for shift, row in zip((-0.25, 0, 0.25), trace["foretold"], strict=True):
            if not row.get("t_sat"):
                continue
            share = {key: row["t_sat"][key] / trace["measured_s"] for key in ("low", "estimate", "high")}
            colour = f"C{FILLS.index(row['fill'])}"
            axis.plot([share["low"], share["high"]], [place + shift] * 2, color=colour, lw=1.2)
            axis.plot(share["estimate"], place + shift, "o", color=colour, ms=3)
    axis.axvline(1, color="black", lw=0.7)
    axis.set_yticks(range(len(traces)), [f"{trace['name']} {trace['seed']}" for trace in traces], fontsize=7)
    axis.set_xlabel("foretold over measured, at 30, 50 and 70 % fill (from below)")
    figure.savefig(target / "predict.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=3, help="traces of each set-up")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--published", type=Path, help="CSV of the 30B model's trace (t_s, kv_occupancy)")
    parser.add_argument("--played", type=Path, default=Path("runs/eval-predict"), help="what was played")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    jobs = {
        made.name.replace(",", "").replace(" ", "-"): partial(hold, made, options.draws, options.threads)
        for made in SET_UPS
    }
    played = play_all(jobs, options.played, options.processes)
    traces = [
        conclude(made.name, seed, trace)
        for made, found in zip(SET_UPS, played.values(), strict=True)
        for seed, trace in enumerate(found)
    ]
    report = new_report("eval-predict", None, SystemClock())
    report.results = {"summary": summarise(traces), "traces": traces}
    if options.published:
        series = published(options.published)
        stall_s = 146.75
        report.results["published"] = {"measured_s": [145.5, 148.0], "foretold": foretold(series, stall_s)}
        print(report.results["published"])
    report.held = True
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)
    draw_picture(traces, options.out)
    for row in report.results["summary"]:
        print(row)


if __name__ == "__main__":
    main()
