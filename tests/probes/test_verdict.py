"""What cells say together, on answers made up so that the truth is known."""

from __future__ import annotations

from typing import Any

import pytest

from metronome_cli.probes.grid import UNBOUNDED, Bound, Cell, Kind
from metronome_cli.probes.verdict import answered, conclude, in_words, refusal
from metronome_cli.profile import load_profile

LAPTOP = load_profile("laptop")
SMALL, LARGE = Bound("window", 128, 4), Bound("window", 512, 4)


def cell(right: list[list[bool]], blocks: float = 10.0, recalled: bool = False) -> dict[str, Any]:
    """A played cell: `right` says for each call and question whether it was answered."""
    calls = []
    for call in right:
        rows = [answer(ok, number) for number, ok in enumerate(call)]
        calls.append([*rows, answer(recalled, len(call)) | {"kind": "recall"}])
    return {"calls": calls, "frames": 10, "busy_s": 1.0, "blocks_per_call": blocks, "wall_s": 1.0}


def answer(ok: bool, number: int) -> dict[str, Any]:
    return {
        "kind": "question", "lenient": ok, "strict": ok, "repeated_trigrams": 0.1, "distinct_2": 0.9,
        "age_tokens": 600 + 100 * number, "age_s": 14.0 * number, "stalled": 0,
    }  # fmt: skip


