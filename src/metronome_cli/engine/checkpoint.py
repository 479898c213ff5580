"""A checkpoint folder's tensors by key: safetensors, in one file or in shards, as Hugging Face writes them.

Knows:   which file holds a key, shapes, dtypes, the device that a tensor is read to.
Ignores: what the tensors are for (weights.py, and each model's own file).

A key that is missing, left over or misshaped is an error naming it, never a silent default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import AssetError


class Checkpoint:
    """The tensors of a folder, read one at a time, each taken once. AssetError when it cannot be read."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: torch.device | None = None) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device or torch.get_default_device()
        self._file_of = _files_by_key(folder)

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor called `key`, on the device and in the dtype of all. AssetError names what is wrong."""
        file = self._file_of.pop(key, None)
        if file is None:
            raise AssetError(f"{self.folder}: weight {key} is missing")
        with safe_open(file, framework="pt", device=str(self.device)) as shard:
            tensor: Tensor = shard.get_tensor(key)
        if tuple(tensor.shape) != shape:
            raise AssetError(f"{file}: {key} has shape {tuple(tensor.shape)}, the config says {shape}")
        return tensor.to(self.dtype)

    def has(self, key: str) -> bool:
        """Whether `key` is there and was not taken yet."""
        return key in self._file_of

    def check_nothing_left(self, ignore: Iterable[str] = ()) -> None:
        """AssetError when keys were not taken, but for those that begin with one of `ignore`."""
        known = tuple(ignore)
        left = sorted(
            key for key in self._file_of if not key.startswith(known) and not key.endswith("inv_freq")
        )
        if left:
            raise AssetError(f"{self.folder}: weights that this architecture has no place for: {left[:5]}")


def count_weights(folder: Path) -> int:
    """How many numbers a checkpoint's safetensors hold, by their headers alone."""
    total = 0
    for path in sorted(set(_files_by_key(folder).values())):
        with safe_open(path, framework="pt") as shard:
            total += sum(math.prod(shard.get_slice(key).get_shape()) for key in shard.keys())  # noqa: SIM118
    return total


def _files_by_key(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    try:
        if index.exists():
            shards = {folder / name for name in json.loads(index.read_text("utf-8"))["weight_map"].values()}
        else:
            shards = {folder / "model.safetensors"}
        found: dict[str, Path] = {}
        for path in sorted(shards):
            with safe_open(path, framework="pt") as shard:
                found.update(dict.fromkeys(shard.keys(), path))
    except Exception as error:  # safetensors raises its own error type, which it does not export for good
        raise AssetError(f"{folder}: cannot read its safetensors ({error})") from None
    return found
