"""`metronome load --find-n`: the search as a whole, against a server whose cap is known."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metronome_cli.cli import find_n
from metronome_cli.cli.load import hold
from metronome_cli.errors import MetronomeError, NotMeasured, ProfileError, TargetUnreachable
from metronome_cli.load.plan import Plan
from metronome_cli.report import Report, read_report
from tests.load.fakes import OpenAIServer, served

POINT_S = 1.0
AT_LEAST_2 = re.compile(r"N = at least 2, their windows \d+ % full at the end \(not searched to the end\)")


@pytest.fixture(autouse=True)
def _soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little rest between points, few frames in them; only the test of the folders draws what is there."""
    monkeypatch.setattr(find_n, "_SETTLE_S", 0.3)
    monkeypatch.setattr(find_n, "busy", list)  # this machine may be
    monkeypatch.setattr("metronome_cli.load.search.FEWEST", 1)
    if request.function is not test_the_largest_n_is_found_and_every_point_is_a_run_folder:
        request.getfixturevalue("undrawn")


# A busy machine may miss a beat of 250 ms; the cap of three calls must decide, not the machine.
def plan(server: str, sessions: int = 2) -> Plan:
    return Plan(server, sessions, POINT_S, budget_s=30.0, spread_s=0.1)


def search(
    plan: Plan, speech: Path, out: Path, resume: Path | None = None, most: int = 64
) -> tuple[Report, Path]:
    report, failure = find_n.search(plan, str(speech), most, resume, out)
    assert failure is None
    [folder] = out.iterdir()
    return report, folder


def test_the_largest_n_is_found_and_every_point_is_a_run_folder(
    server: str, speech: Path, tmp_path: Path
) -> None:
    report, folder = search(plan(server), speech, tmp_path / "runs")
    assert [(row["n"], row["held"]) for row in report.results["points"]] == [(2, True), (3, True), (4, False)]
    assert (report.results["n"], report.held) == (3, True)
    said = re.fullmatch(
        r"N = 3, their windows (\d+) % full at the end; 4 calls: a call was refused \(max_sessions\)",
        report.results["verdict"],
    )
    assert said
    assert 0 < int(said[1]) < 50
    assert report.notes == [
        f"calls get slower until their windows are full, and these were at {said[1]} %: a longer --duration "
        "tells of calls that stay"
    ]
    assert {path.name for path in folder.iterdir()} == {
        *("plan.json", "report.json", "summary.md", "find-n.png", "n-0002", "n-0003", "n-0004")
    }
    points = [read_report(folder / f"n-{n:04}") for n in (2, 3, 4)]
    assert [point.results["calls"]["opened"] for point in points][:2] == [2, 3]
    assert points[2].results["doomed"] == "a call was refused (max_sessions)"


