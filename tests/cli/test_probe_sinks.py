"""`metronome probe sinks`, on a tiny random checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metronome_cli.cli.main import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sinks(
    tiny_chat: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command, with an exit code, standard output and standard error."""
    lines = (f"{number} years ago, never mind how long precisely.\n" for number in range(400))
    (tmp_path / "book.txt").write_text("".join(lines))

    def run(*options: object) -> tuple[int, str, str]:
        fixed = ["--checkpoint", tiny_chat, "--text", tmp_path / "book.txt", "--out", tmp_path / "runs"]
        fixed += ["--tokens", 600]
        monkeypatch.setattr(sys, "argv", ["metronome", "probe", "sinks", *map(str, (*fixed, *options))])
        with pytest.raises(SystemExit) as left:
            main()
        return (left.value.code if isinstance(left.value.code, int) else 0, *capfd.readouterr())

    return run


def test_a_run_leaves_report_summary_and_picture_and_says_what_to_pin(sinks: Run, tmp_path: Path) -> None:
    code, out, err = sinks("--seed", 3)
    assert code == 0
    assert "Attention on the first tokens" in out
    assert "S = " in out
    [folder] = (tmp_path / "runs").iterdir()
    assert str(folder) in err
    assert {path.name for path in folder.iterdir()} == {"report.json", "summary.md", "probe-sinks.png"}
    report = json.loads((folder / "report.json").read_text())
    assert (report["command"], report["seed"]) == ("probe-sinks", 3)
    assert [row["k"] for row in report["results"]["kept"]] == [1, 2, 4, 8, 16, 32, 64]


def test_the_same_seed_gives_the_same_results_as_one_json_document(sinks: Run) -> None:
    one, again, other = (json.loads(sinks("--json", "--seed", seed)[1])["results"] for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_a_run_can_be_drawn_again(sinks: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinks()
    [folder] = (tmp_path / "runs").iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "probe-sinks.png").unlink()
    monkeypatch.setattr(sys, "argv", ["metronome", "report", str(folder)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text", __file__ + ".not"), "text = "),
        (("--tokens", 40_000), "text = "),
        (("--checkpoint", "no such thing"), "no path here"),
    ],
)
def test_what_cannot_be_probed_is_told_in_one_line_with_exit_code_2(
    sinks: Run, options: tuple[object, ...], message: str
) -> None:
    code, out, err = sinks(*options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
