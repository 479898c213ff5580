"""A call and a run as they are when they are over, without a server."""

from __future__ import annotations

from typing import Any

import numpy as np

from metronome_cli.load.call import Call
from metronome_cli.load.frames import CallFrames
from metronome_cli.load.plan import Plan
from metronome_cli.load.runner import Run
from metronome_cli.speech import RATE, Clip, Stream


def a_call(number: int = 0) -> Call:
    stream = Stream([Clip("a.wav", np.full(2 * RATE, 0.5, np.float32))], seed=1)
    call = Call(number, stream, lambda *_: None)
    call.fate, call.frames = "done", CallFrames(number, start=0.0)
    return call


def a_run(told: Any, dues: list[float], end: float, **frame: Any) -> Run:
    """One call whose frames were due at `dues`, at a period of 2 s, and ended at `end`."""
    call = a_call()
    if dues:
        call.ended = end
    run = Run(Plan("127.0.0.1:1", 1, 60.0), 0.0, [call], end=end, period_s=2.0 if dues else None)
    run.frames = [told.frame(due, tick=int(due // 2), **frame) for due in dues]
    return run
