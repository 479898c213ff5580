"""Threads that each compute the rows of some sessions, and never wait for each other within a step.

Knows:   how many threads torch may use here, and how rows are shared out.
Ignores: what is computed for a row.

OpenMP splits every product among its threads, which then meet: thousands of times in a step. Where a thread
that sleeps wakes late, that costs more than the products do (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TypeVar

import torch

Result = TypeVar("Result")


class Crew:
    """As many threads as torch uses when this is made; a crew of one computes in the caller's thread."""

    def __init__(self) -> None:
        # The default device belongs to a thread, and another device's kernels need no threads of ours.
        on_cpu = torch.get_default_device().type == "cpu"
        self._size = torch.get_num_threads() if on_cpu else 1
        self._threads = ThreadPoolExecutor(
            self._size, "crew", initializer=torch.set_num_threads, initargs=(1,)
        )

    def shares(self, costs: Sequence[int]) -> list[slice]:
        """Rows of these costs as consecutive shares of about the same cost, at most one per thread.

        One row cannot be shared: it is computed by all threads as torch does by itself.
        """
        if self._size == 1 or len(costs) < 2:
            return [slice(0, len(costs))]
        until, whole = list(accumulate(costs)), sum(costs)
        cuts = [0]
        for part in range(1, self._size):
            after = next(n for n, cost in enumerate(until) if cost * self._size >= part * whole)
            cuts.append(max(cuts[-1], after + 1))
        bounds = [*cuts, len(costs)]
        return [slice(start, end) for start, end in pairwise(bounds) if start < end]

    def run(self, work: Callable[[slice], Result], shares: Sequence[slice]) -> list[Result]:
        """`work` of every share, at the same time; its results in order."""
        if len(shares) == 1:
            return [work(shares[0])]

        def inside(share: slice) -> Result:
            with torch.inference_mode():  # it belongs to a thread
                return work(share)

        return list(self._threads.map(inside, shares))
