"""Every example does what its first line says."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import pytest

from metronome_cli.cli.local_server import serving

EXAMPLES = Path(__file__).parents[1] / "examples"
PROFILE = """
[model]
kind = "null"
mode = "turn"
[beat]
frame_s = 0.25
[server]
port = 0
"""


@pytest.mark.parametrize("rate", [24_000, 16_000, 8_000])
def test_a_spoken_call_is_held_by_a_script(tmp_path: Path, rate: int) -> None:
    (tmp_path / "null.toml").write_text(PROFILE)
    with wave.open(str(tmp_path / "question.wav"), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(bytes(rate))  # half a second
    with serving(["--profile", str(tmp_path / "null.toml"), "--no-record"]) as url:
        address = url.replace("http", "ws", 1) + "/v1/realtime"
        command = [sys.executable, str(EXAMPLES / "call.py"), str(tmp_path / "question.wav"), address]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "I hear nothing, but I keep the beat.\n"
