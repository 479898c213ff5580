"""An audio tower of a real model's size with random weights: what ears cost in a frame.

Knows:   the shape of Qwen2.5-Omni's and Qwen3-Omni's encoders: Whisper large's layers over frames of 10 ms.
Ignores: what is heard. Convolutions at its beginning are left out: they are 0.3 % of its operations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LAYERS, WIDTH, HEADS, INNER = 32, 1280, 20, 5120
TOWER_BYTES = 8 * 2**30  # that a frame of some hundred calls needs between two layers
POSITIONS_PER_TOKEN = 2  # pooled at the end: 50 positions a second become 25 tokens


class Tower:
    """Layers in bfloat16 on the device, and a projection to the decoder's hidden size."""

    def __init__(self, hidden: int) -> None:
        def draw(*shape: int) -> Tensor:
            values = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
            return values.normal_(0, shape[-1] ** -0.5)

        self._layers = [
            (draw(3 * WIDTH, WIDTH), draw(WIDTH, WIDTH), draw(INNER, WIDTH), draw(WIDTH, INNER))
            for _ in range(LAYERS)
        ]
        self._out = draw(hidden, WIDTH)

    @torch.inference_mode()
    def hear(self, calls: int, tokens: int) -> Tensor:
        """Embeddings [calls x tokens, hidden] of one frame of every call, all frames in one batch."""
        places = tokens * POSITIONS_PER_TOKEN
        x = torch.randn((calls, places, WIDTH), dtype=torch.bfloat16, device="cuda")
        for qkv, out, up, down in self._layers:
            normed = F.layer_norm(x, (WIDTH,))
            query, key, value = (
                part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for part in F.linear(normed, qkv).chunk(3, dim=-1)
            )
            mixed = F.scaled_dot_product_attention(query, key, value)
            x = x + F.linear(mixed.transpose(1, 2).flatten(2), out)
            x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (WIDTH,)), up)), down)
        pooled = x.unflatten(1, (tokens, POSITIONS_PER_TOKEN)).mean(2)
        return F.linear(pooled.flatten(0, 1), self._out)
