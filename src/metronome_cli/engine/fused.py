"""The decoder's fast twin on CUDA: the same layers in as few passes over memory as they need.

Knows:   which kernel does what between the matrix products.
Ignores: sessions, graphs and where the integers come from (layout.py, cuda.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .decoder import Decoder, Experts
from .kernels.attention import attend
from .kernels.experts import experts
from .kernels.pointwise import add_norm, rotate_write, silu_mul
from .kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's integers on the device. Lengths are those of a graph: rows past the step's own are padding."""

    place_T: Tensor
    sink_place_T: Tensor | None
    rotary_TA: Tensor
    at_sinks_TA: Tensor
    tasks: Tensor
    table: Tensor
    tokens_a_task: int
    splits: int


def forward(decoder: Decoder, hidden_TE: Tensor, batch: Batch, pool: KvPool) -> Tensor:
    """Final hidden states [T, E], normed; `hidden_TE`, embeddings, is overwritten."""
    config, weights = decoder.config, decoder.weights
    turns = (*_turn(decoder, batch.rotary_TA), *_turn(decoder, batch.at_sinks_TA))
    added: Tensor | None = None
    for number, layer in enumerate(weights.layers):
        memory = pool.layer(number)
        qkv_TX = layer.qkv(add_norm(hidden_TE, added, layer.input_norm, config.norm_eps))
        norms = None
        if layer.query_norm is not None and layer.key_norm is not None:
            norms = layer.query_norm, layer.key_norm
        own_TQD, to_sinks_TQD = rotate_write(
            qkv_TX, norms, turns, (batch.place_T, batch.sink_place_T), memory, config.heads, config.norm_eps
        )
        mixed_TQD = attend(
            own_TQD, to_sinks_TQD, memory, batch.tasks, batch.table,
            tokens=batch.tokens_a_task, splits=batch.splits,
        )  # fmt: skip
        added = layer.out(mixed_TQD.flatten(1))
        normed_TE = add_norm(hidden_TE, added, layer.post_norm, config.norm_eps)
        if isinstance(layer.mlp, Experts):
            mlp = layer.mlp
            added = experts(normed_TE, mlp.router, mlp.gate_up, mlp.down, mlp.top, mlp.normed)
        else:
            added = layer.mlp.down(silu_mul(layer.mlp.gate_up(normed_TE)))
    return add_norm(hidden_TE, added, weights.norm, config.norm_eps)


def _turn(decoder: Decoder, positions_TA: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, F] in float32, of angles in float64."""
    angle_TF = decoder.rope.angles(positions_TA)
    return angle_TF.cos().float(), angle_TF.sin().float()
