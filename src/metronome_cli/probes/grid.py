"""Which bounds a probe tries, and the cells that they make: one policy, one kind of play, one seed.

Knows:   the controls that no grid goes without, and the order of cells.
Ignores: how a cell is played and scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..errors import ProfileError
from ..profile import Terms
from ..window import Positions

Kind = Literal["turn", "free", "stream", "repeat", "pace"]
KINDS: tuple[Kind, ...] = ("turn", "free", "stream", "repeat", "pace")
PLAYED: tuple[Kind, ...] = ("turn", "free")  # calls that are asked and answer
Sinks = int | Literal["header"]
STEP = 256  # tokens of a stream whose mean cost is kept


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

    @property
    def terms(self) -> Terms:
        """What a call asks for to be held to this bound."""
        return Terms(policy=self.policy, window=self.window, sinks=self.sinks, positions=self.positions)


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
    kinds: Sequence[Kind] = ("turn", "free", "stream", "pace")
    seeds: Sequence[int] = (0,)
    controlled: bool = True  # cells mean nothing where the unbounded control answers too little
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
        """All cells by kind, the unbounded control's first: where it fails, the others mean nothing."""
        return [
            Cell(kind, bound, seed)
            for kind in self.kinds
            # What a frame takes depends on nothing that is asked.
            for seed in (self.seeds[:1] if kind == "pace" else self.seeds)
            for bound in self.bounds
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


def side_by_side(cells: Sequence[Cell], most: int) -> list[list[Cell]]:
    """`cells` in the groups that are played at once: of one kind and seed, at most `most` of them.

    A step of many calls costs little more than one of few. What is not played stands alone.
    """
    groups: list[list[Cell]] = []
    for cell in cells:
        last = groups[-1] if groups else []
        fits = last and (last[0].kind, last[0].seed) == (cell.kind, cell.seed) and len(last) < most
        if fits and cell.kind in PLAYED:
            last.append(cell)
        else:
            groups.append([cell])
    return groups
