"""The batched Whisper: against openai-whisper's own on real speech, and with a tiny random one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import jiwer
import numpy as np
import pytest
import torch
import whisper
from numpy.typing import NDArray

from metronome_cli.errors import AssetError
from metronome_cli.models.assets import locate
from metronome_cli.models.whisper_batch import WhisperBatch
from metronome_cli.models.word_times import is_lost, timed_words
from metronome_cli.speech import read_clips

pytestmark = pytest.mark.usefixtures("one_thread")
needs_speech = pytest.mark.assets("whisper-tiny.en", "librivox")
CAP = 60


@pytest.fixture(scope="module")
def clips() -> list[NDArray[np.float32]]:
    return [clip.samples for clip in read_clips(locate("librivox"))]


@pytest.fixture(scope="module")
def batch() -> WhisperBatch:
    return WhisperBatch(locate("whisper-tiny.en"), context_s=8.0)


@needs_speech
def test_at_the_full_context_it_says_what_openai_whisper_says(clips: list[NDArray[np.float32]]) -> None:
    model = whisper.load_model(str(locate("whisper-tiny.en") / "tiny.en.pt"), device="cpu")
    options = whisper.DecodingOptions(
        language="en", without_timestamps=True, suppress_blank=False, fp16=False
    )
    theirs = whisper.decode(model, whisper.log_mel_spectrogram(whisper.pad_or_trim(clips[3])), options)
    ours = WhisperBatch(locate("whisper-tiny.en"), context_s=30.0).decode([clips[3]], [[]], CAP)[0]
    assert ours.tokens == theirs.tokens
    assert ours.no_speech == pytest.approx(theirs.no_speech_prob, abs=1e-3)
    # Theirs leaves some probability to timestamps, which ours never says.
    assert ours.logprob == pytest.approx(theirs.avg_logprob, abs=0.02)


@needs_speech
def test_a_prefix_is_continued_as_if_it_had_just_been_said(
    batch: WhisperBatch, clips: list[NDArray[np.float32]]
) -> None:
    whole = batch.decode(clips, [[] for _ in clips], CAP)
    prefixes = [decoded.tokens[: 3 * row] for row, decoded in enumerate(whole)]
    rest = batch.decode(clips, prefixes, CAP)
    for full, prefix, part in zip(whole, prefixes, rest, strict=True):
        assert prefix + part.tokens == full.tokens
        np.testing.assert_allclose(part.attention, full.attention, atol=1e-4)


@needs_speech
def test_a_row_is_the_same_alone_and_in_a_batch(
    batch: WhisperBatch, clips: list[NDArray[np.float32]]
) -> None:
    quiet = [clip * 0.02 for clip in clips[1:]]
    together = batch.decode([clips[0], *quiet], [[] for _ in clips], CAP)
    alone = batch.decode(clips[:1], [[]], CAP)[0]
    assert together[0].tokens == alone.tokens
    assert together[0].logprob == pytest.approx(alone.logprob, abs=1e-4)


@needs_speech
def test_products_in_bfloat16_hear_the_same_words(
    batch: WhisperBatch, clips: list[NDArray[np.float32]]
) -> None:
    rounded = WhisperBatch(locate("whisper-tiny.en"), context_s=8.0, products=torch.bfloat16)
    some = clips[:3]
    for one, other in zip(
        batch.decode(some, [[] for _ in some], CAP),
        rounded.decode(some, [[] for _ in some], CAP),
        strict=True,
    ):
        assert jiwer.wer(batch.text(one.tokens), batch.text(other.tokens)) < 0.1
        assert other.logprob == pytest.approx(one.logprob, abs=0.05)
        assert other.logprob != one.logprob  # they are rounded


def test_no_row_passes_the_cap(tiny_whisper: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(3, 32_000)).astype(np.float32)
    decoded = WhisperBatch(tiny_whisper, 8.0).decode(list(noise), [[], [5, 6, 7], [8]], 4)
    assert [len(one.tokens) for one in decoded] == [4, 4, 4]
    assert [one.attention.shape for one in decoded] == [(2, 4, 400), (2, 7, 400), (2, 5, 400)]


def test_a_row_that_is_given_up_ends_there_and_leaves_its_neighbours_alone(tiny_whisper: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 32_000)).astype(np.float32)
    batch = WhisperBatch(tiny_whisper, 8.0)
    asked = []

    def give_up(row: int, tokens: Sequence[int], attention: NDArray[np.float32]) -> bool:
        asked.append((row, len(tokens), attention.shape[1]))
        return row == 1 and len(tokens) == 12

    whole = batch.decode(list(noise), [[], [7, 8]], 20)
    short = batch.decode(list(noise), [[], [7, 8]], 20, give_up)
    assert short[0].tokens == whole[0].tokens
    assert short[1].tokens == whole[1].tokens[:12]
    assert asked == [(0, 6, 6), (1, 6, 8), (0, 12, 12), (1, 12, 14), (0, 18, 18)]


@pytest.mark.assets("whisper-tiny.en", "speech")
def test_a_loop_is_given_up_with_its_true_words_kept(batch: WhisperBatch) -> None:
    """ "Try again", said once: Whisper says it without end."""
    (clip,) = (clip for clip in read_clips(locate("speech")) if clip.name == "beckett.flac")
    audio = clip.samples[72_000:104_000]

    def lost(row: int, tokens: Sequence[int], attention: NDArray[np.float32]) -> bool:
        return is_lost(tokens, 0, attention[..., :100], batch.text)

    whole, short = batch.decode([audio], [[]], CAP)[0], batch.decode([audio], [[]], CAP, lost)[0]
    assert len(short.tokens) <= CAP / 2 < len(whole.tokens) == CAP
    words = [word.text for word in timed_words(short.tokens, 0, short.attention[..., :100], batch.text)]
    assert words[:2] == ["Try", "again."]


def test_a_prefix_that_nearly_fills_the_context_leaves_its_neighbours_alone(tiny_whisper: Path) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 32_000)).astype(np.float32)
    batch = WhisperBatch(tiny_whisper, 8.0)
    long, short = batch.decode(list(noise), [[9] * 440, []], 12)
    assert len(long.tokens) == 448 - 440 - 2
    assert short.tokens == batch.decode([noise[1]], [[]], 12)[0].tokens


def test_the_same_audio_gives_the_same_tokens_twice(tiny_whisper: Path) -> None:
    noise = [np.random.default_rng(1).normal(size=48_000).astype(np.float32)]
    batch = WhisperBatch(tiny_whisper, 8.0)
    assert batch.decode(noise, [[]], 20)[0].tokens == batch.decode(noise, [[]], 20)[0].tokens


def test_a_missing_checkpoint_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"nowhere\.pt: give a Whisper \.pt file"):
        WhisperBatch(tmp_path / "nowhere.pt", 8.0)
    with pytest.raises(AssetError, match="folder that holds exactly one"):
        WhisperBatch(tmp_path, 8.0)


def test_the_name_of_a_published_model_is_never_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssetError, match="give a Whisper"):
        WhisperBatch(Path("tiny.en"), 8.0)


@pytest.mark.parametrize("content", [b"", b"no checkpoint at all", b"PK\x03\x04 cut short"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tiny.en.pt").write_bytes(content)
    with pytest.raises(AssetError, match=r"not a Whisper checkpoint \(\w+\); fetch it again"):
        WhisperBatch(tmp_path, 8.0)


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / "other.pt")
    with pytest.raises(AssetError, match="not a Whisper checkpoint"):
        WhisperBatch(tmp_path, 8.0)
