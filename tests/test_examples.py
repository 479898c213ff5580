"""Every example does what its first line says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import wave
from pathlib import Path

import jiwer
import pytest

from metronome_cli.cli.local_server import serving
from metronome_cli.models.assets import locate

EXAMPLES = Path(__file__).parents[1] / "examples"
QUESTION = locate("questions") / "capital-of-france.flac"
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


def held(url: str) -> dict[str, str]:
    """What examples/openai_client.py heard and was answered."""
    address = url.replace("http", "ws", 1) + "/v1"
    command = [sys.executable, str(EXAMPLES / "openai_client.py"), str(QUESTION), address]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def test_a_spoken_call_is_held_with_the_official_client(tmp_path: Path) -> None:
    (tmp_path / "null.toml").write_text(PROFILE)
    with serving(["--profile", str(tmp_path / "null.toml"), "--no-record"]) as url:
        assert held(url) == {"heard": "", "answer": "I hear nothing, but I keep the beat."}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.assets("whisper-tiny.en", "smollm2-135m-instruct")
def test_a_real_question_is_heard_and_answered_over_the_official_client() -> None:
    with serving(["--profile", "laptop", "--no-record"]) as url:
        said = held(url)
    script = json.loads((QUESTION.parent / "script.json").read_text())[QUESTION.name]
    assert word_errors(said["heard"], script) <= 0.2
    assert said["answer"].strip()


def word_errors(heard: str, script: str) -> float:
    """Word error rate, whatever the case and the punctuation."""
    spoken, understood = (re.sub(r"[^a-z ]", "", text.lower()) for text in (script, heard))
    return float(jiwer.wer(spoken, understood))
