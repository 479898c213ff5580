"""`metronome fit capacity`, from files to a verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from metronome_cli.cli.main import main
from metronome_cli.clock import VirtualClock
from metronome_cli.fit.ticks import read_ticks
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.cost import HELD_OUT
from tests.fit.calls import Took, run, took, write

Fit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def drawing_fit(metronome: Fit, tmp_path: Path) -> Fit:
    """The command, with its exit code, standard output and standard error."""
    return partial(metronome, "fit", "capacity", "--out", tmp_path / "runs")


@pytest.fixture
def fit(drawing_fit: Fit, undrawn: None) -> Fit:
    """The same with pictures that are empty."""
    return drawing_fit


def traces(tmp_path: Path, cost: Took = took, **of: Any) -> Path:
    """A pattern that names runs of 4, 8, 16 and 32 calls."""
    for n in (4, 8, 16, 32):
        write(tmp_path / f"n{n}" / "trace.jsonl", run(n, cost=cost, **of))
    return tmp_path / "n*"


def test_the_answer_is_a_table_a_sentence_and_a_run_folder_that_is_drawn_again_alike(
    drawing_fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = drawing_fit(traces(tmp_path))
    assert code == 0
    assert "sessions fit, then the 95th percentile of ticks reaches 1.6 s" in " ".join(out.split())
    assert "Every N, predicted from the others" in out
    [folder] = (tmp_path / "runs").iterdir()
    assert f"run: {folder}" in err
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() == {"report.json", "summary.md", "fit-capacity.png"}
    (folder / "fit-capacity.png").unlink()
    monkeypatch.setattr(sys, "argv", ["metronome", "report", str(folder)])
    with pytest.raises(SystemExit):
        main()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_json_is_one_document_with_the_cost_and_its_check(fit: Fit, tmp_path: Path) -> None:
    code, out, _ = fit(traces(tmp_path, blocks=1000), "--json", "--margin", 0.1, "--budget", "3s")
    told = json.loads(out)
    assert code == 0
    assert (told["n"], told["binds"]) == (45, "memory")
    assert told["limit_s"] == pytest.approx(2.7)
    assert told["deadline"]["estimate"] > 150
    assert [held["n"] for held in told["held_out"]] == [4, 8, 16, 32]
    assert told["worst_error"] < 0.1
    assert told["per_session"]["tokens_out"] == 2
    assert len(told["cost"]["ratios"]) == 101


def test_a_prediction_that_is_off_by_more_than_a_tenth_is_exit_code_3(fit: Fit, tmp_path: Path) -> None:
    def bent(sessions: int, blocks: int, tokens_in: int) -> float:
        return 0.05 + 0.001 * sessions**2

    code, out, _ = fit(traces(tmp_path, bent), "--json")
    assert code == 3
    assert json.loads(out)["worst_error"] > HELD_OUT


def test_what_a_reader_should_know_is_noted(fit: Fit, tmp_path: Path) -> None:
    _, out, _ = fit(traces(tmp_path, bound=40), "--budget", "20s")
    said = " ".join(out.split())
    assert "% of what they reserve" in said
    assert "more than twice the 32 sessions" in said


def reports(tmp_path: Path, other: str = "", **fields: Any) -> Path:
    """Traces with the reports of their servers beside them; that of 8 calls had other fields."""
    pattern = traces(tmp_path)
    for n in (4, 8, 16, 32):
        given = {"window.window": 256} | (fields if n == 8 else {})
        profile = load_profile(other if other and n == 8 else "laptop", given)
        new_report("serve", profile, VirtualClock()).save(tmp_path / f"n{n}")
    return pattern


@pytest.mark.parametrize(
    ("other", "fields", "said"),
    [
        ("", {"window.window": 512}, "(window.window 512 and 256): name only runs of one set-up"),
        ("", {"model.dtype": "bfloat16"}, "(model.dtype 'bfloat16' and 'float32')"),
        ("laptop-text", {}, "(beat.frame_s "),
    ],
)
def test_runs_of_different_set_ups_are_refused_by_name(
    fit: Fit, tmp_path: Path, other: str, fields: dict[str, Any], said: str
) -> None:
    code, out, err = fit(reports(tmp_path, other, **fields))
    assert (code, out) == (2, "")
    assert f"{tmp_path}/n8/trace.jsonl': is of another set-up than {tmp_path}" in err
    assert said in err


def test_what_changes_no_ticks_cost_may_differ_and_what_is_not_told_is_noted(
    fit: Fit, tmp_path: Path
) -> None:
    more: dict[str, Any] = {
        "pool.blocks": 656,
        "admission.max_sessions": 16,
        "run.seed": 7,
        "server.port": 1,
    }
    pattern = reports(tmp_path, **more)
    assert read_ticks([str(pattern)]).untold == ()
    (tmp_path / "n4" / "report.json").unlink()  # as of a server that was killed
    said = " ".join(fit(pattern)[1].split())
    assert "nothing beside 1 of the traces tells their profile" in said
    # And the figure of the deadline is not that of the other fit.
    assert "the deadline's figure is for p95 of ticks, with 20 % of the budget left free" in said
    assert "`fit collapse-model` lets the median beat take all of it" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("n8",), "3 or more numbers of sessions"),
        (("n4", "n8", "n16", "idle"), "expected ticks that served calls"),
        (("nothing-here",), "no file, and no run folder"),
        (("/dev/zero",), "give a regular file or a pipe"),
        (("a.csv",), "'a.csv': give a trace.jsonl or its run folder: nothing else tells what each tick"),
        (("all",), "'all': it holds runs: name some of them, or all with \"all/*\""),
        (("none",), "'none': give a run folder that has a trace.jsonl"),
        (("n*", "--margin", "1.5"), "margin = 1.5: use a share"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_number(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    traces(tmp_path)
    write(tmp_path / "idle" / "trace.jsonl", run(0))
    write(tmp_path / "all" / "n4" / "trace.jsonl", run(4))
    (tmp_path / "a.csv").write_text("t_s,kv_occupancy\n0,0.1\n")
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path)
    code, out, err = fit(*options)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("budget", "said"), [("0s", "use 1ms to 1h"), ("61m", "use 1ms to 1h"), ("1e308h", "no length of time")]
)
def test_a_budget_is_a_millisecond_to_an_hour(fit: Fit, tmp_path: Path, budget: str, said: str) -> None:
    code, out, err = fit(tmp_path, "--budget", budget)
    assert (code, out) == (2, "")
    assert f"'{budget}' is " in err
    assert said in err
