"""CTranslate2: Whisper's weights out of a `model.bin`, without the library that wrote it.

Knows:   the file's records (binary version 6, little-endian), and which of them is which Whisper weight.
Ignores: torch, where the file came from. Arrays are numpy, in the file's own number type.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

_DTYPES = ("<f4", "<i1", "<i2", "<i4", "<f2")
_LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/(.+)/(\w+)")
_PARTS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}

_OUTSIDE_LAYERS = {
    "encoder/position_encodings/encodings": "encoder.positional_embedding",
    "encoder/layer_norm/gamma": "encoder.ln_post.weight",
    "encoder/layer_norm/beta": "encoder.ln_post.bias",
    "encoder/conv1/weight": "encoder.conv1.weight",
    "encoder/conv1/bias": "encoder.conv1.bias",
    "encoder/conv2/weight": "encoder.conv2.weight",
    "encoder/conv2/bias": "encoder.conv2.bias",
    "decoder/position_encodings/encodings": "decoder.positional_embedding",
    "decoder/embeddings/weight": "decoder.token_embedding.weight",
    "decoder/layer_norm/gamma": "decoder.ln.weight",
    "decoder/layer_norm/beta": "decoder.ln.bias",
}

# Modules whose rows lie stacked in one array, in this order.
_INSIDE_LAYERS = {
    "self_attention/layer_norm": ("attn_ln",),
    "self_attention/linear_0": ("attn.query", "attn.key", "attn.value"),
    "self_attention/linear_1": ("attn.out",),
    "attention/layer_norm": ("cross_attn_ln",),
    "attention/linear_0": ("cross_attn.query",),
    "attention/linear_1": ("cross_attn.key", "cross_attn.value"),
    "attention/linear_2": ("cross_attn.out",),
    "ffn/layer_norm": ("mlp_ln",),
    "ffn/linear_0": ("mlp.0",),
    "ffn/linear_1": ("mlp.2",),
}


def read(file: BinaryIO) -> dict[str, Array]:
    """Every variable of the file by name. ValueError when it is no binary version 6 Whisper file."""
    (version,) = _unpack(file, "I")
    if version != 6 or _string(file) != "WhisperSpec":
        raise ValueError(f"not a CTranslate2 Whisper file of binary version 6: version {version}")
    _revision, count = _unpack(file, "II")
    return dict(_variable(file) for _ in range(count))


def whisper_weights(arrays: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """The arrays under openai-whisper's names, unstacked. Settings that are no weights are left out."""
    for name, array in arrays.items():
        if name in _OUTSIDE_LAYERS:
            yield _OUTSIDE_LAYERS[name], array
        elif (found := _LAYER.fullmatch(name)) is not None:
            side, layer, stack, part = found.groups()
            modules = _INSIDE_LAYERS[stack]
            for module, rows in zip(modules, np.split(array, len(modules)), strict=True):
                # Whisper's keys have no bias; the file holds zeros there.
                if not (module.endswith(".key") and part == "bias"):
                    yield f"{side}.blocks.{layer}.{module}.{_PARTS[part]}", rows


def whisper_dims(arrays: dict[str, Array]) -> dict[str, int]:
    """The fields of openai-whisper's `ModelDimensions`."""
    audio_ctx, audio_state = arrays["encoder/position_encodings/encodings"].shape
    text_ctx, text_state = arrays["decoder/position_encodings/encodings"].shape
    return {
        "n_mels": arrays["encoder/conv1/weight"].shape[1],
        "n_audio_ctx": audio_ctx,
        "n_audio_state": audio_state,
        "n_audio_head": int(arrays["encoder/num_heads"].item()),
        "n_audio_layer": _layers(arrays, "encoder"),
        "n_vocab": arrays["decoder/embeddings/weight"].shape[0],
        "n_text_ctx": text_ctx,
        "n_text_state": text_state,
        "n_text_head": int(arrays["decoder/num_heads"].item()),
        "n_text_layer": _layers(arrays, "decoder"),
    }


def _layers(arrays: dict[str, Array], side: str) -> int:
    return len({found[2] for name in arrays if (found := _LAYER.fullmatch(name)) and found[1] == side})


def _variable(file: BinaryIO) -> tuple[str, Array]:
    name = _string(file)
    (rank,) = _unpack(file, "B")
    shape = _unpack(file, f"{rank}I")
    dtype, size = _unpack(file, "BI")
    return name, np.frombuffer(file.read(size), dtype=_DTYPES[dtype]).reshape(shape)


def _string(file: BinaryIO) -> str:
    (length,) = _unpack(file, "H")
    return file.read(length).rstrip(b"\0").decode()


def _unpack(file: BinaryIO, form: str) -> tuple[int, ...]:
    size = struct.calcsize("<" + form)
    return struct.unpack("<" + form, file.read(size))
