"""The tables of a probe: what one call shows, and what nobody asked for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from metronome_cli.reporting.quality import quality_tables


def row(low: float | None, high: float | None, **extra: Any) -> dict[str, Any]:
    one = {"mean": 0.5, "low": low, "high": high}
    played = {
        "lenient": one,
        "strict": one,
        "lenient_difference": {"mean": 0.0, "low": low, "high": high},
        "safe": None,
        "outgrown": False,
        "fresh": 1.0,
        "recalled": None,
        "repeated_trigrams": one,
        "pool_share": 0.042,
        "slopes_per_1000_tokens": {"lenient": one},
    }
    return {"bound": "W=256 S=0", "turn": played | extra}


@pytest.mark.parametrize(("low", "high"), [(-math.inf, math.inf), (None, None)])
def test_one_call_shows_its_mean_alone_now_and_when_it_is_drawn_again(
    low: float | None, high: float | None
) -> None:
    answers, *others = quality_tables({"rows": [row(low, high)]})
    assert answers.title == "turn-based: answers, of one call each, which has no interval"
    assert answers.rows == (("W=256 S=0", "50", "50", "0", "not tried"),)
    assert not any("inf" in cell for table in others for line in table.rows for cell in line)


def test_scores_that_nobody_asked_for_have_no_column_and_no_table() -> None:
    tables = {table.title: table.columns for table in quality_tables({"rows": [row(0.25, 0.75)]})}
    assert "Perplexity" not in tables
    assert tables["Repetition"] == ("bound", "trigrams repeated, %")
    assert tables["Costs"] == ("bound", "share of the pool per call, %")
    judged = row(0.25, 0.75, gen_ppl={"mean": 2.0, "low": 1.0, "high": 3.0})
    tables = {table.title: table.columns for table in quality_tables({"rows": [judged]})}
    assert tables["Perplexity"] == ("bound", "of what was said", "trigrams repeated, %")
