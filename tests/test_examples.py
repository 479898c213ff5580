"""Every example does what its first line says."""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
from openai import AsyncOpenAI
from websockets.sync.client import connect

from metronome_cli.cli.local_server import serving
from metronome_cli.frame import Failed, Frame, Said
from metronome_cli.models.assets import locate
from metronome_cli.profile import load_profile

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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that says one sentence."""
    profile = tmp_path_factory.mktemp("server") / "null.toml"
    profile.write_text(PROFILE)
    with serving(["--profile", str(profile), "--no-record"]) as url:
        yield url


@pytest.mark.parametrize("rate", [24_000, 16_000, 8_000])
def test_a_spoken_call_is_held_by_a_script(server: str, tmp_path: Path, rate: int) -> None:
    with wave.open(str(tmp_path / "question.wav"), "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(rate)
        recording.writeframes(bytes(rate))  # half a second
    address = server.replace("http", "ws", 1) + "/v1/realtime"
    command = [sys.executable, str(EXAMPLES / "call.py"), str(tmp_path / "question.wav"), address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "I hear nothing, but I keep the beat.\n"


def test_what_the_server_complains_of_is_all_that_the_script_says(tmp_path: Path) -> None:
    (tmp_path / "null.toml").write_text(PROFILE)
    soundfile.write(tmp_path / "question.wav", np.zeros(2000), 11_025)
    with serving(["--profile", str(tmp_path / "null.toml"), "--no-record"]) as url:
        address = url.replace("http", "ws", 1) + "/v1/realtime"
        command = [sys.executable, str(EXAMPLES / "call.py"), str(tmp_path / "question.wav"), address]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "11025" in done.stderr


def test_a_model_that_never_rests_is_listened_to_and_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "null.toml").write_text(PROFILE.replace('"turn"', '"free"'))
    monkeypatch.syspath_prepend(EXAMPLES)
    script = importlib.import_module("call")
    monkeypatch.setattr(script, "LISTEN_S", 1.0)
    with (
        serving(["--profile", str(tmp_path / "null.toml"), "--no-record"]) as url,
        pytest.raises(TimeoutError),
    ):
        asyncio.run(script.main(str(QUESTION), url.replace("http", "ws", 1) + "/v1/realtime"))
    assert "I hear nothing" in capsys.readouterr().out


SCRIPTS = sorted(path for path in EXAMPLES.glob("**/*.py") if "__main__" in path.read_text())
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


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address, up to /v1, of a server that has just let in the one call that its ramp lets in."""
    profile = tmp_path_factory.mktemp("taken") / "null.toml"
    profile.write_text(PROFILE.replace("frame_s = 0.25", "frame_s = 30.0"))
    with serving(["--profile", str(profile), "--no-record", "--admit", "forecast"]) as url:
        base = f"{url.replace('http', 'ws', 1)}/v1"
        with connect(f"{base}/realtime", proxy=None):
            yield base


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_caller_who_is_refused_is_told_why_and_when_to_come_again(script: Path, taken: str) -> None:
    address = f"{taken}/realtime"  # as `serve` prints it
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


def test_a_spoken_call_is_held_with_the_official_client(server: str) -> None:
    assert held(server) == {"heard": "", "answer": "I hear nothing, but I keep the beat."}


# ---- A model of one's own ----

TOY = str(EXAMPLES / "own_model.toml")


