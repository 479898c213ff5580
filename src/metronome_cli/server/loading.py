"""How far a model's weights are read, on one line of a terminal.

Knows:   bytes read and to be read, how often a glance is worth a line.
Ignores: who reads them. Where the stream is no terminal it writes nothing.
"""

from __future__ import annotations

from typing import TextIO

from ..clock import Clock

_EVERY_S = 0.2
_WIDTH = 30  # characters of the bar


class Bar:
    """A bar on `stream`, drawn over itself and wiped when all is read."""

    def __init__(self, stream: TextIO, clock: Clock) -> None:
        self._stream = stream
        self._clock = clock
        self._is_watched = stream.isatty()
        self._next = clock.now() + _EVERY_S  # what is read sooner needs no bar

    def show(self, done: int, total: int) -> None:
        """So many bytes are read of all."""
        now = self._clock.now()
        if not self._is_watched or (now < self._next and done < total):
            return
        self._next = now + _EVERY_S
        share = done / total
        filled = round(share * _WIDTH)
        bar = "#" * filled + "." * (_WIDTH - filled)
        line = f"reading weights [{bar}] {share:4.0%} of {total / 1e9:.1f} GB"
        self._stream.write("\r" + (line if done < total else " " * len(line) + "\r"))
        self._stream.flush()
