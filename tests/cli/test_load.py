"""`metronome load` and `metronome report` as their users call them: in a process of their own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

from metronome_cli.cli.load import busy, parse_seconds
from metronome_cli.cli.load_options import plan_of
from metronome_cli.cli.main import main
from metronome_cli.clock import SystemClock
from tests.load.conftest import PROFILE
from tests.load.fakes import OpenAIServer, served


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """The command line in this process: starting one costs more than most of what is tested."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["metronome", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return Done(left.value.code if isinstance(left.value.code, int) else 0, *capfd.readouterr())

    return run


def test_the_report_is_one_json_document_and_the_run_folder_is_whole(
    server: str, speech: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    runs = tmp_path / "runs"
    options = ("--sessions", 2, "--duration", "1.5s", "--spread", "0.25s", "--speech", speech, "--seed", 5)
    done = here("load", server, *options, "--json", "--out", runs)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["held"] else 3)
    assert (report["command"], report["seed"], report["version"]) == ("load", 5, 1)
    assert report["results"]["calls"]["opened"] == 2
    assert report["results"]["freshness"] is not None
    [folder] = runs.iterdir()
    assert str(folder) in done.stderr
    names = {path.name for path in folder.iterdir()}
    assert names == {"report.json", "trace.jsonl", "frames.jsonl", "summary.md", "load.png"}
    assert json.loads((folder / "report.json").read_text()) == report


