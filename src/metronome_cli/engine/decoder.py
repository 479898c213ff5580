"""One transformer decoder for many checkpoints: Llama, SmolLM2, Qwen2, Qwen3, Qwen3-MoE.

Knows:   RMSNorm, RoPE, grouped-query attention with optional QKV bias and QK norm, SwiGLU, experts.
Ignores: sessions and policies: what to attend to comes in a `Layout`, weights come from weights.py.

Shape letters: T tokens of all rows, E hidden size, Q query heads, H KV heads, D head size, I inner size,
X experts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    experts: int = 0  # of every layer; 0: none, but one SwiGLU
    top: int = 0  # experts that a token goes to
    normed: bool = True  # whether their shares sum to 1


@dataclass(frozen=True, slots=True)
class Mlp:
    """One SwiGLU for all tokens."""

    gate_up: Linear  # [2 I, E]
    down: Linear  # [E, I]

    def __call__(self, x_TE: Tensor) -> Tensor:
        return self.down(swiglu(self.gate_up(x_TE)))


@dataclass(frozen=True, slots=True)
class Experts:
    """SwiGLUs of which each token goes to `top`, by a router's softmax."""

    router: Tensor  # [X, E]
    gate_up: Tensor  # [X, 2 I, E]
    down: Tensor  # [X, E, I]
    top: int
    normed: bool

    def __call__(self, x_TE: Tensor) -> Tensor:
        """[T, E]. Expert by expert: the plain twin of kernels/experts.py."""
        share_TX = F.linear(x_TE, self.router).float().softmax(-1)
        share_TK, chosen_TK = share_TX.topk(self.top, dim=-1)
        if self.normed:
            share_TK = share_TK / share_TK.sum(-1, keepdim=True)
        out_TE = torch.zeros_like(x_TE)
        for expert in chosen_TK.unique().tolist():
            token, choice = torch.where(chosen_TK == expert)
            answer = F.linear(swiglu(F.linear(x_TE[token], self.gate_up[expert])), self.down[expert])
            out_TE.index_add_(0, token, answer * share_TK[token, choice].unsqueeze(1).to(answer.dtype))
        return out_TE


def swiglu(gate_up_TI: Tensor) -> Tensor:
    """silu(gate) * up, [T, I], of the two side by side, [T, 2I]."""
    gate, up = gate_up_TI.chunk(2, dim=-1)
    return F.silu(gate) * up


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer, its projections fused by rows: q, k, v."""

    input_norm: Tensor  # [E]
    qkv: Linear  # [(Q + 2H) D, E]
    query_norm: Tensor | None  # [D]
    key_norm: Tensor | None
    out: Linear  # [E, Q D]
    post_norm: Tensor  # [E]
    mlp: Mlp | Experts


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
        self.weights = weights

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.weights.embedding.device

    def embed(self, ids_T: Tensor) -> Tensor:
        """Embeddings [T, E] of token ids [T]."""
        return F.embedding(ids_T, self.weights.embedding)

    def embed_ids(self, ids: Sequence[int]) -> Tensor:
        """The same of ids on the host, of none too."""
        return self.embed(torch.tensor(ids, dtype=torch.long, device=self.device))

    def nothing(self) -> Tensor:
        """Hidden states of no tokens, [0, E]."""
        return self.weights.norm.new_empty((0, self.config.hidden))

    def forward(self, hidden_TE: Tensor, turns: Turns, layout: Layout, pool: KvPool) -> Tensor:
        """Final hidden states [T, E], normed, of embeddings [T, E]."""
        for number, layer in enumerate(self.weights.layers):
            normed_TE = self._norm(hidden_TE, layer.input_norm)
            hidden_TE = hidden_TE + self._attention(normed_TE, number, turns, layout, pool)
            normed_TE = self._norm(hidden_TE, layer.post_norm)
            hidden_TE = hidden_TE + layer.mlp(normed_TE)
        return self._norm(hidden_TE, self.weights.norm)

    def logits(self, hidden_TE: Tensor) -> Tensor:
        """Logits [T, V] of final hidden states."""
        return self.weights.head(hidden_TE)

    def logits_into(self, hidden_TE: Tensor, out_TV: Tensor) -> None:
        """The same, written to `out_TV`."""
        self.weights.head.into(hidden_TE, out_TV)

    def _attention(
        self, hidden_TE: Tensor, number: int, turns: Turns, layout: Layout, pool: KvPool
    ) -> Tensor:
        layer, keys, values = self.weights.layers[number], pool.keys[number], pool.values[number]
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
