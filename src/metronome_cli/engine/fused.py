"""The decoder's fast twin on CUDA: the same layers in as few passes over memory as they need.

Knows:   which kernel does what between the matrix products.
Ignores: sessions, graphs and where the integers come from (layout.py, cuda.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .decoder import Decoder, Experts, LayerWeights, Mlp
from .kernels.attention import attend
from .kernels.experts import experts
from .kernels.one_row import add_experts, product
from .kernels.pointwise import add_norm, rotate_write, silu_mul
from .kv_pool import KvPool, LayerMemory


@dataclass(frozen=True, slots=True)
class Batch:
    """A step's integers on the device. Lengths are those of a graph: rows past the step's own are padding."""

    place_T: Tensor
    sink_place_T: Tensor | None
    rotary_TA: Tensor
    at_sinks_TA: Tensor
    tasks: Tensor
    table: Tensor
    arrived: Tensor
    tokens: Tensor  # [1]: how many are no padding
    tokens_a_task: int
    splits: int


def forward(decoder: Decoder, hidden_TE: Tensor, batch: Batch, pool: KvPool) -> Tensor:
    """Final hidden states [T, E], normed; `hidden_TE`, embeddings, is overwritten."""
    weights, eps = decoder.weights, decoder.config.norm_eps
    turns = (*_turn(decoder, batch.rotary_TA), *_turn(decoder, batch.at_sinks_TA))
    added: Tensor | None = None  # what the residual still lacks
    alone = len(hidden_TE) == 1
    for number, layer in enumerate(weights.layers):
        if alone:
            qkv_TX = product(hidden_TE, layer.qkv.weight, bias=layer.qkv.bias, norm=(layer.input_norm, eps))
        else:
            qkv_TX = layer.qkv(add_norm(hidden_TE, added, layer.input_norm, eps))
        mixed_TX = _attention(decoder, layer, qkv_TX, turns, batch, pool.layer(number))
        if alone:
            product(mixed_TX, layer.out.weight, to=hidden_TE)
            _add_mlp(hidden_TE, layer, eps)
        else:
            normed_TE = add_norm(hidden_TE, layer.out(mixed_TX), layer.post_norm, eps)
            added = _mlp(normed_TE, layer.mlp, batch.tokens)
    return add_norm(hidden_TE, added, weights.norm, eps)


def _attention(
    decoder: Decoder,
    layer: LayerWeights,
    qkv_TX: Tensor,
    turns: tuple[Tensor, Tensor, Tensor, Tensor],
    batch: Batch,
    memory: LayerMemory,
) -> Tensor:
    """What queries see, [T, Q D]; keys and values go to their places first."""
    config, norms = decoder.config, None
    if layer.query_norm is not None and layer.key_norm is not None:
        norms = layer.query_norm, layer.key_norm
    own_TQD, to_sinks_TQD = rotate_write(
        qkv_TX, norms, turns, (batch.place_T, batch.sink_place_T), memory, config.heads, config.norm_eps
    )
    mixed_TQD = attend(
        own_TQD, to_sinks_TQD, memory, batch.tasks, batch.table, batch.arrived,
        tokens=batch.tokens_a_task, splits=batch.splits,
    )  # fmt: skip
    return mixed_TQD.flatten(1)


def _mlp(normed_TE: Tensor, mlp: Mlp | Experts, tokens: Tensor) -> Tensor:
    """[T, E], or of experts parts [T, top, E] that are still to be added up."""
    if isinstance(mlp, Experts):
        return experts(normed_TE, mlp, tokens)
    return mlp.down(silu_mul(mlp.gate_up(normed_TE)))


def _add_mlp(hidden_TE: Tensor, layer: LayerWeights, eps: float) -> None:
    """The same of one token, added to the residual at once."""
    norm = layer.post_norm, eps
    if isinstance(layer.mlp, Experts):
        add_experts(hidden_TE, norm, layer.mlp)
    else:
        gated_TI = product(hidden_TE, layer.mlp.gate_up.weight, norm=norm, gated=True)
        product(gated_TI, layer.mlp.down.weight, to=hidden_TE)


def _turn(decoder: Decoder, positions_TA: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [T, F] in float32, of angles in float64."""
    angle_TF = decoder.rope.angles(positions_TA)
    return angle_TF.cos().float(), angle_TF.sin().float()
