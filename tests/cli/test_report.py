"""Tables in a terminal of 80 columns, and a run folder that could not be written."""

from __future__ import annotations

import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from metronome_cli.cli.report import grid, unsaved
from metronome_cli.profile import parse_profile
from metronome_cli.reporting.compare import comparison
from metronome_cli.reporting.serve import serve_tables
from metronome_cli.reporting.tables import Table, arms_table, load_tables, search_tables
from metronome_cli.server.messages import Beat
from metronome_cli.server.metrics import Metrics
from metronome_cli.trace import TickRecord
from tests.reporting.conftest import some_results


def drawn(table: Table, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, record=True)
    console.print(grid(table, width))
    return console.export_text()


def few_frames() -> list[Table]:
    """A load report whose every percentile is of few values, which takes the most room."""
    results = some_results(None)
    cuts = {"p50": 0.4, "p90": 0.5, "p99": 0.625, "max": 0.75, "n": 29}
    results["freshness"] = {"first_s": cuts, "last_s": cuts}
    results["after_speech_s"] = results["client"]["lag_s"] = cuts
    results["slope"] = {"s_per_min": 0.01, "low": -0.002, "high": 0.02}
    results["buckets"][1] |= {"from_s": 1190.0, "to_s": 1200.0, "freshness": results["freshness"]}
    results["buckets"][1] |= {"frames": 99, "stalled": 99, "empty": 99, "occupancy": 1.0}
    results["limits"] = [
        {
            "name": "freshness to the last token, p99 (s)",
            "limit": 2.0,
            "measured": 0.75,
            "held": True,
            "n": 29,
        }
    ]
    results["calls"] |= {"refusals": {"ramp": 9}, "retry_after_s": 1.0, "redials": 7, "let_in_late_s": cuts}
    return load_tables(results)


def a_served_beat() -> list[Table]:
    metrics = Metrics(parse_profile("tested", {"model": {"kind": "null"}}))
    for number in range(12_345):
        tick = TickRecord(tick=number, due=0.0, start=0.001, done=1.001, sessions=1, kv_total=80)
        beat = Beat(tick, 1, 1, None, mute=0, fell_mute=0, firsts=[0.5], lasts=[0.9])
        metrics.beat(beat)
    return serve_tables(metrics.summary())


@pytest.mark.parametrize("tables", [few_frames, a_served_beat])
def test_every_row_of_a_load_or_serve_table_is_one_line_of_80_columns(tables: object) -> None:
    assert callable(tables)
    for table in tables():
        text = drawn(table)
        for row in (table.columns, *table.rows):
            assert any(all(cell in line for cell in row) for line in text.splitlines()), (row, text)


def test_figures_and_addresses_are_whole_in_80_columns_and_heads_are_broken() -> None:
    few = {"p50": 1.37, "p90": 1.5, "p99": None, "max": 1.58, "n": 29}
    demo = {name: some_results(None) for name in ("unbounded", "window")}
    for arm in demo.values():
        for bucket in arm["buckets"]:
            bucket["freshness"] = {"first_s": few, "last_s": few}
            bucket |= {"stalled": 10, "occupancy": 1.0}
    arms = arms_table(demo)
    runs = comparison({"20260101T120000Z-load-127.0.0.1-8765": demo["window"], "b": demo["window"]})
    why = "freshness to the last token 2.721 of 2 s (max of 14)"
    point = {"n": 1024, "held": False, "why": why, "cadence": 1.0, "cpu_share": 1.0}
    points = [point | {"first_s": few, "last_s": few, "after_speech_s": None}]
    for table in (arms, *runs, *search_tables({"points": points, "budget_s": 2.0})):
        text = drawn(table)
        for row in table.rows:
            assert any(all(cell in line for cell in row) for line in text.splitlines()), (row, text)
    assert arms.columns[1] == "unbounded p50 / max (s)"
    assert arms.rows[0][1] == "1.37 / 1.58"


def test_names_of_runs_side_by_side_are_whole_in_80_columns() -> None:
    names = ["20260101T120000Z-load-127.0.0.1-8765", "20260101T120500Z-load-gpu-box.example.org-8765-2"]
    text = "".join(map(drawn, comparison(dict.fromkeys(names, some_results(None)))))
    assert all(name in text for name in names)


def test_figures_are_broken_before_names_are() -> None:
    name = "a name of more words than its figure has"
    assert f"│ {name} │" in drawn(Table("t", ("what", "figure"), ((name, "many " * 6),)), width=60)


def test_where_names_have_no_room_nothing_of_them_is_lost() -> None:
    table = Table("t", ("what", "figure"), (("a name that is as long as this", "0.123456789"),))
    text = drawn(table, width=36)
    words = [word for word in text.replace("│", " ").split() if word.isalpha()]
    assert words == [*["t", "what", "figure", "a", "name", "that", "is", "as", "long", "as", "this"]]
    assert "0.123456789" in text


def test_a_run_folder_that_could_not_be_written_is_told_of_by_path_cause_and_cure(tmp_path: Path) -> None:
    full = unsaved(tmp_path, OSError(28, "No space left on device", "report.json.part"))
    assert str(full) == (
        f"the run folder is not whole ({tmp_path}): No space left on device (report.json.part); "
        "make room on its disk, or give another --out"
    )
    shutil.rmtree(tmp_path)
    gone = unsaved(tmp_path, FileNotFoundError(2, "No such file or directory", "report.json.part"))
    assert "it was removed while the run went on; leave it where it is until the run is over" in str(gone)
    assert full.exit_code == gone.exit_code == 1
