"""A pool's occupancy over time, checked once at the edge so that nothing behind it has to ask again.

Knows:   seconds, shares of a pool in 0..1, live and stalled sessions beside them.
Ignores: files, pages and servers they came from, and what follows from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError

Floats = Sequence[float] | NDArray[np.float64]

FEWEST = 5  # rows; what the forecast needs of a rise is asked there
_MOST_CALLS = 1e9  # far beyond any server, and far from where sums of squares overflow
_STAYED = 0.9  # of the calls
_FARTHEST_S = 1e10  # some 300 years: more are milliseconds, or no time at all


@dataclass(frozen=True, slots=True)
class Series:
    """Rows in order of time. All arrays are of one length; build it with `checked`."""

    t_s: NDArray[np.float64]  # seconds on any axis, never going back; a row may repeat
    occupancy: NDArray[np.float64]  # share of the pool's blocks held, 0..1
    sessions: NDArray[np.float64] | None = None  # live calls
    pool: int | None = None  # blocks, where known
    stalled: NDArray[np.float64] | None = None  # calls without blocks
    name: str = ""
    promised: NDArray[np.float64] | None = None  # share of the pool that calls with a bound may hold
    windowed: bool | None = None  # whether all calls said that they have a bound; `promised` says more

    @property
    def bound(self) -> float | None:
        """What the calls that are live at the end may hold at most, a share of the pool: where all that is
        held was promised. None where calls are not known to have a bound."""
        if self.promised is None or not self.promised[-1] >= self.occupancy[-1] > 0.0:
            return None
        return float(self.promised[-1])

    @property
    def is_bounded(self) -> bool | None:
        """Whether the calls that are live at the end have a bound; None where nothing tells."""
        return self.windowed if self.promised is None else self.bound is not None

    @classmethod
    def checked(
        cls,
        t_s: Floats,
        occupancy: Floats,
        sessions: Floats | None = None,
        *,
        pool: int | None = None,
        stalled: Floats | None = None,
        name: str = "",
    ) -> Series:
        """The series, or a FieldError that names `name`, the row (counted from 1) and what was expected."""
        of = f"{name}: " if name else ""
        t = _finite(t_s, f"{of}t_s", len(t_s))
        if len(t) < FEWEST:
            raise FieldError(f"{of}t_s", len(t), f"give at least {FEWEST} rows")
        rho = _finite(occupancy, f"{of}kv_occupancy", len(t))
        _check_shares(rho, f"{of}kv_occupancy")
        _refuse(np.abs(t) > _FARTHEST_S, t, f"{of}t_s", f"give seconds, at most {_FARTHEST_S:,.0f}")
        _refuse(np.diff(t, prepend=t[0]) < 0.0, t, f"{of}t_s", "time goes back: give rows in order of time")
        live = None if sessions is None else _counts(sessions, f"{of}sessions", len(t))
        waiting = None if stalled is None else _counts(stalled, f"{of}stalled", len(t))
        if pool is not None and pool < 1:
            raise FieldError(f"{of}pool", pool, "give 1 or more blocks")
        return cls(t, rho, live, pool, waiting, name)

    def promising(self, shares: Floats | None) -> Series:
        """The same with what calls were promised in each row. Errors as of `checked`."""
        if shares is None:
            return self
        field = f"{self.name}: kv_reserved" if self.name else "kv_reserved"
        promised = _finite(shares, field, len(self))
        _check_shares(promised, field)
        return replace(self, promised=promised)

    def first(self, rows: int) -> Series:
        """The series as it was when it had so many rows."""
        columns = ("t_s", "occupancy", "sessions", "stalled", "promised")
        told = {name: of[:rows] for name in columns if (of := getattr(self, name)) is not None}
        return replace(self, **told)

    def before_hang_ups(self) -> Iterator[Series]:
        """The rows before calls left, each time that they did, the last time first; none where calls are not
        told.

        They have left when fewer than nine tenths of the most since the server was last idle are live.
        """
        live_T = np.empty(0) if self.sessions is None else self.sessions
        while (live_T > 0).any():
            last = int(np.flatnonzero(live_T > 0)[-1])
            idle = np.flatnonzero(live_T[:last] == 0)
            begin = int(idle[-1]) + 1 if len(idle) else 0
            spell_T = live_T[begin : last + 1]
            stayed = begin + int(np.flatnonzero(spell_T >= _STAYED * spell_T.max())[-1]) + 1
            if stayed < len(self):
                yield self.first(stayed)
            live_T = live_T[:begin]

    def __len__(self) -> int:
        return len(self.t_s)


def _finite(values: Floats, field: str, rows: int) -> NDArray[np.float64]:
    found = np.asarray(values, np.float64)
    if found.shape != (rows,):
        raise FieldError(field, found.shape, f"give one number for each of the {rows} rows")
    _refuse(~np.isfinite(found), found, field, "give a finite number")
    return found


def _counts(values: Floats, field: str, rows: int) -> NDArray[np.float64]:
    found = _finite(values, field, rows)
    _refuse((found < 0.0) | (found > _MOST_CALLS), found, field, f"give 0 to {_MOST_CALLS:,.0f} calls")
    return found


def _check_shares(values: NDArray[np.float64], field: str) -> None:
    _refuse(values > 1.0, values, field, "give shares 0..1, not percent")
    _refuse(values < 0.0, values, field, "give shares 0..1")


def _refuse(wrong: NDArray[np.bool_], values: NDArray[np.float64], field: str, cure: str) -> None:
    """FieldError about the first row that is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise FieldError(f"{field}, row {row + 1}", float(values[row]), cure)
