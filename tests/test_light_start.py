"""`metronome --help` answers at once: nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import typer

from metronome_cli.cli.main import app

HEAVY = {"torch", "numpy", "scipy", "pydantic", "rich", "transformers", "whisper", "uvicorn", "matplotlib"}

# Ends as the command would, having told on stderr what the interpreter had loaded and used by then.
PROBE = """
import atexit, json, resource, sys
from metronome_cli.cli.main import main

def tell():
    used = resource.getrusage(resource.RUSAGE_SELF)
    modules = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "modules": modules}), file=sys.stderr)

atexit.register(tell)
main()
"""


def start(*arguments: str) -> dict[str, Any]:
    """What `metronome ARGUMENTS` had loaded, and the CPU seconds it took, start of Python included."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Usage: metronome" in done.stdout
    found: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    return found


COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_help_loads_nothing_heavy() -> None:
    assert HEAVY & set(start("--help")["modules"]) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_loads_nothing_heavy(command: str) -> None:
    # typer itself reads a command's options through pydantic.
    assert HEAVY & set(start(command, "--help")["modules"]) <= {"pydantic"}


def test_help_takes_under_half_a_second_of_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    # The one timed assertion of the default tests: CPU seconds, and the best of three, so that a busy
    # machine does not fail it.
    best = min(start("--help")["cpu_s"] for _ in range(3))
    with capsys.disabled():
        print(f"\nmetronome --help: {best:.2f} s of CPU")
    assert best < 0.5
