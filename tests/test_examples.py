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
from websockets.sync.client import connect

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


SCRIPTS = sorted(EXAMPLES.glob("**/*.py"))
OPTIONAL = ("openai", "soundfile", "websockets")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
@pytest.mark.parametrize("lacking", [(), OPTIONAL], ids=["installed", "not installed"])
def test_help_is_answered_or_says_what_to_install(script: Path, lacking: tuple[str, ...]) -> None:
    bare = f"import runpy, sys; sys.modules.update(dict.fromkeys({lacking!r})); sys.argv = sys.argv[1:]; "
    command = [sys.executable, "-c", bare + "runpy.run_path(sys.argv[0], run_name='__main__')"]
    done = subprocess.run([*command, str(script), "--help"], capture_output=True, text=True, check=False)
    said = done.stderr if lacking else done.stdout
    assert "Traceback" not in done.stderr
    assert f"python examples/{script.name}" in said
    assert done.returncode == (1 if lacking else 0)
    assert ("pip install" in said) == bool(lacking)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_caller_who_is_refused_is_told_why_and_when_to_come_again(script: Path, tmp_path: Path) -> None:
    (tmp_path / "null.toml").write_text(PROFILE.replace("frame_s = 0.25", "frame_s = 30.0"))
    options = ["--profile", str(tmp_path / "null.toml"), "--no-record", "--admit", "forecast"]
    with serving(options) as url:
        base = f"{url.replace('http', 'ws', 1)}/v1"
        address = f"{base}/realtime" if script.name == "call.py" else base
        with connect(f"{base}/realtime", proxy=None):  # the one that a ramp lets in
            command = [sys.executable, str(script), str(QUESTION), address]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("HTTP 503: ramp, calls are let in a few per beat")
    assert done.stderr.endswith("; come again in 1 s\n")


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