def rows(kind: Kind, cells: dict[Bound, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    played = {Cell(kind, bound, 0): found for bound, found in cells.items()}
    return {row["bound"]: row for row in conclude(list(cells), played, LAPTOP, seed=0)}


def test_a_bound_that_loses_nothing_is_safe_and_one_that_loses_half_is_not() -> None:
    good = [[True, True, True, False]] * 8
    half = [[True, False, True, False], [True, True, False, False]] * 4
    found = rows("turn", {UNBOUNDED: cell(good), SMALL: cell(half), LARGE: cell(good)})
    assert found["W=512 S=4"]["turn"]["safe"] is True
    assert found["W=128 S=4"]["turn"]["safe"] is False
    assert found["W=128 S=4"]["turn"]["lenient_difference"]["mean"] == pytest.approx(-0.25)


def test_a_bound_whose_answers_fall_with_age_is_not_safe() -> None:
    steady = [[True] * 12] * 20
    # One of twelve is lost at the end in few calls: within the margin, but it comes with age.
    falling = [[True] * 9 + [False] * 3] * 4 + [[True] * 12] * 16
    found = rows("free", {UNBOUNDED: cell(steady), SMALL: cell(falling)})
    row = found["W=128 S=4"]["free"]
    slope = row["slopes_per_1000_tokens"]["lenient"]
    assert slope["low"] < slope["mean"] < 0
    assert row["slopes_per_1000_tokens"]["repeated_trigrams"]["mean"] == pytest.approx(0)
    assert row["by_age"][0]["lenient"] == 1.0
    assert row["by_age"][-1]["lenient"] == pytest.approx(0.8)


def test_recall_is_told_and_does_not_count_as_an_answer() -> None:
    found = rows(
        "free", {UNBOUNDED: cell([[True, True]] * 4, recalled=True), SMALL: cell([[True, True]] * 4)}
    )
    assert found["unbounded"]["free"]["recalled"] == 1.0
    assert found["unbounded"]["free"]["fresh"] is None  # none was marked as the last one
    assert found["W=128 S=4"]["free"]["recalled"] == 0.0
    assert found["W=128 S=4"]["free"]["lenient"]["mean"] == 1.0


def test_the_verdict_names_the_safe_bounds_and_the_smallest_pool() -> None:
    good = [[True, True, True]] * 8
    found = rows(
        "turn", {UNBOUNDED: cell(good, 100), SMALL: cell(good, blocks=12), LARGE: cell(good, blocks=40)}
    )
    words = in_words(list(found.values()), LAPTOP)
    assert "safe are W=128 S=4, W=512 S=4" in words
    assert f"W=128 S=4's, {12 * LAPTOP.admission.max_sessions} blocks" in words
    bad = rows("turn", {UNBOUNDED: cell(good), SMALL: cell([[False, False, False]] * 8)})
    assert "none of the tested bounds is safe" in in_words(list(bad.values()), LAPTOP)


def test_a_control_that_answers_too_little_refuses_the_grid_with_its_share() -> None:
    poor = cell([[True] + [False] * 9] * 4)
    assert answered(poor) == pytest.approx(0.1)
    assert "answers 10% of the questions" in (refusal("free", poor) or "")
    assert refusal("free", cell([[True, False]] * 4)) is None


def test_a_stream_is_compared_by_its_perplexity() -> None:
    control = {"steps": [[3.0, 3.0], [3.2, 3.0]], "blocks_peak": 9, "wall_s": 1.0}
    worse = {"steps": [[3.1, 3.1], [3.3, 3.1]], "blocks_peak": 3, "wall_s": 1.0}
    found = rows("stream", {UNBOUNDED: control, SMALL: worse})
    row = found["W=128 S=4"]["stream"]
    assert row["ratio"]["mean"] == pytest.approx(2.718281828**0.1)
    assert row["ratio"]["low"] <= row["ratio"]["mean"] <= row["ratio"]["high"]
    assert [(cut["from"], cut["to"]) for cut in row["by_age"]] == [(0, 512)]
    assert row["by_age"][0]["mean"] == pytest.approx(2.718281828**3.15)


def test_text_that_gets_dearer_with_age_shows_as_a_slope_against_the_control() -> None:
    steady = {"steps": [[3.0] * 8, [3.2] * 8, [3.1] * 8], "blocks_peak": 9, "wall_s": 1.0}
    growing = [[level + 0.01 * step for step in range(8)] for level in (3.0, 3.2, 3.1)]
    found = rows("stream", {UNBOUNDED: steady, SMALL: {"steps": growing, "blocks_peak": 3, "wall_s": 1.0}})
    slope = found["W=128 S=4"]["stream"]["slope_per_1000_tokens"]
    assert slope["mean"] == pytest.approx(0.01 / 0.256)
    assert [(cut["from"], cut["to"]) for cut in found["W=128 S=4"]["stream"]["by_age"]] == [
        (0, 1024),
        (1024, 2048),
    ]


def test_what_the_ears_wrote_stands_beside_the_scores_that_depend_on_a_window() -> None:
    spoken = cell([[True, True]] * 2)
    for call in spoken["calls"]:
        for row in call:
            row["heard_wer"] = 0.25
    found = rows("turn", {UNBOUNDED: spoken, SMALL: cell([[True, True]] * 2)})
    assert found["unbounded"]["turn"]["heard_wer"] == 0.25
    assert "heard_wer" not in found["W=128 S=4"]["turn"]


def test_a_bound_that_no_call_outgrew_was_not_tried() -> None:
    good = cell([[True, True, True]] * 8)
    huge = Bound("window", 4096, 4)
    found = rows("turn", {UNBOUNDED: good, SMALL: good, huge: good})
    assert found["W=128 S=4"]["turn"]["safe"] is True
    assert found["W=4096 S=4"]["turn"]["safe"] is None
    assert "no call outgrew W=4096 S=4" in in_words(list(found.values()), LAPTOP)


def test_replies_that_nobody_judged_do_not_count_as_free() -> None:
    judged = cell([[True] * 6] * 3)
    for call in judged["calls"]:
        for number, row in enumerate(call):
            if number % 2 == 0:
                row |= {"gen_nll": 10.0, "gen_tokens": 5}
    found = rows("turn", {UNBOUNDED: judged, SMALL: judged})
    assert found["W=128 S=4"]["turn"]["gen_nll"]["mean"] == pytest.approx(2.0)
    assert found["W=128 S=4"]["turn"]["slopes_per_1000_tokens"]["gen_nll"]["mean"] == pytest.approx(0)
