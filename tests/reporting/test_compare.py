"""Several runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metronome_cli.errors import FieldError
from metronome_cli.reporting.compare import compared, comparison, draw_comparison, short_names


def test_runs_are_columns_and_figures_are_rows(run_of: Any) -> None:
    one = run_of("load")[1]
    other = one.model_copy(deep=True)
    other.results["calls"]["opened"] = 7
    other.results["freshness"] = None
    who, table = comparison(compared({"before": one, "after": other}))
    assert who.columns == ("", "server")
    assert who.rows == (("before", "http://127.0.0.1:8765"), ("after", "http://127.0.0.1:8765"))
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns == ("what", "before", "after")
    assert rows["calls opened"] == ("2", "7")
    assert rows["calls refused"] == ("3", "3")
    assert [rows[f"first token, {cut} (s)"] for cut in ("p50", "p99")] == [("0.400", "-"), ("0.625", "-")]
    assert rows["every limit held"] == ("no", "no")
    assert rows["held: calls refused"] == ("no", "no")
    assert rows["held: freshness"] == ("not measurable", "not measurable")
    assert "after speech, p50 (s)" not in rows  # neither has it
    assert {len(row) for row in table.rows} == {3}


def test_long_names_are_numbers_that_a_table_explains(run_of: Any) -> None:
    names = [f"20260101T12000{n}Z-load-127.0.0.1-8765" for n in range(3)]
    told, table = comparison(compared(dict.fromkeys(names, run_of("load")[1])))
    url = "http://127.0.0.1:8765"
    assert told.rows == (("1", names[0], url), ("2", names[1], url), ("3", names[2], url))
    assert table.columns == ("what", "1", "2", "3")


def test_what_a_model_that_speaks_gave_back_is_compared_too(run_of: Any) -> None:
    one = run_of("load")[1]
    one.results["sound"], one.results["replies_wer"] = {"share": 0.5}, {"wer": 0.25, "words": 8}
    other = one.model_copy(deep=True)
    del other.results["sound"], other.results["replies_wer"]
    _, table = comparison(compared({"a": one, "b": other}))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["speech given back"] == ("50.0 %", "-")
    assert rows["replies misheard"] == ("25.0 %", "-")


def test_a_demo_stands_there_with_both_of_its_arms(run_of: Any) -> None:
    report = run_of("demo")[1]
    names, table = comparison(compared({"demo": report, "again": report}))
    assert [row[:2] for row in names.rows] == [
        ("1", "demo unbounded"),
        ("2", "demo window"),
        ("3", "again unbounded"),
        ("4", "again window"),
    ]
    assert table.columns == ("what", "1", "2", "3", "4")
    assert {row[0]: row[1:3] for row in table.rows}["moment of silence (s)"] == ("10.0", "-")


def test_a_run_that_has_nothing_to_compare_is_named(run_of: Any) -> None:
    with pytest.raises(FieldError, match="find-n"):
        compared({"mine": run_of("find-n")[1]})


def test_each_run_leaves_its_line_in_the_picture(run_of: Any, tmp_path: Path) -> None:
    runs = compared({"a": run_of("load")[1], "b": run_of("load")[1].model_copy(deep=True)})
    draw_comparison(tmp_path / "both.png", runs)
    draw_comparison(tmp_path / "again.png", runs)
    draw_comparison(tmp_path / "one.png", {"a": runs["a"]})
    both, again, one = ((tmp_path / name).read_bytes() for name in ("both.png", "again.png", "one.png"))
    assert both == again != one


def test_names_are_as_short_as_tells_the_runs_apart() -> None:
    assert short_names([Path("runs/a"), Path("runs/b")]) == ["a", "b"]
    assert short_names([Path("mon/n-4"), Path("tue/n-4")]) == ["mon/n-4", "tue/n-4"]
    with pytest.raises(FieldError, match="once"):
        short_names([Path("runs/a"), Path("runs/a")])
