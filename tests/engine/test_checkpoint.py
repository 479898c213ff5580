"""Tensors of a checkpoint folder, by key and by parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from metronome_cli.engine.checkpoint import Checkpoint, Part, count_weights
from metronome_cli.engine.progress import watched
from metronome_cli.errors import AssetError

WEIGHTS = {
    "ears.a": torch.arange(6, dtype=torch.float32).view(2, 3),
    "text.a": torch.ones(4, dtype=torch.bfloat16),
    "text.b": torch.zeros(5),
    "eyes.a": torch.zeros(7),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two shards and their index."""
    save_file({key: WEIGHTS[key] for key in ("ears.a", "text.a")}, tmp_path / "one.safetensors")
    save_file({key: WEIGHTS[key] for key in ("text.b", "eyes.a")}, tmp_path / "two.safetensors")
    places = {"ears.a": "one", "text.a": "one", "text.b": "two", "eyes.a": "two"}
    index = {"weight_map": {key: f"{name}.safetensors" for key, name in places.items()}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    return tmp_path


def test_a_part_is_read_in_one_dtype_and_the_rest_is_never_looked_at(folder: Path) -> None:
    checkpoint = Checkpoint(folder, torch.float16, parts=["ears.", "text."])
    text = Part(checkpoint, "text.")
    assert text.has("a")
    assert not text.has("c")
    assert text.take("a", (4,)).dtype == torch.float16
    assert torch.equal(checkpoint.take("ears.a", (2, 3)), WEIGHTS["ears.a"].half())
    assert not text.has("a"), "each is taken once"
    with pytest.raises(AssetError, match=r"no place for: \['text\.b'\]"):
        checkpoint.check_nothing_left()
    with pytest.raises(AssetError, match=r"weight eyes\.a is missing"):
        checkpoint.take("eyes.a", (7,))


def test_weights_are_counted_by_parts(folder: Path) -> None:
    assert count_weights(folder) == 22
    assert count_weights(folder, ["ears.", "text."]) == 15


def test_who_watches_is_told_of_each_tensor(folder: Path) -> None:
    told: list[tuple[int, int]] = []
    with watched(lambda done, total: told.append((done, total))):
        checkpoint = Checkpoint(folder, torch.float32, parts=["text."])
    checkpoint.take("text.b", (5,))
    checkpoint.take("text.a", (4,))
    assert told == [(20, 36), (36, 36)]
    Checkpoint(folder, torch.float32).take("text.a", (4,))
    assert len(told) == 2, "nobody watches any more"


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_a_tensor_of_few_bits_is_quantised_whatever_config_json_says(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    save_file({"a": torch.ones(3).to(dtype)}, tmp_path / "model.safetensors")
    with pytest.raises(AssetError, match=r"a holds torch\.\w+: quantised checkpoints are not read; use"):
        Checkpoint(tmp_path, torch.float32).take("a", (3,))


def test_missing_shards_are_named_with_the_cure(folder: Path) -> None:
    (folder / "two.safetensors").unlink()
    with pytest.raises(AssetError, match=r"1 of its 2 safetensors files are missing, two\.safetensors among"):
        Checkpoint(folder, torch.float32)
