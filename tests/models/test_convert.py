"""Converted files load where they are to be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pytest
import soundfile
import torch
import whisper
from transformers import AutoModelForCausalLM, AutoTokenizer
from whisper.normalizers import EnglishTextNormalizer

from metronome_cli.models import convert
from metronome_cli.models.assets import locate


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_clips_become_16_khz_mono_and_keep_their_texts(source: Path, target: Path) -> None:
    seconds = np.arange(48_000) / 48_000
    tone = 0.5 * np.sin(2 * np.pi * 440 * seconds)
    soundfile.write(source / "said.wav", np.stack([tone, tone], axis=1), 48_000)
    soundfile.write(source / "unsaid.wav", tone, 48_000)
    (source / "said.txt").write_text("La.\n")
    convert.clips_to_flac(source, target)
    samples, rate = soundfile.read(target / "said.flac")
    assert (rate, samples.shape) == (16_000, (16_000,))
    assert np.abs(np.fft.rfft(samples)).argmax() == 440
    assert json.loads((target / "script.json").read_text()) == {"said.flac": "La.", "unsaid.flac": None}


def test_a_sphinx_transcription_becomes_a_script(source: Path, target: Path) -> None:
    for stem in ("a-1", "a-2"):
        (source / f"{stem}.wav").write_bytes(stem.encode())
    (source / "transcription").write_text("<s> he was not  </s> (a-1)\n<s> it was </s> (a-2)\n")
    convert.sphinx_to_script(source, target)
    assert json.loads((target / "script.json").read_text()) == {"a-1.wav": "he was not", "a-2.wav": "it was"}
    assert (target / "a-2.wav").read_bytes() == b"a-2"


def test_a_line_that_is_no_transcription_is_an_error(source: Path, target: Path) -> None:
    (source / "transcription").write_text("he was not (a-1)\n")
    with pytest.raises(ValueError, match="no reference"):
        convert.sphinx_to_script(source, target)


@pytest.mark.assets("whisper-tiny.en", "librivox")
def test_the_converted_whisper_hears_what_was_read() -> None:
    model = whisper.load_model(str(locate("whisper-tiny.en") / "tiny.en.pt"), device="cpu")
    script = json.loads((locate("librivox") / "script.json").read_text())
    # In a row they fill one of Whisper's 30 s windows.
    clips = [soundfile.read(locate("librivox") / name, dtype="float32")[0] for name in script]
    heard = model.transcribe(np.concatenate(clips), temperature=0.0, fp16=False)["text"]
    plain = EnglishTextNormalizer()
    assert jiwer.wer(plain(" ".join(script.values())), plain(heard)) <= 0.06


@pytest.mark.assets("whisper-tiny.en")
def test_the_converted_whisper_is_plain_tensors_in_float16() -> None:
    saved = torch.load(locate("whisper-tiny.en") / "tiny.en.pt", weights_only=True)
    assert {tensor.dtype for tensor in saved["model_state_dict"].values()} == {torch.float16}


@pytest.mark.assets("smollm2-135m-instruct")
def test_the_converted_language_model_answers_a_question() -> None:
    folder = locate("smollm2-135m-instruct")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.dtype == torch.float32
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    prompt: Any = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**prompt, max_new_tokens=10, do_sample=False)
    assert "Paris" in tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :])
