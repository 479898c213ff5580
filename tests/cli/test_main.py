"""The command line as a shell sees it: exit codes, one line for an error, answers on standard output."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from metronome_cli.clock import SystemClock
from metronome_cli.report import new_report

# A command that fails in a given way, joined to the real command line.
FAILING = """
import sys
from metronome_cli import errors
from metronome_cli.cli import main

@main.app.command()
def boom() -> None:
    raise {error}

sys.argv = ["metronome", "boom"]
main.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        ("errors.MetronomeError('the engine\\nis gone')", 1, "metronome: the engine is gone\n"),
        ("errors.ProfileError('pool.blocks', 3, 'use 37')", 2, "metronome: pool.blocks = 3: use 37\n"),
        ("errors.AssetError('fetch it')", 2, "metronome: fetch it\n"),
        ("errors.NotMeasured('nobody spoke')", 3, "metronome: nobody spoke\n"),
        ("errors.TargetUnreachable('nobody at port 1')", 4, "metronome: nobody at port 1\n"),
    ],
)
def test_an_error_of_ours_is_one_line_and_its_exit_code(error: str, code: int, says: str) -> None:
    done = run("-c", FAILING.format(error=error))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", says)


def test_a_full_disk_is_one_line() -> None:
    done = run("-c", FAILING.format(error="OSError(28, 'No space left on device', 'runs/report.json')"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_an_error_that_nobody_foresaw_keeps_its_traceback() -> None:
    done = run("-c", FAILING.format(error="ZeroDivisionError('surprise')"))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: surprise\n")


def test_an_interrupted_command_ends_with_130_and_no_traceback() -> None:
    done = run("-c", FAILING.format(error="KeyboardInterrupt"))
    assert (done.returncode, done.stdout) == (130, "")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["profile", "show"], ["profile", "list", "--nonsense"], []], ids=" ".join
)
def test_wrong_use_ends_with_2_and_says_how_to_use_it(arguments: list[str]) -> None:
    done = run("-m", "metronome_cli", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: metronome" in done.stderr


def test_the_version_is_that_of_the_installed_package() -> None:
    assert (
        run("-m", "metronome_cli", "--version").stdout == f"metronome {metadata.version('metronome-cli')}\n"
    )


@pytest.mark.parametrize("kind", ["load", "find-n", "demo"])
def test_a_report_without_its_results_is_said_to_be_damaged(tmp_path: Path, kind: str) -> None:
    found = new_report(kind, None, SystemClock())
    found.save(tmp_path)
    done = run("-m", "metronome_cli", "report", str(tmp_path))
    assert done.returncode == 2
    assert "damaged" in done.stderr
    assert done.stderr.count("\n") == 1
