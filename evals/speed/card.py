"""What the card itself can do, and the floor that follows for a decode step.

Knows:   bandwidth of copies and of reads, the rate of a large matrix product, bytes and operations of a step.
Ignores: how a step is computed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from metronome_cli.engine.decoder import DecoderConfig


def milliseconds(work: Callable[[], object], repeats: int = 20) -> float:
    """Median device time of `work`, which is captured in a graph so that launches cost nothing."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return replays(graph, repeats)


def replays(graph: torch.cuda.CUDAGraph, repeats: int = 20) -> float:
    """Median device time of one replay."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    for _ in range(3):
        graph.replay()
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return float(np.median([before.elapsed_time(after) for before, after in pairwise(marks)]))


@triton.jit
def _read(x, out, size, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    total = tl.sum(tl.load(x + at, mask=at < size, other=0.0).to(tl.float32), 0)
    if total == 12345.678:  # so that the loads cannot be left out
        tl.store(out, total)


@dataclass(frozen=True)
class Card:
    """Bytes and operations per second."""

    name: str
    copy: float
    read: float
    products: float  # bfloat16, 8192 cubed

    @classmethod
    @cache
    def measured(cls) -> Card:
        """This card, measured once."""
        size = 2**31
        x, y = (torch.randn(size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        # By a kernel: in a graph, copy_ goes to the copy engine, which is slower.
        copy = 4 * size / milliseconds(lambda: torch.mul(x, 1, out=y)) * 1e3
        out = torch.zeros(1, device="cuda")
        tile = 8192
        read = milliseconds(lambda: _read[(triton.cdiv(size, tile),)](x, out, size, TILE=tile, num_warps=8))
        a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        products = 2 * 8192**3 / milliseconds(lambda: a @ b) * 1e3
        return cls(torch.cuda.get_device_name(), copy, 2 * size / read * 1e3, products)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def floor_ms(config: DecoderConfig, batch: int, context: int, card: Card) -> float:
    """A decode step at the card's own rates: each matrix once at bytes or operations, whichever takes longer,
    and keys and values once (design, section 5). Of experts, as many are read as `batch` tokens choose."""
    size = config.head_dim
    shapes = [
        (config.hidden, (config.heads + 2 * config.kv_heads) * size),
        (config.heads * size, config.hidden),
    ]
    if not config.experts:
        shapes += [(config.hidden, 2 * config.intermediate), (config.intermediate, config.hidden)]
    layer_s = sum(max(2 * a * b / card.copy, 2 * a * b * batch / card.products) for a, b in shapes)
    if config.experts:
        chosen = config.experts * (1 - (1 - config.top / config.experts) ** batch)
        weights = 3 * config.hidden * config.intermediate
        layer_s += max(2 * weights * chosen / card.copy, 2 * weights * batch * config.top / card.products)
    kv_s = 2 * 2 * context * config.kv_heads * size * batch / card.copy
    head = config.hidden * config.vocab
    head_s = max(2 * head / card.copy, 2 * head * batch / card.products)
    return 1e3 * (config.layers * (layer_s + kv_s) + head_s)


def say(what: str, **found: object) -> dict[str, Any]:
    """One row of the answer, printed as it is found."""
    print(what, json.dumps(found), flush=True)
    return {"what": what, **found}
