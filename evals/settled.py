"""Objects as in a server's engine process, whose garbage collector leaves alone what stood at the start.

Knows:   Python's collector, which stops everything for 0.2 to 0.3 s to look through what libraries brought.
Ignores: what is measured meanwhile.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def settled() -> Iterator[None]:
    """While this is open only objects that are made meanwhile are looked through."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
