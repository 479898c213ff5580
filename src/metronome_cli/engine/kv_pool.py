"""The KV memory of one device: keys and values of every layer, in blocks.

Knows:   tensors and their shapes.
Ignores: which session holds a block (blocks.py) and who may see it (attention.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


class KvPool:
    """Per layer, keys and values [kv_heads, blocks + 1, block_size, head_dim].

    Heads come first: gathered that way, a session's keys are what a batched product over (head, row) takes,
    without a copy more (docs/log.md). The last block is scratch: padding reads it, and it stays zero.
    """

    def __init__(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        shape = (layers, kv_heads, blocks + 1, block_size, head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        self.scratch = blocks
        self.block_size = block_size
        self.kv_heads = kv_heads

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
        return self.keys.nbytes + self.values.nbytes
