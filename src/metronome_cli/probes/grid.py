"""Which bounds a probe tries, and the cells that they make: one policy, one kind of play, one seed.

Knows:   the controls that no grid goes without, and the order of cells.
Ignores: how a cell is played and scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import ProfileError
from ..profile import Profile
from ..window import Positions

Kind = Literal["turn", "free", "stream", "repeat"]
KINDS: tuple[Kind, ...] = ("turn", "free", "stream", "repeat")
Sinks = int | Literal["header"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One retention policy under test. `window` is None for unbounded."""

    policy: Literal["unbounded", "window", "recycle"]
    window: int | None = None
    sinks: Sinks = 0
    positions: Positions = "anchored"

    @property
    def name(self) -> str:
        """As tables show it; unique within a grid."""
        if self.policy != "window":
            return self.policy if self.window is None else f"recycle {self.window}"
        absolute = " absolute" if self.positions == "absolute" else ""
        return f"W={self.window} S={self.sinks}{absolute}"

    def of(self, profile: Profile, changes: dict[str, dict[str, Any]]) -> Profile:
        """`profile` under this bound, with further changes by section."""
        window = {"policy": self.policy, "sinks": self.sinks, "positions": self.positions}
        if self.window is not None:
            window["window"] = self.window
        sections = {"window": window} | {name: values for name, values in changes.items() if name != "window"}
        return profile.model_copy(
            update={
                name: getattr(profile, name).model_copy(update=values) for name, values in sections.items()
            }
        )


UNBOUNDED = Bound("unbounded")


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured in one go. Cells of one kind and seed are asked the same, whatever their bound."""

    kind: Kind
    bound: Bound
    seed: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.bound.name} seed {self.seed}"

    @property
    def slug(self) -> str:
        """The name as a file's."""
        return self.name.replace(" ", "_").replace("=", "")


@dataclass(frozen=True, slots=True)
class Grid:
    """What to try. `bounds` holds the controls too: unbounded, S=0 at every W, and Recycle(W)."""

    windows: Sequence[int]
    sinks: Sequence[Sinks]
    positions: Sequence[Positions] = ("anchored",)
    kinds: Sequence[Kind] = ("turn", "free", "stream")
    seeds: Sequence[int] = (0,)
    bounds: list[Bound] = field(init=False)

    def __post_init__(self) -> None:
        for window in self.windows:
            if window < 1:
                raise ProfileError("windows", window, "use 1 or more tokens")
        for sinks in self.sinks:
            if sinks != "header" and not 0 <= sinks <= min(self.windows, default=0):
                raise ProfileError("sinks", sinks, f"use 0 to {min(self.windows)}, or header")
        for name in ("windows", "sinks", "positions", "kinds", "seeds"):
            if not getattr(self, name):
                raise ProfileError(name, "", "name at least one")
        object.__setattr__(self, "bounds", list(dict.fromkeys(self._bounds())))

    def cells(self) -> list[Cell]:
        """All cells, those of the unbounded control first: where it fails, the others mean nothing."""
        return [
            Cell(kind, bound, seed) for bound in self.bounds for kind in self.kinds for seed in self.seeds
        ]

    def _bounds(self) -> Iterator[Bound]:
        yield UNBOUNDED
        for window in self.windows:
            yield Bound("window", window, 0)
            for sinks in self.sinks:
                for positions in self.positions:
                    # Without sinks the two kinds of positions are one.
                    yield Bound("window", window, sinks, "anchored" if sinks == 0 else positions)
            yield Bound("recycle", window)
