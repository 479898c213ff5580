"""Checkpoints into decoders: a folder with config.json and safetensors, as Hugging Face writes them.

Knows:   key names of Llama, Qwen2, Qwen3, Qwen3-MoE and the text parts of Qwen-Omni, fusing, RoPE variants.
Ignores: where a folder came from (models/assets.py), files and shards (checkpoint.py), what runs a decoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from ..errors import AssetError
from .checkpoint import Checkpoint, Part
from .config_file import check_counts, check_divides, read_config, readable
from .decoder import Decoder, DecoderConfig, DecoderWeights, Experts, LayerWeights, Mlp
from .linear import Linear
from .rope import Rope, mrope_axes

_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")  # whole checkpoints
_BIASED = ("qwen2", "qwen2_5_omni_text")
_NORMED = ("qwen3", "qwen3_moe", "qwen3_omni_moe_text")
_MIXED = ("qwen3_moe", "qwen3_omni_moe_text")
# The sizes of a rotary position's three parts where config.json does not say.
_MROPE = {"qwen2_5_omni_text": (16, 24, 24), "qwen3_omni_moe_text": (24, 20, 20)}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

_COUNTS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")

LayOut = Callable[..., Linear]  # of a weight and perhaps a bias


def load_decoder(
    folder: Path,
    dtype: torch.dtype | str = torch.float32,
    products: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Decoder:
    """The decoder of a checkpoint folder. AssetError when it is of another architecture or incomplete.

    `products`: what its matrices are multiplied in (linear.py); by default `dtype`. `device`: where it lives;
    by default torch's.
    """
    dtype = dtype_of(dtype) if isinstance(dtype, str) else dtype
    source = _read_config(folder)
    checkpoint = Checkpoint(folder, dtype, device)
    decoder = build_decoder(source, checkpoint, products=products)
    checkpoint.check_nothing_left(ignore=["lm_head.weight"] if decoder.config.tied else [])
    return decoder


def build_decoder(
    source: PreTrainedConfig, checkpoint: Checkpoint, prefix: str = "", products: torch.dtype | None = None
) -> Decoder:
    """The decoder that `source` describes, from the keys of `checkpoint` that begin with `prefix`.

    AssetError naming the field or key that does not fit. Other parts' keys stay in the checkpoint.
    """
    config, part = decoder_config(source, checkpoint.folder), Part(checkpoint, prefix)
    if source.model_type in _MROPE and part.has("lm_head.weight"):
        config = replace(config, tied=False)  # their text configs say so or not, whatever is saved
    weights = _fuse(config, part, partial(Linear, products=products))
    rope = make_rope(source, checkpoint.folder, checkpoint.dtype).to(checkpoint.device)
    return Decoder(config, weights, rope)


def dtype_of(name: str) -> torch.dtype:
    """A profile's `model.dtype`."""
    return _DTYPES[name]


def read_decoder_config(folder: Path) -> DecoderConfig:
    """What a checkpoint folder's config.json says, without its weights. AssetError as in `load_decoder`."""
    return decoder_config(_read_config(folder), folder)


def make_rope(source: PreTrainedConfig, folder: Path, dtype: torch.dtype) -> Rope:
    """Rotary frequencies as config.json asks: default, linear or llama3 scaling."""
    with readable(folder, "rope_parameters in its config.json"):
        return _rope(source, folder, dtype)


