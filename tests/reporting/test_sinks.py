"""A probe-sinks report as tables and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.image import imread

from metronome_cli.clock import VirtualClock
from metronome_cli.report import new_report
from metronome_cli.reporting.ages import draw_by_age
from metronome_cli.reporting.kinds import tables
from metronome_cli.reporting.summary import redraw


def results() -> dict[str, Any]:
    kept = [
        {"k": k, "share": 0.25, "even": k / 1000, "heads_above": 0.5, "most": 0.75}
        for k in (1, 2, 4, 8, 16, 32, 64)
    ]
    return {
        "checkpoint": "tiny",
        "tokens": 600,
        "queries": 472,
        "kept": kept,
        "heads": {k: [[0.1, 0.9], [0.5, 0.0], [1.0, 0.3]] for k in ("1", "4", "64")},
        "places": [0.25, *[0.001] * 255],
        "strongest": [{"place": 0, "token": "<s>", "share": 0.25}],
        "spelled": [f"t{n}" for n in range(64)],
        "marks": {"header": 18, "content": 21, "generated": 34, "text": 42},
        "suggested": 1,
        "verdict": "S = 1",
    }


def test_the_tables_name_shares_marks_and_the_strongest_places() -> None:
    report = new_report("probe-sinks", None, VirtualClock())
    report.results = results()
    shares, parts, strongest = tables(report)
    assert shares.rows[2] == ("4", "25.0 %", "0.4 %", "50.0 %", "75.0 %")
    assert parts.rows[1] == ("content", "21", "t21")
    assert strongest.rows == (("0", "<s>", "25.00 %"),)


def test_a_run_of_probe_sinks_is_drawn_and_drawn_again_the_same(tmp_path: Path) -> None:
    report = new_report("probe-sinks", None, VirtualClock())
    report.results = results()
    report.save(tmp_path)
    summary, picture = redraw(tmp_path)
    assert "S = 1" in summary.read_text("utf-8")
    assert imread(picture)[..., :3].std() > 0.05
    drawn = picture.read_bytes()
    redraw(tmp_path)
    assert picture.read_bytes() == drawn


def test_perplexity_by_age_is_drawn_with_and_without_intervals(tmp_path: Path) -> None:
    cuts = [{"from": 0, "to": 1024, "mean": 50.0, "low": 45.0, "high": 55.0}]
    cuts.append({"from": 1024, "to": 2048, "mean": 40.0, "low": 38.0, "high": 43.0})
    alone = [{**cut, "low": None, "high": None} for cut in cuts]
    draw_by_age(
        tmp_path / "ages.png",
        "ages",
        {
            "4k": [{"name": "full", "by_age": cuts}, {"name": "W=8", "by_age": alone}],
            "64k": [{"name": "full", "by_age": cuts}],
        },
    )
    assert imread(tmp_path / "ages.png")[..., :3].std() > 0.05
