"""A run folder as `metronome demo` or `metronome load` leaves it, with made-up figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.report import Report, new_report
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.trace import FrameRecord, TickRecord


def some_results(silence: float | None) -> dict[str, Any]:
    cuts = {"p50": 0.4, "p90": 0.5, "p99": 0.625}
    fresh = {"first_s": cuts, "last_s": cuts, "first_less_lag_s": cuts}
    bucket = {"frames": 10, "stalled": 0, "empty": 0, "freshness": fresh, "occupancy": 0.25}
    dead = {"frames": 8, "stalled": 8, "empty": 8, "freshness": None, "occupancy": 1.0}
    return {
        "offered": {"url": "http://127.0.0.1:8765", "sessions": 2},
        "started": 100.0,
        "elapsed_s": 20.0,
        "frame_s": 2.0,
        "calls": {"opened": 2, "cut_off": 0, "refused": {"pool_full": 3}},
        "frames": {"due": 20, "delivered": 18, "stalled": 2, "empty": 2, "cadence": 0.9},
        "skipped_beats": 1,
        "freshness": fresh,
        "after_speech_s": None,
        "client": {"lag_s": {"p50": 0.001, "p99": 0.002}, "cpu_share": 0.0625},
        "silence_at_s": silence,
        "buckets": [
            {"from_s": 0.0, "to_s": 10.0, **bucket},
            {"from_s": 10.0, "to_s": 20.0, **(bucket if silence is None else dead)},
        ],
        "limits": [
            {"name": "calls refused", "limit": 0, "measured": 3, "held": False},
            {"name": "freshness", "limit": 2.0, "measured": None, "held": None},
        ],
    }


def demo_results() -> dict[str, Any]:
    line = {"rho0": 0.0, "rate_per_s": 0.08, "points": 5}
    return {
        "arms": {"unbounded": some_results(10.0), "window": some_results(None)},
        "moment": {
            "measured_s": 10.0,
            "predicted_s": 12.5,
            "error_share": 0.25,
            "fitted_until_s": 6.6,
            "line": line,
        },
        "limits": some_results(None)["limits"],
        "verdict": "Unbounded: silent. Window: fresh.",
    }


def search_results() -> dict[str, Any]:
    cuts = {"p50": 0.4, "p90": 0.5, "p99": 0.625}

    def point(n: int, held: bool, why: str = "") -> dict[str, Any]:
        measured = {
            "first_s": cuts,
            "last_s": cuts,
            "after_speech_s": None,
            "cadence": 1.0,
            "cpu_share": 0.0625,
        }
        return {"n": n, "held": held, "why": why, "elapsed_s": 20.0, "budget_s": 2.0, **measured}

    return {
        "offered": {"url": "http://127.0.0.1:8765"},
        "n": 4,
        "budget_s": 2.0,
        "points": [point(4, True), point(8, False, "every call is silent")],
        "verdict": "N = 4; 8 calls: every call is silent",
    }


def record(folder: Path, arms: tuple[str, ...]) -> None:
    recorder = Recorder(folder, VirtualClock(100.0))
    for arm in arms:
        for number in range(10):
            at, dead = 100.0 + 2 * number, arm == "unbounded" and number >= 5
            tick = TickRecord(
                tick=number, due=at, start=at, done=at + 0.5, kv_leased=number, kv_total=9, arm=arm
            )
            frame = FrameRecord(
                session=0,
                age_s=2.0 * number,
                frame=number,
                tick=number,
                due=at,
                audio_end_ms=2000.0 * number,
                first=None if dead else at + 0.4,
                last=None if dead else at + 0.5,
                stalled=dead,
                arm=arm,
            )
            recorder.tick(tick, [frame])
    recorder.close()


@pytest.fixture
def run_of(tmp_path: Path) -> Callable[[str], tuple[Path, Report]]:
    """Makes a run folder of a command."""

    def make(command: str) -> tuple[Path, Report]:
        report = new_report(command, None, VirtualClock(), seed=7)
        made = {"demo": demo_results, "find-n": search_results}
        report.results = made[command]() if command in made else some_results(None)
        report.held, report.notes = False, ["a note"]
        report.save(tmp_path)
        record(tmp_path, ("unbounded", "window") if command == "demo" else ("",))
        return tmp_path, report

    return make
