"""Moshi's config.json: what of it is read, and what is refused.

Knows:   the fields of MoshiConfig, its codec's and its depth transformer's, and the values that are read.
Ignores: weights (moshi_weights.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from transformers import PreTrainedConfig

from ..engine import config_file
from ..engine.decoder import DecoderConfig
from ..errors import AssetError

RATE = 24_000  # samples per second, in and out
FRAMES = 12.5  # a second, each a code of every book


def read_config(folder: Path) -> PreTrainedConfig:
    """config.json, once it is sure that the model it describes is read here. AssetError otherwise."""
    config = config_file.read_config(folder)
    if config.model_type != "moshi":
        raise AssetError(
            f"{folder}: model_type {config.model_type!r} is not supported by model.kind moshi; "
            "use a checkpoint of MoshiForConditionalGeneration"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise AssetError(
            f"{folder}: quantised checkpoints are not read; use one in float32, bfloat16 or float16"
        )
    for part, some, fields in _counted(config):
        config_file.check_counts(folder, some, fields, part)
        config_file.check_divides(folder, some, "hidden_size", "num_attention_heads", part)
    for field, found, read in _read_alone(config):
        if found != read:
            raise AssetError(f"{folder}: {field} = {found!r} is not supported, only {read!r}")
    return config


def _counted(config: PreTrainedConfig) -> Iterator[tuple[str, PreTrainedConfig, tuple[str, ...]]]:
    """(part, its config, what of it counts something)."""
    every = (
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
        "sliding_window",
    )
    voice = ("num_codebooks", "audio_vocab_size", "vocab_size", "ffn_dim")
    codec = (
        *("intermediate_size", "num_filters", "kernel_size", "last_kernel_size", "residual_kernel_size"),
        *("upsampling_ratios", "num_residual_layers", "dilation_growth_rate", "compress", "upsample_groups"),
        *("codebook_size", "codebook_dim", "num_quantizers", "num_semantic_quantizers"),
    )
    yield "", config, every + voice
    yield "depth_decoder_config", config.depth_decoder_config, (*every, *voice, "input_size")
    yield "audio_encoder_config", config.audio_encoder_config, every + codec


def _read_alone(config: PreTrainedConfig) -> Iterator[tuple[str, object, object]]:
    """(field, what it holds, the one value that is read)."""
    yield "hidden_act", config.hidden_act, "silu"
    depth, codec = config.depth_decoder_config, config.audio_encoder_config
    yield "depth_decoder_config.hidden_act", depth.hidden_act, "silu"
    yield "depth_decoder_config.num_key_value_heads", depth.num_key_value_heads, depth.num_attention_heads
    yield "depth_decoder_config.num_codebooks", depth.num_codebooks, config.num_codebooks
    yield "depth_decoder_config.head_dim", depth.head_dim, depth.hidden_size // depth.num_attention_heads
    only = {
        "model_type": "mimi",
        "sampling_rate": RATE,
        "frame_rate": FRAMES,
        "audio_channels": 1,
        "use_causal_conv": True,
        "trim_right_ratio": 1.0,
        "pad_mode": "constant",
        "use_conv_shortcut": False,
        "hidden_act": "gelu",
        "attention_bias": False,
        "num_key_value_heads": codec.num_attention_heads,
        "codebook_dim": codec.vector_quantization_hidden_dimension,
        "codebook_size": config.audio_vocab_size,
    }
    for name, read in only.items():
        yield f"audio_encoder_config.{name}", getattr(codec, name), read
    has_projection = codec.vector_quantization_hidden_dimension != codec.hidden_size
    yield "audio_encoder_config: a projection before the codebooks", has_projection, True


def sizes_of(config: PreTrainedConfig) -> DecoderConfig:
    """The temporal transformer's sizes."""
    return DecoderConfig(
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        intermediate=config.ffn_dim // 2,
        vocab=config.vocab_size,
        norm_eps=config.rms_norm_eps,
    )


def codec_bytes(config: PreTrainedConfig) -> int:
    """About what one call's codec remembers: keys and values of two transformers' windows, in float32."""
    codec = config.audio_encoder_config
    size: int = 2 * 2 * 4 * codec.num_hidden_layers * (codec.sliding_window + 8) * codec.hidden_size
    return size


def row_bytes(config: PreTrainedConfig) -> int:
    """About what one call takes in the buffers of a frame: sound in, twice, and out, states, codes."""
    samples, books = round(RATE / FRAMES), config.num_codebooks
    size: int = samples * (4 + 4 + 2) + 2 * 4 * config.hidden_size + 8 * 6 * (books + 1)
    return size
