"""Tests of what runs on a CUDA device, and what they share: decoders on it with the same weights on the CPU.

Without a device, TRITON_INTERPRET=1 tries the kernels in Triton's interpreter, where Triton is installed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from metronome_cli.engine.decoder import Decoder, DecoderConfig, DecoderWeights, Experts, LayerWeights, Mlp
from metronome_cli.engine.linear import Linear
from metronome_cli.engine.random_weights import random_decoder
from metronome_cli.engine.rope import Rope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def twins(config: DecoderConfig, dtype: torch.dtype = torch.float32) -> tuple[Decoder, Decoder]:
    """The same random decoder on the device, in `dtype`, and on the CPU, in float64."""
    fast = random_decoder(config, dtype=dtype, device="cuda")
    weights = _moved(fast.weights)
    rope = Rope(fast.rope._inverse_F.cpu(), dtype=torch.float64)
    return fast, Decoder(config, weights, rope)


def _moved(weights: DecoderWeights) -> DecoderWeights:
    return DecoderWeights(
        _there(weights.embedding),
        tuple(_layer(layer) for layer in weights.layers),
        _there(weights.norm),
        _linear(weights.head),
    )


def _layer(layer: LayerWeights) -> LayerWeights:
    mlp: Mlp | Experts
    if isinstance(layer.mlp, Experts):
        there = {name: _there(getattr(layer.mlp, name)) for name in ("router", "gate_up", "down")}
        mlp = Experts(**there, top=layer.mlp.top, normed=layer.mlp.normed)
    else:
        mlp = Mlp(_linear(layer.mlp.gate_up), _linear(layer.mlp.down))
    return LayerWeights(
        _there(layer.input_norm),
        _linear(layer.qkv),
        None if layer.query_norm is None else _there(layer.query_norm),
        None if layer.key_norm is None else _there(layer.key_norm),
        _linear(layer.out),
        _there(layer.post_norm),
        mlp,
    )


def _linear(linear: Linear) -> Linear:
    return Linear(_there(linear._weight), None if linear._bias is None else _there(linear._bias))


def _there(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def off(got: Tensor, want: Tensor) -> float:
    """||got - want|| / ||want||; NaN is as wrong as can be."""
    got, want = got.double().cpu(), want.double().cpu()
    if not got.numel():
        return 0.0
    share = float((got - want).norm() / want.norm())
    return float("inf") if math.isnan(share) else share
