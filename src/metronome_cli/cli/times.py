"""Lengths of time that an option takes, between two that it states.

Knows:   how typer is told that one is out of range.
Ignores: how lengths are written (load/lengths.py), and what they are for.
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from .load_options import seconds

SHORTEST, LONGEST = "1ms", "720h"
RANGE = f"{SHORTEST} to {LONGEST}"


def within(least: str, most: str) -> Callable[[str], float]:
    """A parser for typer: seconds from "90s", "80ms", "1.5m" or "1h", from `least` to `most`."""
    low_s, high_s = seconds(least), seconds(most)

    def parse(text: str) -> float:
        if not low_s <= (found := seconds(text)) <= high_s:
            raise typer.BadParameter(f"{text!r} is out of range: use {least} to {most}")
        return found

    return parse


any_time = within(SHORTEST, LONGEST)
