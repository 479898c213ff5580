"""A computation over the first rows of fixed buffers: as it is written, or from CUDA graphs.

Knows:   how many rows a batch is rounded up to, and where there are graphs to do it.
Ignores: what is computed. It must read and write the same memory each time, and never wait for the host.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..engine.graphs import BUCKETS, Graphs


class Replay:
    """`compute(n)` works on the first n rows, at most `most`. Rows past those asked for must do no harm."""

    def __init__(self, compute: Callable[[int], None], most: int, device: torch.device) -> None:
        self._compute = compute
        sizes = sorted({size for size in BUCKETS if size < most} | {most})
        self._graphs = Graphs(compute, sizes) if device.type == "cuda" else None

    def rounded(self, rows: int) -> int:
        """How many rows a batch of so many computes."""
        return self._graphs.bucket(rows) if self._graphs else rows

    def capture(self) -> None:
        """Capture every size, where the device has graphs."""
        if self._graphs:
            self._graphs.capture()

    def __call__(self, rows: int) -> None:
        size = self.rounded(rows)
        if self._graphs and self._graphs.are_captured:
            self._graphs.replay(size)
        else:
            self._compute(size)
