"""`metronome load --find-n`: the search as a whole, against a server whose cap is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from metronome_cli.cli import find_n
from metronome_cli.cli.load import hold
from metronome_cli.cli.local_server import serving
from metronome_cli.errors import NotMeasured, ProfileError, TargetUnreachable
from metronome_cli.load.plan import Plan
from metronome_cli.report import Report, read_report
from tests.load.fakes import OpenAIServer, served

PROFILE = """
[model]
kind = "null"
mode = "free"
[beat]
frame_s = 0.2
[window]
window = 64
sinks = 4
[admission]
max_sessions = 3
"""
POINT_S = 0.8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    profile = tmp_path_factory.mktemp("server") / "null.toml"
    profile.write_text(PROFILE)
    with serving(["--profile", str(profile), "--no-record"]) as url:
        yield url


@pytest.fixture
def speech(tmp_path: Path) -> str:
    folder = tmp_path / "speech"
    folder.mkdir()
    soundfile.write(folder / "tone.wav", np.sin(np.arange(48_000) / 20).astype(np.float32), 16_000)
    return str(folder)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_n, "_SETTLE_S", 0.3)


# A busy machine may miss a beat of 200 ms; the cap of three calls must decide, not the machine.
def plan(server: str, sessions: int = 2) -> Plan:
    return Plan(server, sessions, POINT_S, budget_s=30.0, spread_s=0.1)


def search(
    plan: Plan, speech: str, out: Path, resume: Path | None = None, most: int = 64
) -> tuple[Report, Path]:
    report, failure = find_n.search(plan, speech, most, resume, out)
    assert failure is None
    [folder] = out.iterdir()
    return report, folder


def test_the_largest_n_is_found_and_every_point_is_a_run_folder(
    server: str, speech: str, tmp_path: Path
) -> None:
    report, folder = search(plan(server), speech, tmp_path / "runs")
    assert [(row["n"], row["held"]) for row in report.results["points"]] == [(2, True), (3, True), (4, False)]
    assert (report.results["n"], report.held) == (3, True)
    assert report.results["verdict"] == "N = 3; 4 calls: a call was refused (max_sessions)"
    assert {path.name for path in folder.iterdir()} == {
        *("plan.json", "report.json", "summary.md", "find-n.png", "n-0002", "n-0003", "n-0004")
    }
    points = [read_report(folder / f"n-{n:04}") for n in (2, 3, 4)]
    assert [point.results["calls"]["opened"] for point in points][:2] == [2, 3]
    assert points[2].results["doomed"] == "a call was refused (max_sessions)"


def test_a_search_that_was_ended_goes_on_where_it_was(
    server: str, speech: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"

    def killed_in_the_second(plan: Plan, *rest: Any) -> Any:
        if plan.sessions > 2:
            raise KeyboardInterrupt
        return hold(plan, *rest)

    with monkeypatch.context() as kill:
        kill.setattr(find_n, "hold", killed_in_the_second)
        with pytest.raises(KeyboardInterrupt):
            find_n.search(plan(server), speech, 64, None, runs)
    [folder] = runs.iterdir()
    before = (folder / "n-0002" / "report.json").read_bytes()
    (folder / "n-0004").mkdir()  # what a kill without warning leaves of a point
    (folder / "n-0004" / "trace.jsonl").write_bytes(b"half a li")
    report, _ = search(plan(server), speech, runs, resume=folder)
    assert report.results["n"] == 3
    assert (folder / "n-0002" / "report.json").read_bytes() == before
    with pytest.raises(ProfileError, match=r"^sessions = 3: it was 2"):
        find_n.search(plan(server, sessions=3), speech, 64, folder, runs)


def test_no_number_of_calls_holds_where_not_even_one_does(server: str, speech: str, tmp_path: Path) -> None:
    impossible = Plan(server, 1, POINT_S, budget_s=1e-6, spread_s=0.1)
    report, _ = search(impossible, speech, tmp_path / "runs")
    assert (report.results["n"], report.held) == (0, False)
    assert report.results["verdict"].startswith("no number of calls holds; 1 calls: ")


def test_a_search_stops_at_the_most_says_at_least_and_keeps_no_key(
    server: str, speech: str, tmp_path: Path
) -> None:
    secret = replace(plan(server), api_key="sk-secret")
    report, folder = search(secret, speech, tmp_path / "runs", most=2)
    assert report.results["verdict"] == "N = at least 2"
    assert json.loads((folder / "plan.json").read_text())["most"] == 2
    for file in folder.rglob("*.*"):
        assert b"sk-secret" not in file.read_bytes()


def test_a_server_that_cannot_be_judged_ends_the_search_and_leaves_nothing(
    speech: str, tmp_path: Path
) -> None:
    with served(OpenAIServer()) as url, pytest.raises(NotMeasured, match="--budget"):
        find_n.search(Plan(url, 1, 0.5), speech, 4, None, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_nobody_at_the_address_ends_the_search_and_leaves_nothing(speech: str, tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable):
        find_n.search(Plan("127.0.0.1:9", 1, 0.5), speech, 4, None, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
