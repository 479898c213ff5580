"""The end of a process whose starter is gone, whatever it is busy with.

Knows:   the pipe that ends with the starter, and how long an end of one's own may take.
Ignores: what the process does, and what it leaves behind.

Who loads a model, or is stuck in a tick, looks at no pipe: it would live on with all the memory that it has.
A thread looks instead. It cannot help where a model's own code never lets go of the interpreter.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

from ..clock import Clock

ORDERLY_S = 5.0  # for a tick to end, and what was recorded to be written


def watch(lifeline: int, clock: Clock, end: Callable[[], None]) -> threading.Thread:
    """Call `end` ORDERLY_S after the other end of the pipe `lifeline` is gone, in a thread of its own."""
    thread = threading.Thread(target=_wait, args=(lifeline, clock, end), daemon=True)
    thread.start()
    return thread


def _wait(lifeline: int, clock: Clock, end: Callable[[], None]) -> None:
    poller = select.poll()
    poller.register(lifeline, 0)  # its end is told all the same, and what is written is not ours to read
    poller.poll()
    clock.wait_until(clock.now() + ORDERLY_S)
    end()
