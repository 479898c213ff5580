"""Decoders of real models' sizes with random weights: what a step costs does not depend on what they say.

Knows:   the sizes of Qwen2.5-7B, Qwen3-30B-A3B and Moshi's temporal transformer (their config.json files).
Ignores: checkpoints (weights.py).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .decoder import Decoder, DecoderConfig, DecoderWeights, Experts, LayerWeights, Mlp
from .linear import Linear
from .rope import Rope

SIZES = {
    "qwen2.5-7b": DecoderConfig(3584, 28, 28, 4, 128, 18944, 152064, 1e-6, qkv_bias=True),
    "qwen3-30b-a3b": DecoderConfig(2048, 48, 32, 4, 128, 768, 151936, 1e-6, qk_norm=True, experts=128, top=8),
    "moshi-temporal": DecoderConfig(4096, 32, 32, 32, 128, 11264, 32000, 1e-8),
}
_THETA = {"qwen2.5-7b": 1e6, "qwen3-30b-a3b": 1e6, "moshi-temporal": 1e4}


def random_decoder(
    config: DecoderConfig,
    *,
    theta: float = 1e4,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Decoder:
    """A decoder of `config`: matrices scaled so that hidden states stay near 1, norms near 1."""
    random = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        values = torch.empty(shape, dtype=dtype, device=device)
        return values.normal_(0, 1 / math.sqrt(shape[-1]), generator=random)

    def norm(size: int) -> Tensor:
        values = torch.empty(size, dtype=torch.float32, device=device)
        return (1 + 0.1 * values.normal_(generator=random)).to(dtype)

    def layer() -> LayerWeights:
        hidden, inner, size = config.hidden, config.intermediate, config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * size
        mlp: Mlp | Experts = (
            Experts(
                draw(config.experts, hidden),
                draw(config.experts, 2 * inner, hidden),
                draw(config.experts, hidden, inner),
                config.top,
                config.normed,
            )
            if config.experts
            else Mlp(Linear(draw(2 * inner, hidden)), Linear(draw(hidden, inner)))
        )
        return LayerWeights(
            input_norm=norm(hidden),
            qkv=Linear(draw(rows, hidden), draw(rows) if config.qkv_bias else None),
            query_norm=norm(size) if config.qk_norm else None,
            key_norm=norm(size) if config.qk_norm else None,
            out=Linear(draw(hidden, config.heads * size)),
            post_norm=norm(hidden),
            mlp=mlp,
        )

    embedding = draw(config.vocab, config.hidden) * math.sqrt(config.hidden)
    layers = tuple(layer() for _ in range(config.layers))
    head = embedding if config.tied else draw(config.vocab, config.hidden)
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64, device=device) / config.head_dim
    rope = Rope(torch.pow(theta, -exponent), dtype=dtype)
    return Decoder(config, DecoderWeights(embedding, layers, norm(config.hidden), Linear(head)), rope)


def sized_decoder(name: str, dtype: torch.dtype, device: torch.device | str, seed: int = 0) -> Decoder:
    """A decoder of one of `SIZES`. KeyError for another name."""
    return random_decoder(SIZES[name], theta=_THETA[name], dtype=dtype, device=device, seed=seed)
