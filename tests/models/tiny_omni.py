"""Tiny random Qwen-Omni checkpoints, saved by transformers, each with a tokenizer and a feature extractor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    PreTrainedModel,
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen3OmniMoeConfig,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)

from metronome_cli.profile import Profile, parse_profile

from .tiny import save_tiny_tokenizer

MELS = 16
LIMIT = 64  # max_position_embeddings
KINDS = ("qwen2.5-omni", "qwen3-omni")
FRAME = 5120  # samples of 0.32 s: two chunks of the tiny Qwen2.5, a third of one of Qwen3
POSITIONS = {"qwen2.5-omni": 8, "qwen3-omni": 4}  # of such a frame
TAU = 3
AUDIO_TOKEN = 4  # what stands for a position of audio in transformers' input ids

_VISION = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 48}
_AUDIO = {
    "num_mel_bins": MELS,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "d_model": 16,
    "output_dim": 48,
    "initializer_range": 0.3,
}
_TEXT = {
    "vocab_size": 320,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.15,
    "max_position_embeddings": LIMIT,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class TinyOmni:
    """A small random checkpoint of `kind`: its folder and the transformers thinker that it was saved from."""

    kind: str
    folder: Path
    thinker: PreTrainedModel


def save_tiny_omni(kind: str, folder: Path) -> TinyOmni:
    """The form of a whole checkpoint, without a talker."""
    torch.manual_seed(0)
    model = _qwen25() if kind == "qwen2.5-omni" else _qwen3()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)  # biases and norms as saved would be 0 and 1
        else:
            torch.nn.init.normal_(parameter, 0, 1.5 * parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    save_tiny_tokenizer(
        folder, audio_bos_token="<|audio_bos|>", audio_eos_token="<|audio_eos|>", audio_token="<|AUDIO|>"
    )
    WhisperFeatureExtractor(feature_size=MELS).save_pretrained(folder)
    return TinyOmni(kind, folder, model.thinker)


def _qwen25() -> Any:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1]}
    thinker = {
        "audio_config": _AUDIO | {"n_window": 8},
        "vision_config": _VISION | {"fullatt_block_indexes": [0]},
        "text_config": _TEXT | {"rope_parameters": rope},
        "audio_token_index": AUDIO_TOKEN,
        "vision_start_token_id": 5,
    }
    config = Qwen2_5OmniConfig(thinker_config=thinker, enable_audio_output=False)
    return Qwen2_5OmniForConditionalGeneration(config).eval()


def _qwen3() -> Any:
    rope = {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
        "interleaved": True,
    }
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40}
    tower = {"n_window": 50, "n_window_infer": 200, "downsample_hidden_size": 8}
    thinker = {
        "audio_config": _AUDIO | tower,
        "vision_config": _VISION | {"deepstack_visual_indexes": [0]},
        "text_config": _TEXT | experts | {"rope_parameters": rope},
        "audio_token_id": AUDIO_TOKEN,
        "vision_start_token_id": 5,
    }
    config = Qwen3OmniMoeConfig(thinker_config=thinker, enable_audio_output=False)
    return Qwen3OmniMoeForConditionalGeneration(config).eval()


def profile(tiny: TinyOmni | str, folder: Path | None = None, **changes: Any) -> Profile:
    """A small set-up in mode free; `changes` map section_field to a value."""
    kind = tiny if isinstance(tiny, str) else tiny.kind
    thinker = folder or (tiny.folder if isinstance(tiny, TinyOmni) else "none")
    data: dict[str, Any] = {
        "model": {"kind": kind, "thinker": str(thinker), "mode": "free", "header": "Be brief."},
        "beat": {"frame_s": FRAME / 16_000, "tau": TAU, "prefill_tokens": 64},
        "window": {"policy": "window", "window": 64, "sinks": "header"},
        "pool": {"blocks": 600, "block_size": 8},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, field = key.partition("_")
        data[section][field] = value
    return parse_profile("test", data)


def noise(seed: int, samples: int = FRAME) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32)


def processed(tiny: TinyOmni, clip: NDArray[np.float32]) -> Tensor:
    """Features [mels, frames] as the model's processor makes them of one clip."""
    extractor = WhisperFeatureExtractor.from_pretrained(tiny.folder)
    padding: Any = "max_length" if tiny.kind == "qwen2.5-omni" else True
    made = extractor(
        [clip], sampling_rate=16_000, padding=padding, return_attention_mask=True, return_tensors="pt"
    )
    features_MT: Tensor = made["input_features"][0][:, made["attention_mask"][0].bool()]
    return features_MT
