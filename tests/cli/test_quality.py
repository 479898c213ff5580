"""`metronome probe quality`, on a tiny random checkpoint: it babbles, so its control answers nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.cli.main import main
from metronome_cli.models.listener import Listener

Run = Callable[..., tuple[int, str, str]]
PROFILE = """
[model]
kind = "text"
thinker = "{thinker}"
header = "Hi."
max_reply = 8

[beat]
tau = 4
prefill_tokens = 32

[window]
window = 64

[run]
threads = 1
"""


@pytest.fixture
def quality(
    tiny_chat: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Run:
    """The command over a small grid, with an exit code, standard output and standard error."""
    (tmp_path / "tiny.toml").write_text(PROFILE.format(thinker=tiny_chat))
    lines = (f"{number} years ago, never mind how long precisely.\n" for number in range(800))
    (tmp_path / "book.txt").write_text("".join(lines))

    def run(*options: object) -> tuple[int, str, str]:
        fixed = ["--profile", tmp_path / "tiny.toml", "--text", tmp_path / "book.txt"]
        fixed += ["--out", tmp_path / "runs", "--windows", 64, "--sinks", 4, "--stream-tokens", 600]
        fixed += ["--sessions", 2, "--questions", 2, "--minutes", 0.5]
        monkeypatch.setattr(sys, "argv", ["metronome", "probe", "quality", *map(str, (*fixed, *options))])
        with pytest.raises(SystemExit) as left:
            main()
        return (left.value.code if isinstance(left.value.code, int) else 0, *capfd.readouterr())

    return run


def the_run(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "runs").iterdir()
    return folder


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--data", "/missing"), "data = '/missing': no such file or folder"),
        (("--data", "missing.txt"), "data = 'missing.txt': no such file or folder"),
        (("--text", "/missing"), "text = '/missing': give a readable UTF-8 file"),
        (("--text", "/"), "text = '/': give a readable UTF-8 file"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused_before_anything_is_loaded(
    quality: Run, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    code, out, err = quality(*options)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_grid_is_refused_with_the_share_that_its_control_answers(quality: Run, tmp_path: Path) -> None:
    code, out, err = quality("--modes", "turn", "--scores", "answers")
    assert code == 3
    assert "turn: unbounded, the model answers 0% of the questions" in " ".join(out.split())
    assert next(line for line in err.splitlines() if "seed 0" in line).endswith("turn unbounded seed 0")
    report = json.loads((the_run(tmp_path) / "report.json").read_text())
    # Where the control fails, the others mean nothing.
    assert [row["bound"] for row in report["results"]["rows"] if "turn" in row] == ["unbounded"]


def test_a_control_that_was_played_before_refuses_what_is_left(quality: Run, tmp_path: Path) -> None:
    code, _, _ = quality("--modes", "turn", "--scores", "answers", "--at-once", 2)
    assert code == 3
    played = [path.name for path in (the_run(tmp_path) / "cells").iterdir()]
    assert played == ["turn_unbounded_seed_0.json"]


def test_calls_side_by_side_are_told_what_calls_alone_are(quality: Run, tmp_path: Path) -> None:
    """The model babbles, but it babbles the same: a call's bound is its own, whoever plays beside it."""
    told = []
    for at_once in (2, 8):
        quality("--modes", "turn", "--scores", "answers,gen_ppl", "--at-once", at_once)
    for folder in sorted((tmp_path / "runs").iterdir()):
        cells = {path.name: json.loads(path.read_text()) for path in (folder / "cells").iterdir()}
        told.append(cells["turn_unbounded_seed_0.json"]["calls"])
        assert {"turn_unbounded_seed_0.json"} <= set(cells)
    assert [[row["said"] for row in call] for call in told[0]] == [
        [row["said"] for row in call] for call in told[1]
    ]


def test_what_a_frame_takes_is_measured_with_the_windows_full(quality: Run) -> None:
    code, out, _ = quality("--scores", "pace", "--json")
    assert code == 0
    rows = json.loads(out)["results"]["rows"]
    assert all(row["pace"]["ms_per_frame"] > 0 and row["pace"]["age_tokens"] > 64 for row in rows)


