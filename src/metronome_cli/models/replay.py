"""A computation over the first rows of fixed buffers: as it is written, or from CUDA graphs.

Knows:   how many rows a batch is rounded up to, capturing and replaying.
Ignores: what is computed. It must read and write the same memory each time, and never wait for the host.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

import torch

from ..engine.graphs import BUCKETS


class Replay:
    """`compute(n)` works on the first n rows, at most `most`. Rows past those asked for must do no harm."""

    def __init__(self, compute: Callable[[int], None], most: int, device: torch.device) -> None:
        self._compute = compute
        is_cuda = device.type == "cuda"
        self._sizes = sorted({size for size in BUCKETS if size < most} | {most}) if is_cuda else []
        self._captured: dict[int, torch.cuda.CUDAGraph] = {}

    def rounded(self, rows: int) -> int:
        """How many rows a batch of so many computes."""
        return self._sizes[bisect_left(self._sizes, rows)] if self._sizes else rows

    def capture(self) -> None:
        """Capture every size, the largest first: smaller ones then find room in the memory that it took."""
        memory = None
        for size in reversed(self._sizes):
            self._compute(size)  # chooses and compiles what it needs, which a capture could not
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._compute(size)
            memory = graph.pool()
            self._captured[size] = graph

    def __call__(self, rows: int) -> None:
        size = self.rounded(rows)
        if size in self._captured:
            self._captured[size].replay()
        else:
            self._compute(size)
