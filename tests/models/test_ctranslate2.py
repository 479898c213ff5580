"""Whisper's arrays come out of a CTranslate2 file as they went in, and stacks come apart in order."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.models.ctranslate2 import read, whisper_weights

_KINDS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}


def _text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def _file(
    arrays: dict[str, NDArray[np.generic]], *, version: int = 6, kind: str = "WhisperSpec"
) -> io.BytesIO:
    """The format as its documentation lays it down: header, one record a variable, no aliases."""
    parts = [struct.pack("<I", version), _text(kind), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        parts += [_text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", _KINDS[array.dtype.name], array.nbytes), array.tobytes()]
    return io.BytesIO(b"".join([*parts, struct.pack("<I", 0)]))


def test_arrays_come_out_as_they_went_in() -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "weight": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
        "num_heads": np.array(6, dtype=np.int16),
        "bias": np.linspace(-1, 1, 5, dtype=np.float32),
    }
    found = read(_file(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(("version", "kind"), [(5, "WhisperSpec"), (6, "TransformerSpec")])
def test_a_file_of_another_kind_is_refused(version: int, kind: str) -> None:
    with pytest.raises(ValueError, match="not a CTranslate2 Whisper file"):
        read(_file({}, version=version, kind=kind))


def test_stacked_projections_come_apart_as_query_key_value() -> None:
    stack = np.repeat(np.arange(3, dtype=np.float16), 4).reshape(12, 1)
    found = dict(whisper_weights({"encoder/layer_2/self_attention/linear_0/weight": stack}))
    assert {name: set(array.flat) for name, array in found.items()} == {
        "encoder.blocks.2.attn.query.weight": {0.0},
        "encoder.blocks.2.attn.key.weight": {1.0},
        "encoder.blocks.2.attn.value.weight": {2.0},
    }


def test_the_zero_bias_of_the_keys_is_left_out() -> None:
    stack = np.repeat(np.arange(2, dtype=np.float16), 4)
    found = dict(whisper_weights({"decoder/layer_0/attention/linear_1/bias": stack}))
    assert list(found) == ["decoder.blocks.0.cross_attn.value.bias"]


def test_settings_that_are_no_weights_are_left_out() -> None:
    assert not list(whisper_weights({"encoder/num_heads": np.array(6, dtype=np.int16)}))