def test_perplexity_alone_plays_no_calls_and_an_interrupted_grid_goes_on(
    quality: Run, tmp_path: Path
) -> None:
    code, out, _ = quality("--scores", "stream_ppl", "--json")
    assert code == 0
    rows = {row["bound"]: row for row in json.loads(out)["results"]["rows"]}
    assert list(rows) == ["unbounded", "W=64 S=0", "W=64 S=4", "recycle 64"]
    assert rows["unbounded"]["stream"]["ppl"]["mean"] > 1
    assert rows["W=64 S=4"]["stream"]["ratio"]["mean"] > 0
    folder = the_run(tmp_path)
    kept = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    lost = folder / "cells" / "stream_W64_S4_seed_0.json"
    lost.unlink()
    code, _, err = quality("--resume", folder, "--seed", 1)
    assert code == 2
    assert f"seed = '1': it was '0' in {folder}" in err
    code, again, _ = quality("--resume", folder, "--json")
    assert code == 0
    after = {path: path.stat().st_mtime_ns for path in (folder / "cells").iterdir()}
    assert [path.name for path in kept if after[path] != kept[path]] == [lost.name]
    before, now = (json.loads(answer)["results"]["rows"] for answer in (out, again))
    assert [row["stream"] for row in now] == [row["stream"] for row in before]
    assert (folder / "summary.md").read_text().startswith("# metronome probe-quality")


def test_without_a_voice_repeating_is_not_measured_and_the_rest_is(
    quality: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    code, out, _ = quality("--scores", "stream_ppl,asr_wer", "--json")
    assert code == 3
    found = json.loads(out)
    assert "pip install" in found["results"]["not_measured"]["repeat"]
    assert all("stream" in row for row in found["results"]["rows"])


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--windows", "64,x"), "windows = 'x'"),
        (("--sinks", "65"), "sinks = 65"),
        (("--modes", "spoken"), "modes = 'spoken'"),
        (("--scores", "bleu"), "scores = 'bleu'"),
        (("--positions", "relative"), "positions = 'relative'"),
        (("--minutes", "0.1"), "minutes = 0.1"),
        (("--seed", "-1"), "seed = '-1'"),
        (("--data", "nowhere.json"), "nowhere.json"),
        (("--resume", "nowhere"), "resume = 'nowhere'"),
        (("--text", "nowhere.txt"), "nowhere.txt"),
    ],
)
def test_a_wrong_option_is_named(quality: Run, options: tuple[str, str], field: str) -> None:
    code, out, err = quality(*options)
    assert code in (2, 3)
    assert field in f"{out}{err}"


def test_a_single_call_shows_its_mean_and_claims_no_interval(quality: Run, tmp_path: Path) -> None:
    code, _, err = quality("--modes", "turn", "--scores", "answers,stream_ppl", "--sessions", 1)
    assert code == 3  # it babbles
    assert "Traceback" not in err
    assert "| unbounded | 0 |" in (the_run(tmp_path) / "summary.md").read_text()


def test_a_bound_that_the_profile_cannot_give_fails_alone_and_the_others_are_measured(
    quality: Run, tmp_path: Path
) -> None:
    """What a recycled cache carries and one frame's reading do not fit into 40 tokens together."""
    code, out, _ = quality("--windows", 40, "--scores", "stream_ppl,pace", "--json")
    assert code == 3
    found = json.loads(out)
    (name,) = found["results"]["not_measured"]
    assert name == "pace recycle 40 seed 0"
    assert found["notes"] == [f"not measured: {name}: {found['results']['not_measured'][name]}"]
    paced = [row["bound"] for row in found["results"]["rows"] if "pace" in row]
    assert paced == ["unbounded", "W=40 S=0", "W=40 S=4"]


def test_a_bound_that_fails_among_others_leaves_them_their_answers(quality: Run, tmp_path: Path) -> None:
    code, _, _ = quality("--windows", 40, "--modes", "turn", "--scores", "answers")
    assert code == 3
    played = sorted(path.name for path in (the_run(tmp_path) / "cells").iterdir())
    assert played == ["turn_W40_S0_seed_0.json", "turn_W40_S4_seed_0.json", "turn_unbounded_seed_0.json"]
    notes = json.loads((the_run(tmp_path) / "report.json").read_text())["notes"]
    assert any("turn recycle 40 seed 0: window.carry" in note for note in notes)


def test_a_model_that_speaks_is_heard_in_what_it_answers_whatever_that_is(
    quality: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hears(Listener):
        def __init__(self) -> None: ...

        def write(self, clips: Sequence[NDArray[np.float32]]) -> list[str]:
            return ["do re mi" for _ in clips]

    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(examples)
    monkeypatch.setattr("metronome_cli.probes.quality.find_listener", lambda checkpoint: Hears())
    toy = ("--profile", examples / "own_model.toml", "--windows", 32)
    code, out, _ = quality(*toy, "--modes", "turn", "--scores", "asr_wer", "--json")
    found = json.loads(out)["results"]
    assert (code, found["not_measured"]) == (0, {})
    assert [row["bound"] for row in found["rows"]] == ["unbounded", "W=32 S=0", "W=32 S=4", "recycle 32"]
    assert all(0 < row["turn"]["asr_wer"]["mean"] <= 1 for row in found["rows"])
    assert not any("repeat" in row or "gen_ppl" in row["turn"] for row in found["rows"])
    shown = quality(*toy, "--modes", "turn", "--scores", "asr_wer")[1]
    assert "speech: WER" in shown
