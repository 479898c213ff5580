"""One transformer decoder for many checkpoints: Llama, SmolLM2, Qwen2, Qwen3.

Knows:   RMSNorm, RoPE, grouped-query attention with optional QKV bias and QK norm, SwiGLU.
Ignores: sessions and policies: what to attend to comes in a `Layout`, weights come from weights.py.

Shape letters: T tokens of all rows, E hidden size, Q query heads, H KV heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Layout, attend
from .kv_pool import KvPool
from .linear import Linear
from .rope import Rope, Turns

Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Layout], Tensor]  # as attention.attend


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What a checkpoint's config.json says about its decoder."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, projections fused by rows: q, k, v and gate, up."""

    input_norm: Tensor  # [E]
    qkv: Linear  # [(Q + 2H) D, E]
    query_norm: Tensor | None  # [D]
    key_norm: Tensor | None
    out: Linear  # [E, Q D]
    post_norm: Tensor  # [E]
    gate_up: Linear  # [2 I, E]
    down: Linear  # [E, I]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    embedding: Tensor  # [V, E]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [E]
    head: Linear  # [V, E]; over the embedding when tied


class Decoder:
    """Turns a step's embeddings into hidden states, writing keys and values into the pool."""

    def __init__(self, config: DecoderConfig, weights: DecoderWeights, rope: Rope) -> None:
        self.config = config
        self.rope = rope
        self.attend: Attend = attend  # a probe may put one here that also looks on
        self._weights = weights

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.embedding.dtype

    def embed(self, ids_T: Tensor) -> Tensor:
        """Embeddings [T, E] of token ids [T]."""
        return F.embedding(ids_T, self._weights.embedding)

    def nothing(self) -> Tensor:
        """Hidden states of no tokens, [0, E]."""
        return self._weights.norm.new_empty((0, self.config.hidden))

    def forward(self, hidden_TE: Tensor, turns: Turns, layout: Layout, pool: KvPool) -> Tensor:
        """Final hidden states [T, E], normed, of embeddings [T, E]."""
        for number, layer in enumerate(self._weights.layers):
            normed_TE = self._norm(hidden_TE, layer.input_norm)
            hidden_TE = hidden_TE + self._attention(normed_TE, number, turns, layout, pool)
            normed_TE = self._norm(hidden_TE, layer.post_norm)
            gate, up = layer.gate_up(normed_TE).chunk(2, dim=-1)
            hidden_TE = hidden_TE + layer.down(F.silu(gate) * up)
        return self._norm(hidden_TE, self._weights.norm)

    def logits(self, hidden_TE: Tensor) -> Tensor:
        """Logits [T, V] of final hidden states."""
        return self._weights.head(hidden_TE)

    def _attention(
        self, hidden_TE: Tensor, number: int, turns: Turns, layout: Layout, pool: KvPool
    ) -> Tensor:
        layer, keys, values = self._weights.layers[number], pool.keys[number], pool.values[number]
        config = self.config
        heads_TXD = layer.qkv(hidden_TE).unflatten(-1, (-1, config.head_dim))
        query_TQD, key_THD, value_THD = heads_TXD.split(
            (config.heads, config.kv_heads, config.kv_heads), dim=1
        )
        if layer.query_norm is not None and layer.key_norm is not None:
            query_TQD = self._norm(query_TQD, layer.query_norm)
            key_THD = self._norm(key_THD, layer.key_norm)
        keys.flatten(1, 2)[:, layout.place_T] = turns.own(key_THD).transpose(0, 1).to(keys.dtype)
        values.flatten(1, 2)[:, layout.place_T] = value_THD.transpose(0, 1).to(values.dtype)
        mixed_TQD = self.attend(turns.own(query_TQD), turns.to_sinks(query_TQD), keys, values, layout)
        return layer.out(mixed_TQD.flatten(1))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)
