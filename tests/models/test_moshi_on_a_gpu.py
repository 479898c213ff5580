"""Moshi on a CUDA device: graphs against the same without them, and the codec against the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import MoshiForConditionalGeneration

from metronome_cli.engine.checkpoint import Checkpoint
from metronome_cli.frame import Frame, Said
from metronome_cli.models.mimi import Mimi
from metronome_cli.models.moshi import Moshi
from metronome_cli.models.moshi_weights import CODEC
from metronome_cli.models.replay import Replay
from metronome_cli.profile import parse_profile

from .tiny_moshi import BOOKS

FRAME = 1920
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def _whole_numbers() -> Iterator[None]:
    """Convolutions in float32, not in the shorter numbers that are the default on a card."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def said(folder: Path, frames: int) -> list[Said]:
    """What three calls of different ages say, drawn by chance; one of them has a new tenant half-way."""
    profile = parse_profile(
        "test",
        {
            "model": {
                "kind": "moshi",
                "thinker": str(folder),
                "mode": "free",
                "rate": 24_000,
                "temperature": 0.8,
                "top_p": 0.9,
            },
            "beat": {"frame_s": 0.08, "tau": 1, "prefill_tokens": 2},
            "window": {"window": 16, "sinks": "header"},
            "pool": {"blocks": 100, "block_size": 16},
            "admission": {"max_sessions": 5},
            "run": {"device": "cuda"},
        },
    )
    model = Moshi(profile)
    random = np.random.default_rng(0)
    words = []
    for number in range(frames):
        if number in (0, 3, 7):
            model.open(number, seed=number)
        if number == frames // 2:
            model.close(3)
            model.open(100, seed=100)
        live = list(model._calls)
        brought = [Frame(call, random.standard_normal(FRAME).astype(np.float32) * 0.2) for call in live]
        words += [event for event in model.tick(brought) if isinstance(event, Said)]
    return words


def test_graphs_tell_what_is_told_without_them(
    tiny_moshi: tuple[Path, MoshiForConditionalGeneration], monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = said(tiny_moshi[0], 40)
    monkeypatch.setattr(Replay, "capture", lambda self: None)
    plain = said(tiny_moshi[0], 40)
    assert [word.text for word in replayed] == [word.text for word in plain]
    assert len({word.text for word in replayed}) > 5
    for one, other in zip(replayed, plain, strict=True):
        mine, theirs = (np.frombuffer(word.pcm, "<i2").astype(int) for word in (one, other))
        assert np.abs(mine - theirs).max(initial=0) <= 2


@torch.inference_mode()
def test_the_codec_of_a_card_is_that_of_the_cpu(
    tiny_moshi: tuple[Path, MoshiForConditionalGeneration],
) -> None:
    folder, model = tiny_moshi
    there, here = (
        Mimi(
            model.config.audio_encoder_config,  # type: ignore[arg-type]
            Checkpoint(folder, torch.float32, torch.device(device)),
            CODEC,
            books=BOOKS,
            slots=2,
        )
        for device in ("cuda", "cpu")
    )
    audio = torch.randn(2, 30 * FRAME, generator=torch.Generator().manual_seed(0)) * 0.2
    slots = torch.arange(2)
    for piece_NL in audio.split(FRAME, dim=1):
        latents = here.latents(piece_NL, slots)
        theirs = there.latents(piece_NL.cuda(), slots.cuda()).cpu()
        assert torch.allclose(theirs, latents, rtol=0, atol=1e-3)
        codes = here.nearest(latents)
        sound = there.decode(codes.cuda(), slots.cuda()).cpu()
        assert torch.allclose(sound, here.decode(codes, slots), rtol=0, atol=1e-3)
