"""A report tells how to repeat the run, is written whole or not at all, and lies in a folder of its own."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import FieldError
from metronome_cli.profile import load_profile, parse_profile
from metronome_cli.report import Report, new_report, read_report, run_folder

CLOCK = VirtualClock(1_700_000_000.0)  # 2023-11-14T22:13:20Z


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.setattr("sys.argv", ["metronome", "load", "--seed", "3"])
    return new_report("load", load_profile("laptop", {"run.seed": 3}), CLOCK)


def test_a_new_report_says_how_to_repeat_the_run(report: Report) -> None:
    assert report.argv == ["load", "--seed", "3"]
    assert report.seed == 3
    assert report.wall_start == "2023-11-14T22:13:20+00:00"
    assert report.versions.keys() >= {"python", "metronome-cli", "torch", "transformers", "numpy"}
    assert report.device["cores"] >= 1
    profile = dict(report.profile)
    assert parse_profile(profile.pop("name"), profile) == load_profile("laptop", {"run.seed": 3})


def test_a_report_comes_back_as_it_was_saved(report: Report, tmp_path: Path) -> None:
    report.results = {"freshness_s": {"p50": 1.25, "p99": None}, "sessions": 8}
    report.notes.append("one call was refused")
    assert report.save(tmp_path) == tmp_path / "report.json"
    assert read_report(tmp_path) == report


def test_a_run_that_still_goes_on_is_told_from_a_folder_that_is_none(report: Report, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(FieldError, match=r"give a run folder with a report\.json$"):
        read_report(tmp_path / "run")
    (tmp_path / "run" / "trace.jsonl").touch()
    with pytest.raises(
        FieldError, match=r"no report\.json yet: its run still goes on, or was killed; end it"
    ):
        read_report(tmp_path / "run")
    report.save(tmp_path / "run")
    with pytest.raises(FieldError, match=r"but holds runs that have: name one of them"):
        read_report(tmp_path)


def test_a_report_of_a_later_release_can_be_read(report: Report, tmp_path: Path) -> None:
    later = report.model_dump() | {"weather": "rain"}
    (tmp_path / "report.json").write_text(json.dumps(later), "utf-8")
    assert read_report(tmp_path) == report


def test_numbers_that_json_has_no_word_for_become_null(report: Report, tmp_path: Path) -> None:
    report.results = {"slope": float("nan"), "freshness": [float("inf"), 1.0]}
    text = report.save(tmp_path).read_text("utf-8")
    found = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert found["results"] == {"slope": None, "freshness": [None, 1.0]}


def test_a_disk_that_fills_up_leaves_the_last_report_as_it_was(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (100, before[1])
    )  # bytes a file may have: as good as a full disk
    try:
        with pytest.raises(OSError, match="too large"):
            report.model_copy(update={"seed": 4}).save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert read_report(tmp_path) == report


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"version": 1}', "\ud800"])
def test_a_folder_without_a_readable_report_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "report.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(FieldError, match=r"report\.json"):
        read_report(tmp_path)


def test_a_run_folder_is_named_by_time_command_and_profile(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", "load", "laptop", CLOCK)
    assert folder == tmp_path / "runs" / "20231114T221320Z-load-laptop"
    assert folder.is_dir()


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path) -> None:
    names = [run_folder(tmp_path, "load", "laptop", CLOCK).name for _ in range(3)]
    assert [name.removeprefix("20231114T221320Z-load-laptop") for name in names] == ["", "-2", "-3"]


@pytest.mark.parametrize("name", ["../../etc", "a/b", "my profile\n", "/etc"])
def test_no_profile_name_leads_out_of_the_runs_folder(tmp_path: Path, name: str) -> None:
    assert run_folder(tmp_path, "load", name, CLOCK).parent == tmp_path


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, not a folder")
    with pytest.raises(FieldError, match=r"out = .*choose a folder"):
        run_folder(tmp_path / "runs", "load", "laptop", CLOCK)
