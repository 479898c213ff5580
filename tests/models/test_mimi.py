"""The codec, streamed for calls of different ages, against transformers' Mimi over the whole sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MoshiForConditionalGeneration

from metronome_cli.engine.checkpoint import Checkpoint
from metronome_cli.errors import AssetError
from metronome_cli.models.mimi import Mimi
from metronome_cli.models.moshi_weights import CODEC

from .tiny_moshi import BOOKS, CODES

FRAME = 1920
SLOTS = 3
AGES = (0, 3, 17)  # ticks at which each call begins


@pytest.fixture
def codec(tiny_moshi: tuple[Path, MoshiForConditionalGeneration]) -> Mimi:
    folder, model = tiny_moshi
    config: Any = model.config.audio_encoder_config
    source = Checkpoint(folder, torch.float32, torch.device("cpu"))
    return Mimi(config, source, CODEC, books=BOOKS, slots=SLOTS)


def sounds(frames: int) -> Tensor:
    """[calls, frames x FRAME]: noise whose loudness changes frame by frame."""
    random = torch.Generator().manual_seed(3)
    noise = torch.randn(len(AGES), frames, FRAME, generator=random)
    return (noise * torch.rand(len(AGES), frames, 1, generator=random)).flatten(1)


def due(tick: int, frames: int) -> list[int]:
    """Calls that bring a frame at `tick`: each begins at its own, and has `frames` of them."""
    return [call for call, begin in enumerate(AGES) if begin <= tick < begin + frames]


@torch.inference_mode()
def test_codes_of_a_stream_are_those_of_the_whole_sound(
    codec: Mimi, tiny_moshi: tuple[Path, MoshiForConditionalGeneration], monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = 30
    audio_CL = sounds(frames)
    got: list[list[Tensor]] = [[] for _ in AGES]
    for tick in range(max(AGES) + frames):
        calls = due(tick, frames)
        pieces = [audio_CL[call, (tick - AGES[call]) * FRAME :][:FRAME] for call in calls]
        latents_NE = codec.latents(torch.stack(pieces), torch.tensor([2 - call for call in calls]))
        for call, latent_E in zip(calls, latents_NE, strict=True):
            got[call].append(latent_E)
    mimi = tiny_moshi[1].audio_encoder
    seen: list[Tensor] = []
    inner = mimi.quantizer.encode

    def watched(latents: Tensor, *args: Any) -> Any:
        seen.append(latents)
        return inner(latents, *args)

    monkeypatch.setattr(mimi.quantizer, "encode", watched)
    for call in range(len(AGES)):
        whole_KF = mimi.encode(audio_CL[call][None, None], num_quantizers=BOOKS).audio_codes[0]
        latents_FE = torch.stack(got[call])
        assert torch.allclose(latents_FE, seen[-1][0].t(), rtol=0, atol=1e-4)
        assert torch.equal(codec.nearest(latents_FE).t(), whole_KF)
        assert len(whole_KF.unique()) > CODES / 4, "the sound reaches many codes, or nothing is compared"


@torch.inference_mode()
def test_sound_of_streamed_codes_is_that_of_all_of_them(
    codec: Mimi, tiny_moshi: tuple[Path, MoshiForConditionalGeneration]
) -> None:
    frames = 30
    codes_CFK = torch.randint(CODES, (len(AGES), frames, BOOKS), generator=torch.Generator().manual_seed(4))
    got: list[list[Tensor]] = [[] for _ in AGES]
    for tick in range(max(AGES) + frames):
        calls = due(tick, frames)
        codes_NK = torch.stack([codes_CFK[call, tick - AGES[call]] for call in calls])
        for call, sound_L in zip(calls, codec.decode(codes_NK, torch.tensor(calls)), strict=True):
            got[call].append(sound_L)
    whole_CL = tiny_moshi[1].audio_encoder.decode(codes_CFK.transpose(1, 2)).audio_values.squeeze(1)
    assert whole_CL.std() > 0.01
    assert torch.allclose(torch.stack([torch.cat(sound) for sound in got]), whole_CL, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_a_new_tenant_of_a_slot_hears_and_sounds_as_in_a_fresh_one(codec: Mimi) -> None:
    audio_NL = sounds(8)[:2]
    slot = torch.tensor([1])

    def play(row: int) -> list[tuple[Tensor, Tensor]]:
        pieces = audio_NL[row : row + 1].split(FRAME, dim=1)
        codes = [codec.encode(piece, slot)[0] for piece in pieces]
        return [(code_NK, codec.decode(code_NK, slot)) for code_NK in codes]

    fresh = play(0)
    codec.encode(torch.full((1, FRAME), float("nan")), slot)
    codec.memory.wipe(1)
    again = play(0)
    for (codes, sound), (codes_again, sound_again) in zip(fresh, again, strict=True):
        assert torch.equal(codes, codes_again)
        assert torch.equal(sound, sound_again)
    assert not all(torch.equal(a, b) for (a, _), (b, _) in zip(play(1), again, strict=True))


@torch.inference_mode()
def test_what_is_remembered_has_one_size_at_any_age(codec: Mimi) -> None:
    before = codec.memory.slot_bytes
    shapes = [kept.shape for kept in codec.memory.of(0)]
    for _ in range(40):
        codes_NK, _ = codec.encode(torch.zeros(1, FRAME), torch.tensor([0]))
        codec.decode(codes_NK, torch.tensor([0]))
    assert codec.memory.slot_bytes == before
    assert [kept.shape for kept in codec.memory.of(0)] == shapes


@torch.inference_mode()
def test_what_is_no_sound_is_told_of_its_row_alone(codec: Mimi) -> None:
    audio_NL = sounds(1)
    slots = torch.arange(SLOTS)
    clean, _ = codec.encode(audio_NL, slots)
    for slot in range(SLOTS):
        codec.memory.wipe(slot)
    audio_NL[1, 7] = float("nan")
    audio_NL[2, 9] = 3e38  # finite, and too loud for float32 a few layers on
    codes_NK, finite_N = codec.encode(audio_NL, slots)
    assert finite_N.tolist() == [True, False, False]
    assert torch.equal(codes_NK[0], clean[0])


def test_a_missing_or_misshaped_weight_of_the_codec_is_named(
    tiny_moshi: tuple[Path, MoshiForConditionalGeneration],
) -> None:
    folder, model = tiny_moshi
    config: Any = model.config.audio_encoder_config
    source = Checkpoint(folder, torch.float32, torch.device("cpu"))
    source.take(f"{CODEC}encoder.layers.3.conv.bias", (8,))
    with pytest.raises(AssetError, match=r"audio_encoder\.encoder\.layers\.3\.conv\.bias is missing"):
        Mimi(config, source, CODEC, books=BOOKS, slots=1)
    other = type(config)(**config.to_dict() | {"intermediate_size": 50})
    with pytest.raises(AssetError, match=r"mlp\.fc1\.weight has shape \(48, 32\)"):
        Mimi(other, Checkpoint(folder, torch.float32, torch.device("cpu")), CODEC, books=BOOKS, slots=1)