def _rope(source: PreTrainedConfig, folder: Path, dtype: torch.dtype) -> Rope:
    parameters: dict[str, Any] = dict(source.rope_parameters)
    size = getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads
    axis = _axes(source, parameters, folder, size // 2)
    exponent = torch.arange(0, size, 2, dtype=torch.float64) / size
    inverse = torch.pow(float(parameters["rope_theta"]), -exponent)
    match parameters.get("rope_type", "default"):
        case "default":
            return Rope(inverse, axis, dtype)
        case "linear":
            return Rope(inverse / parameters["factor"], axis, dtype)
        case "llama3":
            return Rope(_llama3(inverse, parameters), axis, dtype)
        case other:
            raise AssetError(f"{folder}: rope_type {other!r} is not supported; use default, linear or llama3")


def _axes(
    source: PreTrainedConfig, parameters: dict[str, Any], folder: Path, frequencies: int
) -> Tensor | None:
    """Which axis each of the frequencies follows; None for text alone."""
    if source.model_type not in _MROPE:
        return None
    section = parameters.get("mrope_section") or _MROPE[source.model_type]
    if sum(section) != frequencies:
        found = f"mrope_section = {section!r}, and a head has {frequencies} frequencies"
        raise AssetError(f"{folder}: config.json says {found}: they are to add up to that")
    return mrope_axes(section, interleaved=source.model_type == "qwen3_omni_moe_text")


def _llama3(inverse: Tensor, parameters: dict[str, Any]) -> Tensor:
    """Llama 3.1's scaling: slow frequencies divided by `factor`, fast ones kept, a ramp between."""
    turns = inverse * (int(parameters["original_max_position_embeddings"]) / (2 * math.pi))
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return inverse * (kept + (1 - kept) / float(parameters["factor"]))


def _read_config(folder: Path) -> PreTrainedConfig:
    config = read_config(folder)
    if config.model_type not in _FAMILIES:
        raise AssetError(
            f"{folder}: model_type {config.model_type!r} is not supported; use one of {', '.join(_FAMILIES)}"
        )
    check_plain(config, folder)
    return config


def check_plain(config: PreTrainedConfig, folder: Path) -> None:
    """AssetError when a checkpoint is quantised, or has a window of its own."""
    if getattr(config, "quantization_config", None) is not None:
        raise AssetError(
            f"{folder}: quantised checkpoints are not read; use one in float32, bfloat16 or float16"
        )
    if getattr(config, "use_sliding_window", False):
        raise AssetError(
            f"{folder}: the model has a sliding window of its own; set use_sliding_window to false"
        )


def decoder_config(source: PreTrainedConfig, folder: Path) -> DecoderConfig:
    """What a (text) config says about a decoder. AssetError naming the field that we do not support."""
    if source.hidden_act != "silu" or getattr(source, "mlp_bias", False):
        raise AssetError(f"{folder}: only a SwiGLU without biases is supported, not {source.hidden_act!r}")
    if source.model_type not in _BIASED and getattr(source, "attention_bias", False):
        raise AssetError(f"{folder}: attention_bias with model_type {source.model_type!r} is not supported")
    experts = source.num_experts if source.model_type in _MIXED else 0
    if experts and (source.decoder_sparse_step != 1 or source.mlp_only_layers):
        raise AssetError(f"{folder}: only a mixture of experts in every layer is supported")
    inner = ("moe_intermediate_size", "num_experts_per_tok") if experts else ("intermediate_size",)
    check_counts(folder, source, (*_COUNTS, *inner))
    if getattr(source, "head_dim", None) is None:
        check_divides(folder, source, "hidden_size", "num_attention_heads")
    else:
        check_counts(folder, source, ("head_dim",))
    check_divides(folder, source, "num_attention_heads", "num_key_value_heads")
    return DecoderConfig(
        hidden=source.hidden_size,
        layers=source.num_hidden_layers,
        heads=source.num_attention_heads,
        kv_heads=source.num_key_value_heads,
        head_dim=getattr(source, "head_dim", None) or source.hidden_size // source.num_attention_heads,
        intermediate=source.moe_intermediate_size if experts else source.intermediate_size,
        vocab=source.vocab_size,
        norm_eps=source.rms_norm_eps,
        qkv_bias=source.model_type in _BIASED,
        qk_norm=source.model_type in _NORMED,
        tied=getattr(source, "tie_word_embeddings", False),
        experts=experts,
        top=source.num_experts_per_tok if experts else 0,
        normed=source.norm_topk_prob if experts else True,
    )


def _fuse(config: DecoderConfig, part: Part, lay_out: LayOut) -> DecoderWeights:
    embedding = part.take("model.embed_tokens.weight", (config.vocab, config.hidden))
    layers = tuple(_fuse_layer(config, part, lay_out, f"model.layers.{n}.") for n in range(config.layers))
    norm = part.take("model.norm.weight", (config.hidden,))
    head = embedding if config.tied else part.take("lm_head.weight", (config.vocab, config.hidden))
    return DecoderWeights(embedding, layers, norm, lay_out(head))


def _fuse_layer(config: DecoderConfig, part: Part, lay_out: LayOut, prefix: str) -> LayerWeights:
    hidden = config.hidden
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    rows = {name: count * config.head_dim for name, count in heads.items()}
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    biases = (
        [part.take(f"{attention}{n}_proj.bias", (r,)) for n, r in rows.items()] if config.qkv_bias else []
    )
    return LayerWeights(
        input_norm=part.take(prefix + "input_layernorm.weight", (hidden,)),
        qkv=lay_out(
            torch.cat([part.take(f"{attention}{n}_proj.weight", (r, hidden)) for n, r in rows.items()]),
            torch.cat(biases) if biases else None,
        ),
        query_norm=part.take(attention + "q_norm.weight", (config.head_dim,)) if config.qk_norm else None,
        key_norm=part.take(attention + "k_norm.weight", (config.head_dim,)) if config.qk_norm else None,
        out=lay_out(part.take(attention + "o_proj.weight", (hidden, rows["q"]))),
        post_norm=part.take(prefix + "post_attention_layernorm.weight", (hidden,)),
        mlp=_fuse_experts(config, part, mlp) if config.experts else _fuse_mlp(config, part, lay_out, mlp),
    )


def _fuse_mlp(config: DecoderConfig, part: Part, lay_out: LayOut, prefix: str) -> Mlp:
    hidden, inner = config.hidden, config.intermediate
    return Mlp(
        lay_out(torch.cat([part.take(f"{prefix}{n}_proj.weight", (inner, hidden)) for n in ("gate", "up")])),
        lay_out(part.take(prefix + "down_proj.weight", (hidden, inner))),
    )


def _fuse_experts(config: DecoderConfig, part: Part, prefix: str) -> Experts:
    """Stacked, as transformers holds them, or expert by expert, as it saves them and the hub has them."""
    hidden, inner, count = config.hidden, config.intermediate, config.experts
    router = part.take(prefix + "gate.weight", (count, hidden))
    prefix += "experts."
    if part.has(prefix + "gate_up_proj"):
        gate_up = part.take(prefix + "gate_up_proj", (count, 2 * inner, hidden))
        down = part.take(prefix + "down_proj", (count, hidden, inner))
    else:
        gate_up, down = router.new_empty(count, 2 * inner, hidden), router.new_empty(count, hidden, inner)
        for number in range(count):
            gate, up = (
                part.take(f"{prefix}{number}.{n}_proj.weight", (inner, hidden)) for n in ("gate", "up")
            )
            gate_up[number, :inner], gate_up[number, inner:] = gate, up
            down[number] = part.take(f"{prefix}{number}.down_proj.weight", (hidden, inner))
    return Experts(router, gate_up, down, config.top, config.normed)
