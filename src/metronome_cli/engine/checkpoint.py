"""A checkpoint folder's tensors by key: safetensors, in one file or in shards, as Hugging Face writes them.

Knows:   which file holds a key, shapes, dtypes, the device that a tensor is read to.
Ignores: what the tensors are for (weights.py, and each model's own file).

A key that is missing, left over or misshaped is an error naming it, never a silent default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import AssetError
from .progress import watcher

_READ = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Checkpoint:
    """The tensors of a folder, read one at a time, each taken once. AssetError when it cannot be read.

    Each goes from its file straight to the device; never are there two copies of more than one of them.
    `parts`: what the keys to be read begin with; others are never looked at. By default all.
    """

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype,
        device: torch.device | None = None,
        parts: Iterable[str] = ("",),
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device or torch.get_default_device()
        wanted = tuple(parts)
        self._file_of = {key: file for key, file in _files_by_key(folder).items() if key.startswith(wanted)}
        self._open: dict[Path, Any] = {}  # a file of thousands of tensors is opened once
        self._told = watcher()
        self._read, self._total = 0, 0
        if self._told is not None:
            self._total = sum(math.prod(self._shape(key)) for key in self._file_of) * dtype.itemsize

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor called `key`, on the device and in the dtype of all. AssetError names what is wrong."""
        if key not in self._file_of:
            raise AssetError(f"{self.folder}: weight {key} is missing")
        if (found := self._shape(key)) != shape:
            raise AssetError(f"{self._file_of[key]}: {key} has shape {found}, the config says {shape}")
        tensor: Tensor = self._shard(key).get_tensor(key)
        if tensor.dtype not in _READ:
            cure = "quantised checkpoints are not read; use one in float32, bfloat16 or float16"
            raise AssetError(f"{self._file_of[key]}: {key} holds {tensor.dtype}: {cure}")
        del self._file_of[key]
        self._read += tensor.numel() * self.dtype.itemsize
        if self._told is not None:
            self._told(self._read, self._total)
        return tensor.to(self.dtype)

    def _shard(self, key: str) -> Any:
        file = self._file_of[key]
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt", device=str(self.device))
        return self._open[file]

    def _shape(self, key: str) -> tuple[int, ...]:
        return tuple(self._shard(key).get_slice(key).get_shape())

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


@dataclass(frozen=True, slots=True)
class Part:
    """The keys of a checkpoint that begin with `prefix`, called by the rest of their names."""

    checkpoint: Checkpoint
    prefix: str

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """As `Checkpoint.take`."""
        return self.checkpoint.take(self.prefix + key, shape)

    def has(self, key: str) -> bool:
        """As `Checkpoint.has`."""
        return self.checkpoint.has(self.prefix + key)


def count_weights(folder: Path, prefixes: Iterable[str] = ("",)) -> int:
    """How many numbers a checkpoint's safetensors hold under keys of `prefixes`, by their headers alone."""
    wanted = tuple(prefixes)
    total = 0
    for path in sorted(set(_files_by_key(folder).values())):
        with safe_open(path, framework="pt") as shard:
            keys = [key for key in shard.keys() if key.startswith(wanted)]  # noqa: SIM118
            total += sum(math.prod(shard.get_slice(key).get_shape()) for key in keys)
    return total


def _files_by_key(folder: Path) -> dict[str, Path]:
    index = folder / "model.safetensors.index.json"
    try:
        if index.exists():
            names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        else:
            names = {"model.safetensors"}
        if missing := sorted(name for name in names if not (folder / name).is_file()):
            raise AssetError(
                f"{folder}: {len(missing)} of its {len(names)} safetensors files are missing, "
                f"{missing[0]} among them: download the whole model again"
            )
        found: dict[str, Path] = {}
        for path in sorted(folder / name for name in names):
            with safe_open(path, framework="pt") as shard:
                found.update(dict.fromkeys(shard.keys(), path))
    except AssetError:
        raise
    except Exception as error:  # safetensors raises its own error type, which it does not export for good
        raise AssetError(f"{folder}: cannot read its safetensors ({error})") from None
    return found
