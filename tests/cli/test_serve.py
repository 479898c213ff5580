from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROFILE = '[model]\nkind = "null"\n\n[beat]\nframe_s = 0.1\n'


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "null.toml"
    path.write_text(PROFILE)
    return path


def command(*options: object) -> list[str]:
    return [sys.executable, "-m", "metronome_cli", "serve", *map(str, options)]


def refused(*options: object) -> str:
    """The one line that a command that cannot work says, on standard error, with exit code 2."""
    done = subprocess.run(command(*options), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr


@contextmanager
def started(*options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_when_ready_it_says_so_in_one_line_for_people_and_one_for_programs(
    profile: Path, tmp_path: Path
) -> None:
    with started("--profile", profile, "--port", 0, "--out", tmp_path / "runs", "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert Path(ready["run"]).parent == tmp_path / "runs"
        with urllib.request.urlopen(ready["url"] + "/health", timeout=20) as answer:  # noqa: S310
            assert json.load(answer)["status"] == "ok"
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "")
        assert said.count("\n") == 1
        assert f"null is ready at {ready['url'].replace('http', 'ws')}/v1/realtime" in said
        assert ready["run"] in said


def test_without_recording_nothing_is_written(profile: Path, tmp_path: Path) -> None:
    options = ("--profile", profile, "--port", 0, "--out", tmp_path / "runs", "--no-record", "--json")
    with started(*options) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["run"] is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0
    assert not (tmp_path / "runs").exists()


def test_a_port_in_use_is_said_before_anything_is_made(profile: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("--profile", profile, "--port", port, "--out", tmp_path / "runs")
    assert said.startswith(f"metronome: server.port = {port}: ")
    assert "use another port" in said
    assert not (tmp_path / "runs").exists()


def test_options_win_over_the_profile_and_are_checked_like_it(profile: Path) -> None:
    assert "admission.max_sessions = 0" in refused("--profile", profile, "--max-sessions", 0)
    assert "admission.admit = 'hope'" in refused("--profile", profile, "--admit", "hope")
    assert "window.window = 'wide'" in refused("--profile", profile, "--window", "wide")
    assert "window.policy = 'none'" in refused("--profile", profile, "--policy", "none")
    assert "window.sinks = 600" in refused("--profile", profile, "--window", "512", "--sinks", "600")
    assert "pool.blocks = 4" in refused("--profile", profile, "--blocks", 4)
    assert "pool.blocks = 'all': use 1 to 10000000 blocks, or \"free\"" in refused("--blocks", "all")
    assert "run.device = 'tpu'" in refused("--profile", profile, "--device", "tpu")
    said = refused("--profile", "laptop-text", "--port", 0, "--no-record", "--model", "/no/such/folder")
    assert "model.thinker = '/no/such/folder': nothing is there; give a folder with a config.json" in said


def test_a_folder_that_cannot_be_made_is_named(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = refused("--profile", profile, "--port", 0, "--out", tmp_path / "file")
    assert said.startswith("metronome: out = ")
    assert "choose a folder that can be written" in said


def test_a_missing_asset_is_one_clear_message(tmp_path: Path) -> None:
    """The engine process finds out; the terminal hears it as if it were one program."""
    env = {**os.environ, "METRONOME_HOME": str(tmp_path / "empty")}
    done = subprocess.run(
        command("--profile", "laptop-text", "--port", 0, "--out", tmp_path / "runs"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert done.returncode == 2, done.stderr
    assert "metronome assets fetch" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pool_that_holds_fewer_calls_than_are_let_in_is_told_of_once_it_serves(
    profile: Path, tmp_path: Path
) -> None:
    options = ("--profile", profile, "--port", 0, "--out", tmp_path / "runs", "--no-live", "--blocks", 80)
    with started(*options) as process:
        assert process.stderr is not None
        assert "is ready at" in process.stderr.readline()
        said = process.stderr.readline()
        assert said.startswith("warning: 80 blocks are ")
        assert "refused as pool_full; use pool.blocks = " in said


@pytest.mark.parametrize("lost", ["full", "removed"])
def test_a_run_folder_that_is_lost_at_the_end_does_not_cost_the_answer(
    profile: Path, tmp_path: Path, lost: str
) -> None:
    options = ("--profile", profile, "--port", 0, "--out", tmp_path / "runs", "--no-live")
    with started(*options) as process:
        assert process.stderr is not None
        assert "is ready at" in process.stderr.readline()
        (run,) = (tmp_path / "runs").iterdir()
        if lost == "full":
            (run / "report.json.part").mkdir()  # where it would be written
        else:
            shutil.rmtree(run)
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=20)
    assert process.returncode == 1
    cause = (
        "report.json.part" if lost == "full" else "it was removed while the run went on; leave it where it is"
    )
    assert f"metronome: the run folder is not whole ({run}): " in said
    assert cause in said
    assert "Traceback" not in said
    assert "calls" in out


def test_records_that_ended_early_are_a_failure_though_the_report_was_saved(
    profile: Path, tmp_path: Path
) -> None:
    options = ("--profile", profile, "--port", 0, "--out", tmp_path / "runs", "--no-live", "--json")
    with started(*options) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        run = Path(json.loads(process.stdout.readline())["run"])
        (run / "trace.jsonl").unlink()
        while "stopped" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert said.startswith(f"metronome: recording in {run} stopped: the run folder was removed; leave")
    assert "recording in" in json.loads((run / "report.json").read_text())["notes"][0]