def test_a_run_can_be_shown_and_drawn_again(
    server: str, speech: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    runs = tmp_path / "runs"
    done = here("load", server, "--duration", "1s", "--spread", "0s", "--speech", speech, "--out", runs)
    assert done.returncode == 3  # four calls, of which the server takes three
    assert "1 max_sessions" in done.stdout
    [folder] = runs.iterdir()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("summary.md", "load.png"):
        (folder / name).unlink()
    again = here("report", folder)
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_early_with_a_whole_report(
    number: signal.Signals, server: str, speech: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    options = ["--sessions", "2", "--duration", "10m", "--spread", "0s", "--speech", str(speech)]
    command = [sys.executable, "-m", "metronome_cli", "load", server, *options, "--json", "--out", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_records(runs)
        process.send_signal(number)
        report = json.loads(process.communicate()[0])
    assert process.returncode == (0 if report["held"] else 3)
    assert report["notes"][0].startswith("interrupted: ended early after")
    assert report["results"]["frames"]["closed"] > 0
    assert report["results"]["calls"]["done"] == 2  # hung up, not dropped
    [folder] = runs.iterdir()
    assert json.loads((folder / "report.json").read_text()) == report


def wait_for_records(runs: Path) -> None:
    """Return once a run below `runs` has written its first tick."""
    clock = SystemClock()
    while not any(path.read_bytes().count(b"\n") > 1 for path in runs.glob("*/trace.jsonl")):
        clock.wait_until(clock.now() + 0.05)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "http://nowhere.invalid"])
def test_an_unreachable_server_is_exit_code_4_and_leaves_no_folder(
    speech: Path, tmp_path: Path, address: str, here: Callable[..., Done]
) -> None:
    options = ("--duration", "3s", "--speech", speech, "--out", tmp_path / "runs")
    done = here("load", address, *options, "--wait", "0s")
    assert done.returncode == 4
    assert done.stdout == ""
    assert "cannot call ws://" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


@pytest.mark.parametrize("search", [(), ("--find-n",)])
def test_a_server_that_does_not_get_ready_in_time_is_exit_code_4_after_a_line_that_says_so(
    speech: Path, tmp_path: Path, search: tuple[str, ...], here: Callable[..., Done]
) -> None:
    options = ("--duration", "3s", "--speech", speech, "--out", tmp_path / "runs", "--wait", "10ms")
    done = here("load", "127.0.0.1:9", *options, *search)
    assert done.returncode == 4
    waiting, failed = done.stderr.splitlines()
    assert waiting.startswith("waiting up to 0.01 s for ws://127.0.0.1:9/v1/realtime: Connection refused")
    assert failed.startswith("metronome: cannot call ws://127.0.0.1:9/v1/realtime: Connection refused, after")
    assert not (tmp_path / "runs").exists()


def test_a_load_that_comes_before_its_server_waits_for_it(speech: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    profile = tmp_path / "null.toml"
    profile.write_text(PROFILE)
    program = [sys.executable, "-m", "metronome_cli"]
    options = [
        "--sessions",
        "1",
        "--duration",
        "1s",
        "--speech",
        str(speech),
        "--out",
        str(tmp_path / "runs"),
    ]
    load = [*program, "load", f"127.0.0.1:{port}", *options]
    with subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as waits:
        assert waits.stderr is not None
        assert "waiting up to 60 s" in waits.stderr.readline()
        serve = [
            *program,
            "serve",
            "--profile",
            str(profile),
            "--port",
            str(port),
            "--no-record",
            "--no-live",
        ]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
            said, _ = waits.communicate(timeout=60)
            server.terminate()
    assert "calls refused" in said
    assert waits.returncode in (0, 3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--duration", "soon"), "soon"),
        (("--sessions", "0"), "sessions"),
        (("--speech", "nothing-by-that-name"), "nothing-by-that-name"),
        (("--duration", "1s", "--spread", "2s"), "duration"),
        (("--sessions", "2", "--offer", "5"), "offer"),
        (("--call-length", "gauss:3s"), "call-length"),
        (("--arrivals", "poisson"), "arrival-rate"),
        (("--protocol", "vllm"), "model"),
        (("--speech", "dataset:/nowhere"), "dataset:/nowhere"),
        (("--api-key-file", "/nowhere/key"), "api-key-file"),
        (("--redials", "-1"), "redials"),
        (("--wait", "long"), "long"),
        (("--find-n", "--resume", "/nowhere", "--wait", "0s"), "resume"),
        (("gopher://example.org",), "gopher"),
    ],
)
def test_wrong_use_is_exit_code_2_and_names_the_option(
    options: tuple[str, ...], said: str, tmp_path: Path, here: Callable[..., Done]
) -> None:
    done = here("load", *options, "--out", tmp_path / "runs")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_is_no_run_is_exit_code_2(tmp_path: Path, here: Callable[..., Done]) -> None:
    done = here("report", tmp_path)
    assert done.returncode == 2
    assert "report.json" in done.stderr


@pytest.mark.usefixtures("undrawn")
def test_a_server_that_cannot_be_measured_is_exit_code_3_and_says_what_is_missing(
    speech: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    options = (
        "--sessions",
        1,
        "--duration",
        "1.3s",
        "--speech",
        speech,
        "--talk",
        "400ms",
        "--silence",
        "400ms",
    )
    with served(OpenAIServer()) as url:
        done = here("load", url, *options, "--out", tmp_path / "runs")
        judged = here("load", url, *options, "--budget", "2s", "--out", tmp_path / "runs")
    assert done.returncode == 3
    assert "not measurable" in done.stdout
    assert "give a --budget" in " ".join(done.stdout.split())
    assert judged.returncode == 0


@pytest.mark.usefixtures("undrawn")
def test_runs_stand_side_by_side_in_one_table_and_one_picture(
    server: str, speech: Path, tmp_path: Path, here: Callable[..., Done]
) -> None:
    runs = tmp_path / "runs"
    for sessions in (1, 2):
        options = ("--sessions", sessions, "--duration", "1s", "--spread", "0s", "--speech", speech)
        here("load", server, *options, "--out", runs)
    folders = sorted(runs.iterdir())
    done = here("report", *folders)
    assert done.returncode == 0
    [opened] = [line.split() for line in done.stdout.splitlines() if "calls opened" in line]
    assert [cell for cell in opened if cell.isdecimal()] == ["1", "2"]
    assert (runs / "comparison.png").exists()
    again = here("report", *folders, "--json", "--picture", tmp_path / "mine.png")
    assert list(json.loads(again.stdout)) == [folder.name for folder in folders]
    assert (tmp_path / "mine.png").exists()


def test_a_full_disk_costs_the_files_and_never_the_table(server: str, speech: Path, tmp_path: Path) -> None:
    options = ["--sessions", "2", "--duration", "1500ms", "--spread", "0s", "--speech", str(speech)]
    command = [
        sys.executable,
        "-m",
        "metronome_cli",
        "load",
        server,
        *options,
        "--out",
        str(tmp_path / "runs"),
    ]
    # No file may grow beyond 2000 bytes: to a program the same as a disk that is full.
    limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    done = subprocess.run(
        [sys.executable, "-c", limited + "os.execv(sys.argv[1], sys.argv[1:])", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "freshness, first token" in done.stdout
    assert "calls refused" in done.stdout
    assert "run folder is not whole" in " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_key_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("# the staging server\n\nsk-file\n")
    typed = {"url": "127.0.0.1", "sessions": None, "offer": 3, "duration": 9.0, "seed": 0, "spread": None}
    rest = {"arrival_rate": None, "talk": None, "silence": None, "budget": None, "api_key_file": file}
    words = {
        "arrivals": "constant",
        "call_length": None,
        "cancel_rate": 0.0,
        "vanish_rate": 0.0,
        "redials": 5,
        "replies": "auto",
        "keep_speech": 2,
    }
    plan = plan_of({**typed, **rest, **words, "protocol": "auto", "model": ""})
    assert plan.api_key == "sk-file"
    assert (plan.sessions, plan.redial) == (3, False)
    assert "sk-file" not in str(plan.settings())


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("250ms", 0.25), ("1.5m", 90), ("1h", 3600), ("0s", 0)]
)
def test_lengths_of_time_are_read_in_any_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "ten", "1d", "nan", "inf"])
def test_a_length_of_time_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="no length of time"):
        parse_seconds(text)


def test_a_machine_that_has_too_much_to_do_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0))
    assert busy() == ["the machine was busy (load 6.0 on 2 cores): close other programs and run it again"]
    monkeypatch.setattr("os.getloadavg", lambda: (3.9, 0.0, 0.0))
    assert busy() == []


def test_a_run_ends_with_what_it_came_to(
    here: Callable[..., Done], undrawn: None, server: str, speech: Path, tmp_path: Path
) -> None:
    words = ("load", server, "--sessions", "1", "--duration", "1s", "--speech", speech, "--out", tmp_path)
    done = here(*words, "--budget", "0.000001s")
    assert done.returncode == 3
    [said] = [line for line in done.stdout.splitlines() if line.startswith("Missed: ")]
    assert said.startswith("Missed: freshness to the last token ")
