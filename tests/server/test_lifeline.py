"""A process ends when its starter is gone, whatever it is busy with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from metronome_cli.clock import VirtualClock
from metronome_cli.profile import load_profile
from metronome_cli.server import lifeline, messages

from .running import PATIENCE_S, write_profile

# The model never comes to be; it says that it began.
STUCK = """
import sys, time
from metronome_cli.models.null import NullModel

class Stuck(NullModel):
    def __init__(self, profile):
        print("loading", file=sys.stdout, flush=True)
        time.sleep(3600)
"""


def test_its_end_is_called_a_while_after_the_other_end_of_the_pipe_is_gone() -> None:
    ours, theirs = os.pipe()
    clock, ended = VirtualClock(100.0), threading.Event()
    thread = lifeline.watch(ours, clock, ended.set)
    os.write(theirs, b"a word is no end")
    assert not ended.is_set()
    os.close(theirs)
    assert ended.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    os.close(ours)
    assert clock.now() == 100.0 + lifeline.ORDERLY_S


def test_an_engine_that_loads_for_ever_does_not_outlive_its_gateway(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(STUCK)
    (tmp_path / "cell").mkdir()
    profile = load_profile(str(write_profile(tmp_path, kind="stuck:Stuck")))
    setup = messages.Setup(f"ipc://{tmp_path}/cell/engine", profile.model_dump(), None)
    process = subprocess.Popen(
        [sys.executable, "-m", "metronome_cli.server.engine_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(msgspec.json.encode(setup) + b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"loading\n"
    process.stdin.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL
    process.stdout.close()
    assert not (tmp_path / "cell").exists()
