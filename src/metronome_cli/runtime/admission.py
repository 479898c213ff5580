"""Who may join.

Knows:   how many calls are live.
Ignores: blocks (the engine reserves those itself), sockets, time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..frame import Refused


class Admission(Protocol):
    """Decides about one new call. It runs in the engine's own thread, with the reservation of
    blocks, so no two calls can take one place."""

    def decide(self, live: int) -> Refused | None:
        """None lets the call in; `live` calls are there already."""
        ...


@dataclass(frozen=True, slots=True)
class FixedCap:
    """At most `max_sessions` calls at a time."""

    max_sessions: int

    def decide(self, live: int) -> Refused | None:
        return Refused("max_sessions") if live >= self.max_sessions else None