@pytest.fixture(scope="module")
def toy() -> Iterator[str]:
    """The URL of a server of the toy, found as a user's own model is: by PYTHONPATH."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "PYTHONPATH", os.pathsep.join([str(EXAMPLES), *filter(None, [os.environ.get("PYTHONPATH")])])
        )
        with serving(["--profile", TOY, "--no-record"]) as url:
            yield url


async def spoken(url: str, modality: Any, per_reply: Any) -> list[Any]:
    """The events of one spoken question's reply, as the official client's own types."""
    client = AsyncOpenAI(api_key="x", websocket_base_url=url.replace("http", "ws", 1) + "/v1")
    async with client.realtime.connect(model="own") as call, asyncio.timeout(30):
        session: Any = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        await call.session.update(session=session | modality)
        await call.input_audio_buffer.append(audio=base64.b64encode(bytes(4800)).decode())
        await call.input_audio_buffer.commit()
        await call.response.create(response=per_reply)
        events = []
        async for event in call:
            assert event.type != "error", event
            events.append(event)
            if event.type == "response.done":
                return events
    raise AssertionError("the call ended before its reply")


def of(events: list[Any], kind: str) -> list[Any]:
    return [event for event in events if event.type == kind]


def test_the_toy_hums_its_words_to_the_official_client(toy: str) -> None:
    events = asyncio.run(spoken(toy, {}, {}))
    assert of(events, "session.updated")[0].session.output_modalities == ["audio"]
    deltas = [event.delta for event in of(events, "response.output_audio_transcript.delta")]
    sounds = [base64.b64decode(event.delta) for event in of(events, "response.output_audio.delta")]
    assert set(deltas) <= set(own_model().WORDS)
    assert len(deltas) == len(sounds) == 12
    assert {len(pcm) for pcm in sounds} == {2 * 24_000 * 0.2 / 4}  # a quarter of a frame each
    assert all(np.abs(np.frombuffer(pcm, "<i2")).max() > 1000 for pcm in sounds)
    done = events[-1].response
    assert (done.status, done.output_modalities) == ("incomplete", ["audio"])
    assert done.output[0].content[0].type == "output_audio"
    assert done.output[0].content[0].transcript == "".join(deltas)
    assert of(events, "response.output_audio_transcript.done")[0].transcript == "".join(deltas)
    assert len(of(events, "response.output_audio.done")) == 1


def test_the_toys_words_are_printed_by_a_script(toy: str) -> None:
    address = toy.replace("http", "ws", 1) + "/v1/realtime"
    command = [sys.executable, str(EXAMPLES / "call.py"), str(QUESTION), address]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert len(done.stdout.split()) == 12
    assert {f"{word} " for word in done.stdout.split()} <= set(own_model().WORDS)


@pytest.mark.parametrize("whole", [True, False], ids=["session", "reply"])
def test_the_toy_writes_to_who_asks_for_text(toy: str, whole: bool) -> None:
    text: Any = {"output_modalities": ["text"]}
    events = asyncio.run(spoken(toy, text if whole else {}, {} if whole else text))
    assert not [event for event in events if "audio" in event.type and event.type.startswith("response")]
    said = "".join(event.delta for event in of(events, "response.output_text.delta"))
    assert len(said.split()) == 12
    assert events[-1].response.output[0].content[0].text == said


@pytest.mark.assets("whisper-tiny.en")
def test_load_measures_keeps_and_hears_what_the_toy_hums(toy: str, tmp_path: Path) -> None:
    times = np.arange(16_000) / 16_000
    (tmp_path / "speech").mkdir()
    soundfile.write(tmp_path / "speech" / "tone.wav", 0.5 * np.sin(2 * np.pi * 440 * times), 16_000)
    words = ["load", toy, "--sessions", "2", "--duration", "2s", "--keep-speech", "1", "--listen", "--json"]
    options = ["--speech", str(tmp_path / "speech"), "--out", str(tmp_path / "runs")]
    command = [sys.executable, "-m", "metronome_cli", *words, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout)["results"]
    assert (found["protocol"], found["frames"]["stalled"], found["calls"]["errors"]) == ("metronome", 0, {})
    assert found["freshness"]["last_s"]["n"] == found["frames"]["spoken"] > 0
    assert found["sound"]["back_s"] == pytest.approx(found["sound"]["audible_s"])
    [folder] = (tmp_path / "runs").iterdir()
    assert found["spoken"] == ["spoken/call-0000.wav"]
    samples, rate = soundfile.read(folder / found["spoken"][0])
    assert rate == 24_000
    assert len(samples) / rate == pytest.approx(0.05 * round(len(samples) / rate / 0.05))  # whole tokens
    assert found["replies_wer"]["calls"] == 1  # hums are no words: how they are heard is Whisper's affair
    frames = [json.loads(line) for line in (folder / "frames.jsonl").read_text().splitlines()[1:]]
    hums = [frame for frame in frames if frame["said"]]
    assert all(len(frame["said"].split()) == frame["tokens_out"] for frame in hums)


def own_model() -> Any:
    spec = importlib.util.spec_from_file_location("own_model", EXAMPLES / "own_model.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["own_model"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_page_on_adding_a_model_shows_the_toy_as_it_is() -> None:
    page = (EXAMPLES.parent / "docs" / "adding-a-model.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = "".join((EXAMPLES / "own_model.py").read_text("utf-8").split())
    assert len(blocks) >= 8
    assert [block for block in blocks if "".join(block.split()) not in file] == []


def test_the_toys_ears_keep_calls_apart_and_a_nan_ends_one_alone() -> None:
    module = own_model()
    profile = load_profile(TOY)
    toy, alone = module.Toy(profile), module.Toy(profile)
    for model in (toy, alone):
        for session in (1, 2):
            assert model.open(session, seed=session) is None
    sound = np.full(3200, 0.5, np.float32)
    bad = Frame(1, np.full(3200, np.nan, np.float32), reply=0)
    good = Frame(2, sound, reply=0)
    events = list(toy.tick([bad, good]))
    assert events[0] == Failed(1, "its audio is not finite")
    assert events[1:] == list(alone.tick([good]))
    assert sum(isinstance(event, Said) for event in events) == profile.beat.tau
    toy.close(1)
    assert toy.usage().leased == toy.blocks(2)


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
