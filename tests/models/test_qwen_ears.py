"""Features, towers and ears of the Qwen-Omni models against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import WhisperFeatureExtractor

from metronome_cli.models.factory import build
from metronome_cli.models.log_mel import LogMel
from metronome_cli.models.qwen_ears import QwenEars, Waiting
from metronome_cli.models.qwen_omni import QwenOmni

from .tiny_omni import MELS, TinyOmni, noise, processed, profile

pytestmark = pytest.mark.usefixtures("one_thread")


def ears_of(tiny: TinyOmni) -> QwenEars:
    model = build(profile(tiny))
    assert isinstance(model, QwenOmni)
    found = model._ears
    assert isinstance(found, QwenEars)
    return found


@pytest.mark.parametrize("mirrored", [False, True])
def test_features_are_the_processors_own_clip_by_clip(mirrored: bool) -> None:
    extractor = WhisperFeatureExtractor(feature_size=MELS)
    clips = [noise(length, length) for length in (48_000, 4800, 35_200, 480)]
    made = LogMel(extractor, torch.device("cpu"), mirrored=mirrored)(clips)
    for clip, row in zip(clips, made, strict=True):
        padding: Any = True if mirrored else "max_length"
        told = extractor([clip], sampling_rate=16_000, padding=padding, return_tensors="pt")
        frames = len(clip) // 160
        assert (row[:, :frames] - told["input_features"][0][:, :frames]).abs().max() < 1e-5
        assert not row[:, frames:].any()


def test_a_tower_hears_each_clip_of_a_batch_as_transformers_hears_it_alone(tiny: TinyOmni) -> None:
    ears = ears_of(tiny)
    pieces = [noise(length, length) for length in (72_000, 480, 5120, 35_360, 16_000)]
    heard = ears.hear([ears.open() for _ in pieces], pieces, [True] * len(pieces))
    tower: Any = tiny.thinker.model.audio_tower
    for piece, embedded in zip(pieces, heard, strict=True):
        features = processed(tiny, piece)
        with torch.inference_mode():
            want = tower(features, feature_lens=torch.tensor([features.shape[1]])).last_hidden_state
        assert embedded.shape == want.shape
        assert len(embedded) == ears.positions(len(piece))
        assert (embedded - want).abs().max() < 1e-4


def test_whole_chunks_streamed_are_the_towers_own_forward_over_all_of_them(tiny: TinyOmni) -> None:
    """Frames of Qwen2.5's chunk, or of Qwen3's attention window: nobody attends beyond them."""
    ears = ears_of(tiny)
    frame = 2560 if tiny.kind == "qwen2.5-omni" else 32_000
    pieces = [noise(number, frame) for number in range(5)]
    call = ears.open()
    heard = torch.cat([ears.hear([call], [piece], [False])[0] for piece in pieces])
    features = torch.cat([processed(tiny, piece) for piece in pieces], dim=1)
    tower: Any = tiny.thinker.model.audio_tower
    with torch.inference_mode():
        want = tower(features, feature_lens=torch.tensor([features.shape[1]])).last_hidden_state
    assert heard.shape == want.shape
    assert (heard - want).abs().max() < 1e-4


def test_audio_that_comes_early_or_late_is_heard_in_whole_chunks(qwen25: TinyOmni) -> None:
    ears = ears_of(qwen25)
    chunk = 2560
    lengths = [chunk, chunk + 320, chunk - 320, 2 * chunk + 100, chunk - 100, 100, 800, 1000, 0]
    call = ears.open()
    sizes, waiting = [], []
    for length in lengths:
        sizes.append(len(ears.hear([call], [noise(0, length)], [False])[0]))
        waiting.append(len(call.samples))
    assert sizes == [4, 4, 4, 8, 4, 0, 0, 3, 0]  # the eighth brings 1900 samples, of which 11 hops are whole
    assert waiting == [0, 320, 0, 100, 0, 100, 900, 140, 140]


def test_nothing_waits_at_the_end_of_an_utterance(qwen25: TinyOmni) -> None:
    ears = ears_of(qwen25)
    call = ears.open()
    assert len(ears.hear([call], [noise(0, 1000)], [False])[0]) == 0
    assert len(ears.hear([call], [noise(1, 600)], [True])[0]) == 2
    assert len(ears.hear([call], [noise(1, 400)], [True])[0]) == 0, "a quarter of a position is no word"
    assert call == Waiting(call.samples)
    assert len(call.samples) == 0


def test_a_hundred_seconds_at_once_are_heard_as_in_company(
    qwen3: TinyOmni, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = ears_of(qwen3)
    pieces = [noise(number, 16_000 * (1 + number % 3)) for number in range(7)]
    together = ears.hear([ears.open() for _ in pieces], pieces, [False] * 7)
    monkeypatch.setattr("metronome_cli.models.qwen_ears._BATCH", 40_000)
    monkeypatch.setattr("metronome_cli.models.qwen_tower._CONVOLVED", 2)
    apart = ears.hear([ears.open() for _ in pieces], pieces, [False] * 7)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
