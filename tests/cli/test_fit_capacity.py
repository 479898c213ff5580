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
from metronome_cli.fit import capacity
from tests.fit.calls import Took, run, took, write

Fit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fit(metronome: Fit, tmp_path: Path) -> Fit:
    """The command, with its exit code, standard output and standard error."""
    return partial(metronome, "fit", "capacity", "--out", tmp_path / "runs")


def traces(tmp_path: Path, cost: Took = took, **of: Any) -> Path:
    """A pattern that names runs of 4, 8, 16 and 32 calls."""
    for n in (4, 8, 16, 32):
        write(tmp_path / f"n{n}" / "trace.jsonl", run(n, cost=cost, **of))
    return tmp_path / "n*"


def test_the_answer_is_a_table_a_sentence_and_a_run_folder_that_is_drawn_again_alike(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = fit(traces(tmp_path))
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
    assert json.loads(out)["worst_error"] > capacity.HELD_OUT


def test_what_a_reader_should_know_is_noted(fit: Fit, tmp_path: Path) -> None:
    _, out, _ = fit(traces(tmp_path, bound=40), "--budget", "20s")
    said = " ".join(out.split())
    assert "% of what they reserve" in said
    assert "more than twice the 32 sessions" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("n8",), "3 or more numbers of sessions"),
        (("n4", "n8", "n16", "idle"), "expected ticks that served calls"),
        (("nothing-here",), "no file, and no run folder"),
        (("/dev/zero",), "give a regular file or a pipe"),
        (("n*", "--margin", "1.5"), "margin = 1.5: use a share"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_no_number(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: str
) -> None:
    traces(tmp_path)
    write(tmp_path / "idle" / "trace.jsonl", run(0))
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
