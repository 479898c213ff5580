"""CUDA graphs of a step, one for each number of tokens that steps are rounded up to.

Knows:   buckets, and the buffers that graphs read and write.
Ignores: what a step computes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import torch

BUCKETS = (
    1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512,
    640, 768, 896, 1024,
)  # fmt: skip


class Graphs:
    """`compute(n)` captured for every bucket n, in rising order; by default BUCKETS.

    It must read and write the same memory each time.
    """

    def __init__(self, compute: Callable[[int], None], buckets: Sequence[int] | None = None) -> None:
        self._buckets = buckets or BUCKETS
        self._compute = compute
        self._captured: dict[int, torch.cuda.CUDAGraph] = {}

    @property
    def most(self) -> int:
        """The most tokens of a step that has a graph."""
        return self._buckets[-1]

    def bucket(self, tokens: int) -> int:
        """What a step of so many tokens, at most `most`, is rounded up to."""
        return self._buckets[bisect_left(self._buckets, tokens)]

    @property
    def are_captured(self) -> bool:
        return bool(self._captured)

    def capture(self) -> None:
        """Capture all, the largest first: smaller ones then find room in the memory that it took."""
        memory = None
        for bucket in reversed(self._buckets):
            self._compute(bucket)  # compiles what it needs, which a capture could not
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=memory):
                self._compute(bucket)
            memory = graph.pool()
            self._captured[bucket] = graph

    def replay(self, bucket: int) -> None:
        self._captured[bucket].replay()
