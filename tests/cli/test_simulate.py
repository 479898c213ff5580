"""`metronome simulate`, from options to a run folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metronome_cli.cli.main import main
from metronome_cli.trace import TickRecord, read_records

Simulate = Callable[..., tuple[int, str, str]]
SMALL = ("--devices", 3, "--calls", 60, "--duration", "5m", "--call-length", "exp:1m")
FITTED = {
    "cost": {"fixed_s": 0.2, "session_s": 0.05, "ratios": [0.9, 1.0, 1.1]},
    "per_session": {"tokens_in": 4.5, "tokens_out": 3.0, "blocks": 17.0},
}


@pytest.fixture
def drawing_simulate(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Simulate:
    """The command, with its exit code, standard output and standard error."""

    def command(*options: object) -> tuple[int, str, str]:
        words = ["metronome", "simulate", "--out", tmp_path / "runs", *options]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        with pytest.raises(SystemExit) as left:
            main()
        return (left.value.code if isinstance(left.value.code, int) else 0, *capfd.readouterr())

    return command


@pytest.fixture
def simulate(drawing_simulate: Simulate, undrawn: None) -> Simulate:
    """The same with pictures that are empty."""
    return drawing_simulate


def cost(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(document))
    return path


def test_the_answer_is_a_table_a_sentence_and_a_run_folder_that_is_drawn_again_alike(
    drawing_simulate: Simulate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = drawing_simulate(*SMALL)
    said = " ".join(out.split())
    assert code == 0
    assert "no --cost: a tick of max_sessions calls is assumed to take 75 % of the target" in said
    assert "no pool ran out" in said
    [folder] = (tmp_path / "runs").iterdir()
    assert f"run: {folder}" in err
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files.keys() == {"report.json", "summary.md", "simulate.png"}
    (folder / "simulate.png").unlink()
    monkeypatch.setattr(sys, "argv", ["metronome", "report", str(folder)])
    with pytest.raises(SystemExit):
        main()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_a_fitted_cost_is_used_and_a_seed_repeats_everything(simulate: Simulate, tmp_path: Path) -> None:
    options = (*SMALL, "--cost", cost(tmp_path, FITTED), "--json")
    first, again, other = (json.loads(simulate(*options, "--seed", seed)[1])["results"] for seed in (1, 1, 2))
    assert first == again
    assert first["looks"] != other["looks"]
    assert first["cost"]["session_s"] == 0.05
    assert first["admitted"] + sum(first["refused"].values()) == first["offered"]


@pytest.mark.parametrize(("off", "is_told"), [(0.234, True), (0.1, False)])
def test_a_fit_that_missed_its_limit_is_told_beside_what_follows_from_it(
    simulate: Simulate, tmp_path: Path, off: float, is_told: bool
) -> None:
    code, out, _ = simulate(*SMALL, "--cost", cost(tmp_path, FITTED | {"worst_error": off}))
    said = "missed its limit: an N told from the others was off by 23.4 %, where 10 % are allowed"
    assert (said in " ".join(out.split())) == is_told
    assert code == 0


def test_a_pool_that_runs_out_is_exit_code_3_with_its_moment(simulate: Simulate) -> None:
    code, out, _ = simulate(
        *("--devices", 2, "--calls", 8, "--duration", "10m", "--call-length", "1h", "--json"),
        *("--policy", "unbounded", "--blocks", 200),
    )
    results = json.loads(out)["results"]
    assert code == 3
    assert results["saturated"] == 2
    assert 0 < results["t_sat"] == min(results["t_sat_by_device"])
    assert results["peak_occupancy"] == 1.0


def test_ticks_that_are_late_too_often_are_exit_code_3(simulate: Simulate, tmp_path: Path) -> None:
    slow = FITTED | {"cost": {"fixed_s": 1.9, "session_s": 0.0}}
    code, out, _ = simulate(*SMALL, "--cost", cost(tmp_path, slow), "--json")
    assert code == 3
    assert json.loads(out)["results"]["late_share"] == 1.0


def test_recorded_ticks_are_a_trace_with_an_arm_a_device(simulate: Simulate, tmp_path: Path) -> None:
    assert simulate(*SMALL, "--record")[0] == 0
    [folder] = (tmp_path / "runs").iterdir()
    arms = [tick.arm for tick in read_records(folder / "trace.jsonl", TickRecord)]
    assert {arm: arms.count(arm) >= 148 for arm in set(arms)} == {
        f"device-{number}": True for number in range(3)
    }


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "Expected `object`"),
        ({"cost": FITTED["cost"]}, "per_session"),
        (FITTED | {"cost": {"fixed_s": -1, "session_s": 0}}, "$.cost.fixed_s"),
        (FITTED | {"cost": {"fixed_s": 0, "session_s": 0, "ratios": []}}, "$.cost.ratios"),
        (FITTED | {"per_session": {"tokens_in": 1, "tokens_out": 99}}, "said = 99.0: use 0 to 6 tokens"),
    ],
)
def test_a_cost_that_is_none_is_one_line_and_exit_code_2(
    simulate: Simulate, tmp_path: Path, document: object, said: str
) -> None:
    code, out, err = simulate(*SMALL, "--cost", cost(tmp_path, document))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_cost_nested_beyond_reason_is_refused(simulate: Simulate, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text('{"cost":' * 100_000)
    code, out, err = simulate(*SMALL, "--cost", path)
    assert (code, out) == (2, "")
    assert "give a file that `metronome fit capacity --json` printed" in err
    path.write_text(json.dumps(FITTED)[:-1] + ', "x": ' + "[" * 100_000)
    assert simulate(*SMALL, "--cost", path)[0] == 2


def test_a_profile_of_more_calls_than_can_be_simulated_is_refused(simulate: Simulate, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[admission]\nmax_sessions = 10001\n")
    code, out, err = simulate("--profile", tmp_path / "mine.toml")
    assert (code, out) == (2, "")
    assert "admission.max_sessions = 10001: use 10,000 or fewer to simulate" in err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--duration", "0s"), "'0s' is out of range: use 1ms to 720h"),
        (("--duration", "1e308s"), "'1e308s' is out of range: use 1ms to 720h"),
        (
            ("--duration", "720h"),
            "duration = 2592000.0: 100 devices have more than 20,000,000 beats of 2 s in it",
        ),
        (("--calls", "1000001"), "'--calls': Input should be less than or equal to 1000000"),
        (("--devices", "10001"), "'--devices': Input should be less than or equal to 10000"),
        (("--max-sessions", "10001"), "'--max-sessions': Input should be less than or equal to 10000"),
        (("--blocks", "10000001"), "'--blocks': Input should be less than or equal to 10000000"),
        (("--call-length", "exp:1e308s"), "'1e+308s' is out of range: use 1ms to 720h"),
        (("--call-length", "uniform:1s:721h"), "is out of range: use 1ms to 720h"),
        (("--call-length", "lognormal:60s:1e300"), "use a sigma of at most 5"),
        (("--admit", "all"), "admission.admit"),
        (("--call-length", "long"), "call-length"),
        (("--cost", "/dev/zero"), "give a regular file or a pipe"),
        (("--cost", "nothing-here.json"), "nothing-here.json"),
    ],
)
def test_wrong_use_is_exit_code_2_and_leaves_no_folder(
    simulate: Simulate, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    code, out, err = simulate(*options)
    assert (code, out) == (2, "")
    assert said in err
    assert not (tmp_path / "runs").exists()
