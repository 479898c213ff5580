"""The KV memory of one device: keys and values of every layer, in blocks.

Knows:   tensors and their shapes; numbers of 8 bits with their scales, and sinks kept apart from them.
Ignores: which session holds a block (blocks.py) and who may see it (attention.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Narrow:
    """FP8, and sinks apart from it in `pinned` blocks of `wide`: every token of a call reads them."""

    pinned: int
    wide: torch.dtype = torch.bfloat16


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """Keys and values of one layer, where its sinks lie, and its scales, if it has some."""

    keys: torch.Tensor
    values: torch.Tensor
    sink_keys: torch.Tensor
    sink_values: torch.Tensor
    scales: tuple[torch.Tensor, torch.Tensor] | None


class KvPool:
    """Per layer, keys and values [kv_heads, blocks + 1, block_size, head_dim].

    Heads come first: gathered that way, a session's keys are what a batched product over (head, row) takes,
    without a copy more (docs/log.md). The last block is scratch: padding reads it, and it stays zero.

    Of a `Narrow` pool each head of each place has a scale, float32 [kv_heads, blocks + 1, block_size]; its
    sinks are [kv_heads, pinned + 1, block_size, head_dim], and of any other the same tensors as the rest.
    """

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype | Narrow,
    ) -> None:
        shape = (layers, kv_heads, blocks + 1, block_size, head_dim)
        self.keys = torch.zeros(shape, dtype=FP8 if isinstance(dtype, Narrow) else dtype)
        self.values = torch.zeros_like(self.keys)
        self.key_scales: torch.Tensor | None = None
        self.value_scales: torch.Tensor | None = None
        self.sink_keys, self.sink_values = self.keys, self.values
        if isinstance(dtype, Narrow):
            self.key_scales = torch.zeros(shape[:-1], dtype=torch.float32)
            self.value_scales = torch.zeros_like(self.key_scales)
            apart = (layers, kv_heads, dtype.pinned + 1, block_size, head_dim)
            self.sink_keys = torch.zeros(apart, dtype=dtype.wide)
            self.sink_values = torch.zeros_like(self.sink_keys)
        self.scratch = blocks
        self.block_size = block_size
        self.kv_heads = kv_heads

    def layer(self, number: int) -> LayerMemory:
        """One layer's tensors."""
        scales = None
        if self.key_scales is not None and self.value_scales is not None:
            scales = self.key_scales[number], self.value_scales[number]
        return LayerMemory(
            self.keys[number],
            self.values[number],
            self.sink_keys[number],
            self.sink_values[number],
            scales,
        )

    def wipe(self, blocks: Sequence[int]) -> None:
        """Zero blocks that change hands: the next tenant sees nothing of the last one, NaN included."""
        self.fill(blocks, 0.0)

    def fill(self, blocks: Sequence[int], value: float) -> None:
        """Set every place of `blocks` in all layers to `value`."""
        where = torch.tensor(blocks, device=self.keys.device)
        self.keys[:, :, where] = value
        self.values[:, :, where] = value

    @property
    def bytes(self) -> int:
        """Memory taken, scratch included."""
        parts = [self.keys, self.values]
        if self.key_scales is not None and self.value_scales is not None:
            parts += [self.key_scales, self.value_scales, self.sink_keys, self.sink_values]
        return sum(part.nbytes for part in parts)
