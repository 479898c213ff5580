"""`metronome demo`, played with a model without weights, and what its verdict hangs on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from metronome_cli.cli import demo
from metronome_cli.clock import SystemClock
from metronome_cli.load.runner import Plan, Run
from metronome_cli.trace import FrameRecord, TickRecord, read_records

# Two calls fill 256 token places in about 2 s unbounded; windowed they hold 2 x 6 of the 16 blocks.
PROFILE = """
[model]
kind = "null"
mode = "free"
[beat]
frame_s = 0.25
tau = 12
prefill_tokens = 16
[window]
window = 64
sinks = 4
[pool]
blocks = 16
[admission]
max_sessions = 2
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "null.toml"
    path.write_text(PROFILE)
    (tmp_path / "speech").mkdir()
    soundfile.write(
        tmp_path / "speech" / "tone.wav", np.sin(np.arange(48_000) / 20).astype(np.float32), 16_000
    )
    return path


def command(profile: Path, *options: str) -> list[str]:
    folder = profile.parent
    fixed = ["--speech", str(folder / "speech"), "--out", str(folder / "runs"), "--json"]
    return [sys.executable, "-m", "metronome_cli", "demo", "--profile", str(profile), *fixed, *options]


def processes_naming(path: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(path).encode() in line and int(entry.name) != os.getpid():
            found.append(line.decode())
    return found


def test_the_demo_shows_silence_without_the_window_and_none_with_it(profile: Path) -> None:
    done = subprocess.run(command(profile, "--duration", "6s"), capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    results = report["results"]
    [folder] = (profile.parent / "runs").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.json", "trace.jsonl", "frames.jsonl", "summary.md", "demo.png"}
    assert {t.arm for t in read_records(folder / "trace.jsonl", TickRecord)} == {"unbounded", "window"}
    assert {f.arm for f in read_records(folder / "frames.jsonl", FrameRecord)} == {"unbounded", "window"}
    unbounded, window = results["arms"]["unbounded"], results["arms"]["window"]
    assert unbounded["silence_at_s"] == results["moment"]["measured_s"] > 0
    assert unbounded["buckets"][0]["occupancy"] == 1.0
    assert results["moment"]["predicted_s"] > 0
    assert window["frames"]["stalled"] == window["frames"]["empty"] == 0
    assert window["frames"]["delivered"] == window["frames"]["closed"] > 0
    # Six seconds cannot hold three healthy buckets of ten: the demo must not claim what it did not show.
    assert done.returncode == 3
    assert not report["held"]
    assert processes_naming(profile) == []


def test_ctrl_c_ends_the_demo_and_its_server_and_keeps_what_there_is(profile: Path) -> None:
    with subprocess.Popen(
        command(profile, "--duration", "10m"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for_records(profile.parent / "runs")
        process.send_signal(signal.SIGINT)
        report = json.loads(process.communicate()[0])
    assert process.returncode == 3
    assert list(report["results"]["arms"]) == ["unbounded"]
    assert "not played" in report["results"]["verdict"]
    assert processes_naming(profile) == []


def test_a_terminated_demo_leaves_no_server_behind(profile: Path) -> None:
    with subprocess.Popen(
        command(profile, "--duration", "10m"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        wait_for_records(profile.parent / "runs")
        process.terminate()
        process.wait()
    assert process.returncode != 0
    assert processes_naming(profile) == []


def wait_for_records(runs: Path) -> None:
    """Return once a run below `runs` has written its first tick."""
    clock = SystemClock()
    while not any(path.read_bytes().count(b"\n") > 1 for path in runs.glob("*/trace.jsonl")):
        clock.wait_until(clock.now() + 0.05)


def test_a_server_that_cannot_start_is_shown_with_its_own_message_and_exit_code(profile: Path) -> None:
    profile.write_text(PROFILE + '[server]\nhost = "192.0.2.1"\n')  # nobody's address
    done = subprocess.run(command(profile), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "server.host" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((profile.parent / "runs").iterdir()) == []
    assert processes_naming(profile) == []


def arm(
    silence: float | None, healthy: int, fresh: bool = True, failed: int = 0, late: int = 8
) -> dict[str, Any]:
    """Results of a run of 90 s, as far as the verdict looks at them; bucket `late` is over the budget."""
    first = {"p90": 1.25 if fresh else 2.25}
    cuts = {"first_s": first, "last_s": {"p50": 1.0, "p90": 1.5, "p99": 3.5}}  # one hiccup is forgiven
    bucket = {"stalled": 0, "empty": 0, "freshness": cuts}
    slow = late < 8
    return {
        "elapsed_s": 90.0,
        "frame_s": 2.0,
        "silence_at_s": silence,
        "calls": {"opened": 4},
        "freshness": cuts,
        "frames": {"closed": 100, "delivered": 100 - failed},
        "beat_s": {"p50": 1.0, "p99": None, "max": 2.5 if slow else 1.5, "n": 40},
        "buckets": [
            one | {"from_s": 10.0 * number}
            for number, one in enumerate(
                (
                    *([bucket] * min(healthy, late)),
                    bucket | {"freshness": {"last_s": {"p50": 2.5}}} if slow else bucket | {"stalled": 1},
                    *([bucket] * (8 - min(healthy, late))),
                )
            )
        ],
        "limits": [{"name": "freshness to the last token (s)", "limit": 2.0, "measured": 3.5, "held": False}],
    }


@pytest.mark.parametrize(
    ("unbounded", "window", "missed"),
    [
        (arm(45.0, 4), arm(None, 8), []),
        (
            arm(45.0, 2),
            arm(None, 8),
            ["unbounded: answered in time at first, for (s)"],
        ),
        (
            arm(45.0, 8, late=2),
            arm(None, 8),
            ["unbounded: answered in time at first, for (s)"],
        ),
        (arm(20.0, 3), arm(None, 8), ["unbounded: silent from, share of the run"]),
        (arm(80.0, 7), arm(None, 8), ["unbounded: silent from, share of the run"]),
        (arm(None, 8), arm(None, 8), ["unbounded: silent from, share of the run"]),
        (arm(45.0, 4), arm(None, 8, fresh=False), ["window: freshness of the first token, p90 (s)"]),
        (arm(45.0, 4), arm(None, 8, failed=1), ["window: frames that failed their session"]),
        (arm(45.0, 4), None, ["window: played"]),
    ],
)
def test_the_pair_is_held_only_when_it_shows_what_it_promises(
    unbounded: dict[str, Any], window: dict[str, Any] | None, missed: list[str]
) -> None:
    arms = {"unbounded": unbounded} | ({"window": window} if window else {})
    limits = demo.limits(arms)
    assert [limit["name"] for limit in limits if not limit["held"]] == missed
    moment = {"measured_s": unbounded["silence_at_s"], "predicted_s": 47.0}
    said = demo.verdict({"arms": arms, "limits": limits, "moment": moment})
    assert "47.0 s" in said
    fresh = window is not None and not any(name.startswith("window") for name in missed)
    assert ("Window: fresh to the end" in said) == fresh
    if window:
        assert all(name.split(" (")[0] in said for name in missed)
        assert ("Beats took 2.5 of 2 s: end other programs" in said) == (unbounded["beat_s"]["max"] > 2.0)


def run_with_pool(levels: list[int]) -> Run:
    """A run of 30 s with one tick a second."""
    run = Run(Plan("127.0.0.1", 1, 30.0), start=500.0, calls=[], end=530.0)
    run.ticks = [
        TickRecord(tick=n, due=500.0 + n, start=500.0 + n, done=500.0 + n, kv_leased=level, kv_total=100)
        for n, level in enumerate(levels)
    ]
    return run


def test_the_forecast_sees_only_the_first_third() -> None:
    steady = [4 * n for n in range(26)]
    bent_later = steady[:11] + [40] * 15
    for levels in (steady, bent_later):
        moment = demo.moment(run_with_pool(levels), measured_s=20.0)
        assert moment["predicted_s"] == pytest.approx(25.0)
        assert moment["error_share"] == pytest.approx(0.25)


def test_a_pool_that_does_not_rise_gives_no_forecast_and_says_why() -> None:
    moment = demo.moment(run_with_pool([50] * 30), measured_s=None)
    assert moment["predicted_s"] is None
    assert "does not rise" in moment["why"]
