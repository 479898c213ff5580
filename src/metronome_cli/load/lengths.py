"""Lengths of time as people write them: fixed ones, and ones drawn from a distribution.

Knows:   units, and how an exponential, a log-normal and a uniform length are written and drawn.
Ignores: calls, clocks, and where the randomness comes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import ProfileError

if TYPE_CHECKING:
    import numpy as np

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_WRITTEN = 'use "60s", "exp:60s" (mean), "lognormal:60s:0.5" (median, sigma) or "uniform:30s:90s"'


def parse_seconds(text: str, field: str = "time") -> float:
    """Seconds from "90", "90s", "80ms", "1.5m" or "1h". ProfileError names `field` otherwise."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        seconds = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ProfileError(field, text, "no length of time: use 90s, 80ms, 1.5m or 1h")
    return seconds


@dataclass(frozen=True, slots=True)
class Length:
    """How long a call lasts. `a` and `b` are the numbers of the distribution, as `text` writes them."""

    kind: str
    a: float
    b: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Length:
        """From "60s", "exp:60s", "lognormal:60s:0.5" or "uniform:30s:90s"."""
        kind, *numbers = text.split(":") if ":" in text else ("fixed", text)
        if len(numbers) != _NUMBERS.get(kind):
            raise ProfileError("call-length", text, _WRITTEN)
        try:
            a = parse_seconds(numbers[0])
            b = (
                0.0
                if len(numbers) == 1
                else float(numbers[1])
                if kind == "lognormal"
                else parse_seconds(numbers[1])
            )
        except (ValueError, ProfileError):
            raise ProfileError("call-length", text, _WRITTEN) from None
        if not (a > 0 and 0 <= b < math.inf) or (kind == "uniform" and b < a):
            raise ProfileError("call-length", text, "use lengths above 0, the shorter one first")
        return cls(kind, a, b, text)

    def draw(self, random: np.random.Generator) -> float:
        """One length in seconds."""
        return float(_DRAW[self.kind](random, self.a, self.b))


_NUMBERS = {"fixed": 1, "exp": 1, "lognormal": 2, "uniform": 2}
_DRAW: dict[str, Callable[[np.random.Generator, float, float], float]] = {
    "fixed": lambda _, a, __: a,
    "exp": lambda random, a, _: random.exponential(a),
    "lognormal": lambda random, a, b: random.lognormal(math.log(a), b),
    "uniform": lambda random, a, b: random.uniform(a, b),
}
