"""Tiny random checkpoints of every family, saved as transformers saves them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
OF_FAMILY: dict[str, dict[str, object]] = {
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    }
}


@dataclass(frozen=True)
class Tiny:
    """A small random checkpoint: its folder and the transformers model that it was saved from."""

    folder: Path
    model: PreTrainedModel


def save_tiny(folder: Path, family: str, **changes: object) -> Tiny:
    """Three layers, groups of three, weights large enough that attention is far from uniform."""
    config_class, model_class = FAMILIES[family]
    torch.manual_seed(0)
    settings: dict[str, object] = {
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.3,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    model = model_class(config_class(**settings | OF_FAMILY.get(family, {}) | changes)).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.uniform_(parameter, 0.5, 1.5)  # biases and norms as saved would be 0 and 1
    model.save_pretrained(folder)
    return Tiny(folder, model)


@pytest.fixture(scope="session", params=list(FAMILIES))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """Each family in turn."""
    return save_tiny(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return save_tiny(tmp_path_factory.mktemp("one"), "llama")