def test_a_search_that_was_ended_goes_on_where_it_was(
    server: str, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"

    def killed_in_the_second(plan: Plan, *rest: Any) -> Any:
        if plan.sessions > 2:
            raise KeyboardInterrupt
        return hold(plan, *rest)

    with monkeypatch.context() as kill:
        kill.setattr(find_n, "hold", killed_in_the_second)
        _, end = find_n.search(plan(server), str(speech), 64, None, runs)
    assert isinstance(end, KeyboardInterrupt)
    [folder] = runs.iterdir()
    so_far = read_report(folder)
    assert so_far.notes == [f"interrupted; go on with --resume {folder}"]
    assert AT_LEAST_2.fullmatch(so_far.results["verdict"])
    before = (folder / "n-0002" / "report.json").read_bytes()
    (folder / "n-0004").mkdir()  # what a kill without warning leaves of a point
    (folder / "n-0004" / "trace.jsonl").write_bytes(b"half a li")
    report, _ = search(plan(server), speech, runs, resume=folder)
    assert report.results["n"] == 3
    assert (folder / "n-0002" / "report.json").read_bytes() == before
    with pytest.raises(ProfileError, match=r"^sessions = 3: it was 2"):
        find_n.search(plan(server, sessions=3), str(speech), 64, folder, runs)


def test_a_search_that_is_interrupted_within_a_point_is_not_held_though_it_found_some_n(
    server: str, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted_in_the_second(plan: Plan, *rest: Any) -> Any:
        report, run = hold(plan, *rest)
        report.results["stopped_early"] = plan.sessions > 2
        return report, run

    monkeypatch.setattr(find_n, "hold", interrupted_in_the_second)
    report, end = find_n.search(plan(server), str(speech), 64, None, tmp_path / "runs")
    assert isinstance(end, KeyboardInterrupt)  # exit code 130
    assert (report.results["n"], report.held) == (2, False)
    assert AT_LEAST_2.fullmatch(report.results["verdict"])


def test_a_folder_that_is_removed_during_a_search_costs_no_point_that_was_found(
    server: str, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"

    def gone_after_the_first(plan: Plan, *rest: Any) -> Any:
        found = hold(plan, *rest)
        shutil.rmtree(runs)
        return found

    monkeypatch.setattr(find_n, "hold", gone_after_the_first)
    report, end = find_n.search(plan(server), str(speech), 64, None, runs)
    assert isinstance(end, MetronomeError)
    assert end.exit_code == 1
    assert "it was removed while the run went on" in str(end)
    assert ([row["n"] for row in report.results["points"]], report.held) == ([2], False)
    assert not any("--resume" in note for note in report.notes)


def test_no_number_of_calls_holds_where_not_even_one_does(server: str, speech: Path, tmp_path: Path) -> None:
    impossible = Plan(server, 1, POINT_S, budget_s=1e-6, spread_s=0.1)
    report, _ = search(impossible, speech, tmp_path / "runs")
    assert (report.results["n"], report.held) == (0, False)
    assert report.results["verdict"].startswith("no number of calls holds; 1 calls: ")


def test_a_search_stops_at_the_most_says_at_least_and_keeps_no_key(
    server: str, speech: Path, tmp_path: Path
) -> None:
    secret = replace(plan(server), api_key="sk-secret")
    report, folder = search(secret, speech, tmp_path / "runs", most=2)
    assert report.results["verdict"].startswith("N = at least 2, their windows ")
    assert json.loads((folder / "plan.json").read_text())["most"] == 2
    for file in folder.rglob("*.*"):
        assert b"sk-secret" not in file.read_bytes()


def test_a_point_that_held_in_too_few_frames_is_not_measured_and_says_how_long_it_takes(
    server: str, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metronome_cli.load.search.FEWEST", 100)
    report, end = find_n.search(plan(server), str(speech), 2, None, tmp_path / "runs")
    assert isinstance(end, NotMeasured)  # exit code 3
    told = (
        r"N = 2 cannot be judged: it held in only \d frames with an answer, .* use --duration (\d+)0s or more"
    )
    found = re.fullmatch(told, str(end))
    assert found
    assert 1 <= int(found[1]) <= 20
    assert (report.held, report.results["n"], report.notes) == (False, 0, [str(end)])
    assert report.results["verdict"] == "no number of calls was judged (not searched to the end)"


def test_a_server_that_cannot_be_judged_ends_the_search_with_a_report_that_says_why(
    speech: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with served(OpenAIServer()) as url:
        found, end = find_n.search(Plan(url, 1, 0.5), str(speech), 4, None, runs)
        [folder] = runs.iterdir()
        again, _ = find_n.search(Plan(url, 1, 0.5), str(speech), 4, folder, runs)
    assert isinstance(end, NotMeasured)
    assert end.exit_code == 3
    assert "N = 1 cannot be judged" in str(end)
    assert "--budget" in str(end)
    # The point that says nothing counts neither as held nor as lost, now or when the search goes on.
    for report in (found, again, read_report(folder)):
        assert (report.held, report.notes, report.results["points"]) == (False, [str(end)], [])
        assert report.results["verdict"] == "no number of calls was judged (not searched to the end)"
    assert read_report(folder / "n-0001").results["calls"]["done"] == 1
    assert (folder / "summary.md").exists()


def test_a_server_that_goes_in_the_middle_of_a_search_costs_no_point_that_was_found(
    server: str, speech: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone_after_the_first(plan: Plan, *rest: Any) -> Any:
        return hold(replace(plan, url="127.0.0.1:9") if plan.sessions > 2 else plan, *rest)

    monkeypatch.setattr(find_n, "hold", gone_after_the_first)
    _, end = find_n.search(plan(server), str(speech), 64, None, tmp_path / "runs")
    assert isinstance(end, TargetUnreachable)
    [folder] = (tmp_path / "runs").iterdir()
    report = read_report(folder)
    assert [row["n"] for row in report.results["points"]] == [2]
    assert report.notes == [f"{end}; go on with --resume {folder}"]


def test_nobody_at_the_address_ends_the_search_and_leaves_nothing(speech: Path, tmp_path: Path) -> None:
    with pytest.raises(TargetUnreachable):
        find_n.search(Plan("127.0.0.1:9", 1, 0.5), str(speech), 4, None, tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []
