from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.profile import parse_profile
from metronome_cli.report import new_report
from metronome_cli.reporting.kinds import tables
from metronome_cli.server.messages import Beat
from metronome_cli.server.metrics import Metrics
from metronome_cli.stats import percentiles
from metronome_cli.trace import TickRecord

PROFILE = parse_profile("tested", {"model": {"kind": "null"}, "pool": {"blocks": 80}})


def shown(metrics: Metrics) -> dict[str, str]:
    report = new_report("serve", PROFILE, VirtualClock())
    report.results = {"url": "http://127.0.0.1:8765", **metrics.summary()}
    (table,) = tables(report)
    return {row[0]: row[1] for row in table.rows}


def test_a_servers_run_is_one_table() -> None:
    metrics = Metrics(PROFILE)
    metrics.opened = 3
    metrics.refused.update({"max_sessions": 2, "pool_full": 1})
    tick = TickRecord(
        tick=0, due=0.0, start=0.001, done=1.001, skipped=1, sessions=3,
        stalled=1, empty=2, tokens_in=7, tokens_out=12, kv_leased=20, kv_total=80,
    )  # fmt: skip
    metrics.beat(
        Beat(tick, speaking=3, sessions=3, room=None, mute=1, fell_mute=1, firsts=[0.5], lasts=[0.9])
    )
    facts = shown(metrics)
    assert facts["calls"] == "3"
    assert facts["calls refused"] == "2 max_sessions, 1 pool_full"
    assert facts["calls that were ever mute"] == "1"
    assert facts["beats kept / skipped"] == "1 / 1"
    assert facts["frames due / stalled / empty"] == "3 / 1 / 2"
    assert facts["tokens in / out"] == "7 / 12"
    assert facts["pool at its fullest"] == "25.0 % of 80 blocks"
    cuts, n = facts["freshness, first token p50 / p90 / p99 (s)"].split(", n ")
    *first, p99 = cuts.split(" / ")
    assert all(float(cut) == 0.5 for cut in first)
    assert (p99, n) == ("max 0.500", "1")  # there is no p99 of one frame


def test_a_server_that_nobody_called_measured_nothing() -> None:
    facts = shown(Metrics(PROFILE))
    assert facts["calls refused"] == "0"
    assert facts["tick p50 / p90 / p99 (s)"] == "-"
    assert facts["freshness, first token p50 / p90 / p99 (s)"] == "-"


def test_a_report_of_an_older_release_has_no_table() -> None:
    report = new_report("serve", PROFILE, VirtualClock())
    report.results = {"url": "http://127.0.0.1:8765", "calls": 3, "refused": {}}
    assert tables(report) == []


def test_a_run_that_ended_can_be_shown_again(tmp_path: Path) -> None:
    profile = tmp_path / "null.toml"
    profile.write_text('[model]\nkind = "null"\n[beat]\nframe_s = 0.1\n[admission]\nmax_sessions = 1\n')
    command = [sys.executable, "-m", "metronome_cli"]
    options = ["--profile", str(profile), "--port", "0", "--out", str(tmp_path / "runs")]
    server = subprocess.Popen(
        [*command, "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        assert "is ready" in server.stderr.readline()
        server.terminate()
        table, _ = server.communicate(timeout=20)
    finally:
        server.kill()
    (run,) = (tmp_path / "runs").iterdir()
    again = subprocess.run([*command, "report", str(run)], capture_output=True, text=True, check=True)
    assert "beats kept / skipped" in table
    assert again.stdout == table
    assert "## Server" in (run / "summary.md").read_text()


def test_percentiles_are_those_of_the_whole_runs_records() -> None:
    metrics = Metrics(PROFILE)
    late = [0.3 + 6.0 * (number % 97) / 97 for number in range(1000)]
    for value in late:
        metrics.first_s.add(value)
    told = shown(metrics)["freshness, first token p50 / p90 / p99 (s)"].split(", n ")[0].split(" / ")
    assert [float(cut) for cut in told] == pytest.approx(list((percentiles(late) or {}).values()), rel=1e-3)
