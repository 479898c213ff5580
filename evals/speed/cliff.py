"""The cliff on a card: many calls of a large model's size on one pool, unbounded and windowed.

Knows:   draws of calls that join, leave and bring more or less, and what an early trace foretells.
Ignores: what calls say, and time that a server would wait: two seconds pass as fast as they compute.

The pool is smaller than the card's memory, so that a run takes seconds; it fills at the pace of its calls.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metronome_cli.engine.engine import Engine
from metronome_cli.errors import FieldError
from metronome_cli.fit.forecast import forecast
from metronome_cli.fit.series import Series
from metronome_cli.frame import SessionId
from metronome_cli.profile import load_profile
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.window import Policy, Unbounded

from ..calls import Calls
from .card import say
from .sizes import APPEND, BLOCKS, FRAME_S, TOKENS_IN, WINDOW
from .talk import RandomTalk

CALLS = (96, 128)
RUNS, FRAMES = 10, 40
TOKENS_OUT = 2
BLOCKS_OF_ALL = 1 + 128 * BLOCKS  # as many as 128 windowed calls are promised
EARLY = 0.5  # of the pool: what a forecast may see


def cliff(engine: Engine) -> list[dict[str, Any]]:
    """Both arms at each number of calls: who collapses, and when, and when that was foretold."""
    found = []
    opened = 0
    for calls in CALLS:
        arms: dict[str, Policy] = {"unbounded": Unbounded(), "window": WINDOW}
        for arm, policy in arms.items():
            runs = [_run(engine, policy, calls, seed, opened + 1000 * seed) for seed in range(RUNS)]
            opened += 1000 * RUNS
            fell = [run for run in runs if run["collapsed_at_s"] is not None]
            found.append(say(f"cliff {arm} N={calls}", collapsed=f"{len(fell)}/{RUNS}", runs=runs))
    return found


def _run(engine: Engine, policy: Policy, calls: int, seed: int, opened: int) -> dict[str, Any]:
    """One draw: nine in ten calls join in the first frames, the others later; one in ten leaves again."""
    random = np.random.default_rng((41, calls, seed))
    joins = np.where(random.random(calls) < 0.9, random.integers(0, 4, calls), random.integers(4, 20, calls))
    leaves = np.where(random.random(calls) < 0.1, random.integers(20, FRAMES, calls), FRAMES)
    brings = np.clip(TOKENS_IN * random.lognormal(-0.05, 0.3, calls), 10, APPEND - 1).astype(int)
    rates: dict[SessionId, int] = {}
    talk = RandomTalk(engine, policy, TOKENS_IN, TOKENS_OUT, rates=rates)
    profile = load_profile("laptop", {"model.kind": "null", "beat.frame_s": FRAME_S})
    held = Calls(talk, profile, FixedCap(2**31), seed, opened)
    live: dict[SessionId, int] = {}
    for frame in range(FRAMES):
        for gone in [session for session, call in live.items() if leaves[call] == frame]:
            held.close(gone)
            del live[gone]
        for call in np.flatnonzero(joins == frame).tolist():
            if (session := held.open()) is not None:
                live[session], rates[session] = call, int(brings[call])
        if held.tick().stalled:
            break  # it has collapsed; what comes then is known
    held.close_all()
    return {"seed": seed, **_told(held, isinstance(policy, Unbounded))}


def _told(held: Calls, unbounded: bool) -> dict[str, Any]:
    ticks = held.ticks
    due = np.array([tick.due - ticks[0].due for tick in ticks])
    share = np.array([tick.kv_leased / tick.kv_total for tick in ticks])
    at = next((float(when) for when, tick in zip(due, ticks, strict=True) if tick.stalled), None)
    told: dict[str, Any] = {"collapsed_at_s": at, "fullest": round(float(share.max()), 3)}
    told["tick_s"] = round(float(np.median([tick.done - tick.start for tick in ticks])), 4)
    told["refused"] = sum(held.refused.values())
    if unbounded:
        series = Series(due, share, np.array([tick.sessions for tick in ticks], np.float64))
        try:
            seen = forecast(series.promising(np.zeros(len(series))), until=EARLY)
            told["t_sat_s"] = seen.t_sat and [seen.t_sat.low, seen.t_sat.estimate, seen.t_sat.high]
        except FieldError as error:
            told["t_sat_s"], told["why"] = None, str(error)
    return told
