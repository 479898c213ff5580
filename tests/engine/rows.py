"""Rows of a step as tests want them: sessions of every policy and any age, given some tokens."""

from __future__ import annotations

import random

from metronome_cli.engine.blocks import BlockPool, Lane
from metronome_cli.engine.rows import Row, Session
from metronome_cli.engine.sampling import Chooser, Sampling
from metronome_cli.window import Policy, Recycle, Unbounded, Window

POLICIES: list[Policy] = [
    Window(1),
    Window(5, 3),
    Window(64, 20),
    Window(100, 4),
    Window(300, 70),
    Window(17, 64),
    Unbounded(),
    Recycle(400),
]


def row_of(lane: Lane, tokens: int) -> Row:
    """The last `tokens` of a lane, which it has just been extended by."""
    start = lane.length - tokens
    session = Session(lane, "anchored", Chooser(Sampling()))
    return Row(session, [0] * tokens, None, None, start, lane.length, tokens, sample=False)


def some_rows(pool: BlockPool, dice: random.Random, count: int, most: int) -> list[Row]:
    """Sessions of any age that have just been given some tokens."""
    rows = []
    for _ in range(count):
        lane = pool.open(dice.choice(POLICIES), most)
        assert lane is not None
        for _ in range(dice.randrange(12)):
            step = dice.randint(1, most)
            if isinstance(lane.policy, Recycle) and lane.length + step > 250:
                break
            assert lane.extend(step)
            lane.retire()
        tokens = dice.randint(1, most)
        assert lane.extend(tokens)
        rows.append(row_of(lane, tokens))
    return rows
