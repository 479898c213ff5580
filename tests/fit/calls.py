"""Runs of a made-up device whose ticks cost what a test says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from metronome_cli.trace import Header, TickRecord, write_line

Took = Callable[[int, int, int], float]  # seconds by calls, blocks, tokens read


def took(sessions: int, blocks: int, tokens_in: int) -> float:
    return 0.1 + 0.01 * sessions + 0.0002 * blocks + 0.0005 * tokens_in


def run(
    n: int,
    beats: int = 40,
    cost: Took = took,
    *,
    noise: float = 0.0,
    asks: float = 0.25,
    bound: int = 22,
    blocks: int = 4000,
    arm: str = "",
) -> list[TickRecord]:
    """`n` calls over beats of 2 s: windows fill up to 20 blocks, each call asks 12 tokens now and then. A
    tick takes longer by `noise` of itself, at random."""
    random = np.random.default_rng((5, n))
    ticks = []
    for beat in range(beats):
        tokens, held = 12 * int(random.binomial(n, asks)), n * min(20, 10 + beat)
        seconds = cost(n, held, tokens) * (1 + noise * abs(float(random.standard_normal())))
        ticks.append(
            TickRecord(
                tick=beat,
                due=2.0 * beat,
                start=2.0 * beat,
                done=2.0 * beat + seconds,
                sessions=n,
                tokens_in=tokens,
                tokens_out=2 * n,
                kv_leased=held,
                kv_reserved=bound * n,
                kv_total=blocks,
                arm=arm,
            )
        )
    return ticks


def write(path: Path, ticks: Sequence[TickRecord], kind: str = "trace") -> Path:
    """A trace file with these ticks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_line(file, Header(kind=kind, monotonic_zero=0.0, wall_zero=0.0))
        for tick in ticks:
            write_line(file, tick)
    return path
