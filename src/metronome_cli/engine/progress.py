"""Who wants to know how far a checkpoint is read, without being handed through everything that loads one.

Knows:   one callback at a time.
Ignores: checkpoints, torch, and how anybody shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Told = Callable[[int, int], None]  # bytes read so far, and of all that will be

_watcher: ContextVar[Told | None] = ContextVar("watcher", default=None)


@contextmanager
def watched(told: Told) -> Iterator[None]:
    """Within it, every checkpoint calls `told` after each tensor that it reads."""
    token = _watcher.set(told)
    try:
        yield
    finally:
        _watcher.reset(token)


def watcher() -> Told | None:
    """Who is to be told now."""
    return _watcher.get()
