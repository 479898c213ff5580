"""The spoken questions that are part of the package: complete, playable, and heard as they are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
import soundfile

from metronome_cli.models.assets import locate

FOLDER = locate("questions")
QUESTIONS: list[dict[str, Any]] = json.loads((FOLDER / "questions.json").read_text("utf-8"))


def test_every_question_has_its_own_name_its_answers_and_its_recording() -> None:
    assert (
        len({row["id"] for row in QUESTIONS}) == len({row["question"] for row in QUESTIONS}) == len(QUESTIONS)
    )
    assert all(row["answers"] and all(answer.strip() for answer in row["answers"]) for row in QUESTIONS)
    assert {row["file"] for row in QUESTIONS} == {path.name for path in FOLDER.glob("*.flac")}


def test_the_script_holds_the_same_words() -> None:
    script = json.loads((FOLDER / "script.json").read_text("utf-8"))
    assert script == {row["file"]: row["question"] for row in QUESTIONS}


def test_every_recording_is_16_khz_mono_and_one_to_five_seconds_long() -> None:
    for row in QUESTIONS:
        found = soundfile.info(FOLDER / row["file"])
        assert (found.samplerate, found.channels, found.subtype) == (16_000, 1, "PCM_16")
        assert 1.0 <= found.duration <= 5.0


def test_no_question_gives_its_own_answer_away() -> None:
    for row in QUESTIONS:
        words = row["question"].lower().rstrip("?").split()
        assert not any(answer.lower() in words for answer in row["answers"])


@pytest.mark.slow
@pytest.mark.assets("whisper-tiny.en")
def test_whisper_hears_every_question_as_it_is_written() -> None:
    import torch
    import whisper
    from whisper.normalizers import EnglishTextNormalizer

    ears = whisper.load_model(str(locate("whisper-tiny.en") / "tiny.en.pt"), device="cpu")
    clips = [soundfile.read(FOLDER / row["file"], dtype="float32")[0] for row in QUESTIONS]
    mels = torch.stack([whisper.log_mel_spectrogram(whisper.pad_or_trim(clip)) for clip in clips])
    options = whisper.DecodingOptions(language="en", without_timestamps=True, fp16=False)
    heard = [found.text for batch in mels.split(8) for found in whisper.decode(ears, batch, options)]
    plain = EnglishTextNormalizer()
    assert [plain(text) for text in heard] == [plain(row["question"]) for row in QUESTIONS]
