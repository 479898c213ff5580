"""A fit-collapse-model report as tables and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from metronome_cli.cli.report import print_tables
from metronome_cli.clock import VirtualClock
from metronome_cli.report import new_report
from metronome_cli.reporting.kinds import tables
from metronome_cli.reporting.summary import redraw

LIMIT = {"binds": "memory", "why": "because", "memory_sessions": None, "deadline_sessions": None}


def ramp(**changed: Any) -> dict[str, Any]:
    fit = {
        "t_sat": {"estimate": 145.0, "low": 143.0, "high": 149.0},
        "rho0": 0.01,
        "rate_per_session": 0.00005,
        "fill_rate": 0.005,
        "shape": "ramp",
        "bounded": None,
        "collapse_probability": 0.75,
        "session_length_s": 300.0,
        "plateau": None,
        "limit": LIMIT,
        "baseline": 144.9,
        "score": {
            "full_s": 147.0,
            "error_s": -2.0,
            "error_share": -0.0136,
            "inside": True,
            "baseline_error_s": None,
            "baseline_error_share": None,
        },
        "left_s": 62.0,
        "last_s": 83.0,
        "points": 40,
        "at": 0.5,
        "level": 0.9,
        "notes": [],
        "source": "traces/deep/ramp.csv",
        "verdict": "full",
    }
    return fit | changed


def plateau(**changed: Any) -> dict[str, Any]:
    level = {"estimate": 0.25, "low": 0.24, "high": 0.27}
    rest: dict[str, Any] = {"t_sat": None, "left_s": None, "baseline": 7481.0, "score": None, "at": None}
    rest |= {"collapse_probability": None, "shape": "plateau", "source": "traces/window.csv"}
    kept = {"level": level, "since_s": 60.0, "per_session": 0.002, "ceiling": 1500}
    limit = {"binds": "deadline", "why": "a beat", "memory_sessions": 1500, "deadline_sessions": 90}
    return ramp(**rest, plateau=kept, limit=limit) | changed


def drawn(line: dict[str, float] | None = None) -> dict[str, Any]:
    t = np.linspace(0.0, 150.0, 30).tolist()
    rho = np.linspace(0.01, 1.0, 30).tolist()
    return {
        "source": "x",
        "samples": {"t_s": t[:15], "occupancy": rho[:15]},
        "curve": {"t_s": t, "occupancy": rho},
        "from": 0.5,
        "line": line,
    }


def results(*fits: dict[str, Any]) -> dict[str, Any]:
    return {"fits": list(fits), "drawn": [drawn({"rho0": 0.0, "rate": 0.007}) for _ in fits], "verdict": "so"}


def shown(*fits: dict[str, Any]) -> dict[str, str]:
    report = new_report("fit-collapse-model", None, VirtualClock())
    report.results = results(*fits)
    [table] = tables(report)
    return {row[0]: " | ".join(row[1:]) for row in table.rows}


def listed(*fits: dict[str, Any]) -> dict[str, dict[str, str]]:
    """The tables of several fits by title, each with its rows by number."""
    report = new_report("fit-collapse-model", None, VirtualClock())
    report.results = results(*fits)
    return {table.title: {row[0]: " | ".join(row[1:]) for row in table.rows} for table in tables(report)}


def test_a_ramp_is_told_with_interval_probability_and_score() -> None:
    facts = shown(ramp())
    assert facts["full at (s), 90 % interval"] == "145.0 (143.0 to 149.0)"
    assert facts["fill rate (% of the pool per minute)"] == "30"
    assert facts["fill rate per session (% per minute)"] == "0.3"
    assert facts["calls of 300 s collapse, probability"] == "0.75"
    assert facts["full in fact (s)"] == "147.0"
    assert facts["forecast off by (s)"] == "-2.0 (-1.4 %)"
    assert facts["straight line off by (s)"] == "-"
    assert facts["in the interval"] == "yes"
    assert "all calls stall" in facts["full means"]
    assert facts["calls have a bound"] == "not told here: windows that still fill rise like this"
    assert shown(ramp(bounded=False))["calls have a bound"] == "no"
    assert "calls have a bound" not in shown(ramp(left_s=0.0))  # full: nothing hangs on it
    assert "sessions that memory holds" not in facts


def test_an_interval_without_an_end_says_so() -> None:
    facts = shown(ramp(t_sat={"estimate": 145.0, "low": 143.0, "high": None}))
    assert facts["full at (s), 90 % interval"] == "145.0 (143.0 to -)"


def test_a_plateau_is_told_with_both_ceilings() -> None:
    facts = shown(plateau())
    assert facts["plateau, 90 % interval"] == "25.0 % (24.0 to 27.0)"
    assert facts["share of a session, s(W)"] == "0.200 %"
    assert facts["sessions that memory holds"] == "1,500"
    assert facts["sessions within the deadline"] == "90"
    assert facts["full at (s), 90 % interval"] == "-"
    assert facts["full at, by the straight line over 10-80 % (s)"] == "-"
    assert "full means" not in facts


def test_several_are_numbered_under_what_tells_them_apart() -> None:
    found = listed(ramp(score=None), plateau())
    assert list(found) == ["Fitted", "Collapse model", "In these tables"]
    assert list(found["In these tables"]) == ["full", "deadline"]
    assert "a call found none" in found["In these tables"]["full"]
    assert "In these tables" not in listed(*[plateau(limit=LIMIT)] * 2)
    assert found["Fitted"] == {"1": "deep/ramp.csv", "2": "window.csv"}
    assert found["Collapse model"]["2"] == "- | - | - | 25.0 % (24.0 to 27.0) | deadline"
    assert listed(ramp(), ramp())["Fitted"] == {"1": "ramp.csv", "2": "ramp.csv"}


def test_the_scores_of_several_stand_beside_what_happened() -> None:
    found = listed(ramp(), plateau(), ramp())["Forecasts beside what happened"]
    assert found == {"1": "147.0 | -2.0 (-1.4 %) | - | yes", "3": "147.0 | -2.0 (-1.4 %) | - | yes"}


UNSEEN = dict.fromkeys(ramp()["score"])


def test_a_trace_that_ends_before_its_pool_is_full_scores_nothing_and_says_so() -> None:
    facts = shown(ramp(score=UNSEEN))
    assert facts["full in fact (s)"].startswith("not in this trace")
    assert "forecast off by (s)" not in facts
    assert listed(ramp(score=UNSEEN), ramp())["Forecasts beside what happened"]["1"] == "not seen | - | - | -"


def test_a_plateau_to_come_has_no_level_and_says_who_tells() -> None:
    facts = shown(plateau(plateau=None, bounded=True, limit=LIMIT))
    assert facts["levels off at"].startswith("not told: the server's own run folder")
    found = listed(*[plateau(plateau=None, bounded=True, limit=LIMIT)] * 2)
    assert found["Collapse model"]["2"] == "- | - | - | not told | memory"
    assert list(found["In these tables"]) == ["not told"]
    assert facts["calls have a bound"] == "yes"
    assert "full means" not in facts


@pytest.mark.parametrize("fits", [(ramp(),), (ramp(), plateau())])
def test_a_terminal_of_80_columns_breaks_no_name_and_no_number(
    fits: tuple[dict[str, Any], ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "runs/20260101T120000Z-load-127.0.0.1-8765/trace.jsonl (unbounded)"
    report = new_report("fit-collapse-model", None, VirtualClock())
    report.results = results(*({**fit, "source": f"{name}{n}"} for n, fit in enumerate(fits)))
    print_tables(tables(report))
    words = capsys.readouterr().out.split()
    shown_as = name if len(fits) == 1 else "trace.jsonl (unbounded)"
    assert {*f"{shown_as}0".split(), "(143.0", "149.0)", "straight"} <= set(words)


@pytest.mark.parametrize(
    "fits",
    [
        (ramp(),),
        (plateau(),),
        (ramp(t_sat={"estimate": 145.0, "low": 143.0, "high": None}), plateau(), ramp()),
        tuple(ramp() for _ in range(13)),
    ],
)
def test_fits_are_drawn_and_drawn_again_the_same(tmp_path: Path, fits: tuple[dict[str, Any], ...]) -> None:
    report = new_report("fit-collapse-model", None, VirtualClock())
    report.results = results(*fits)
    report.results["drawn"][0]["line"] = None
    report.save(tmp_path)
    summary, picture = redraw(tmp_path)
    assert picture.name == "fit.png"
    assert "fit.png" in summary.read_text("utf-8")
    pixels = imread(picture)[..., :3]
    assert pixels.std() > 0.05
    assert max(pixels.shape) < 3000
    bytes_drawn = picture.read_bytes()
    redraw(tmp_path)
    assert picture.read_bytes() == bytes_drawn
