"""Which rows of a series are the rise that is carried on, where it began, and what it leads to; or that
the pool is level.

Knows:   a series, and the test of plateau.py.
Ignores: curves through the rise, and when it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError
from .plateau import is_level, late_rows, rises, trend
from .series import FEWEST, Series

Array = NDArray[np.float64]

LITTLE = 0.002  # share of the pool: less is rounding
_NEARLY = 0.98  # the curve is fitted below: the last blocks go one call at a time
_TOLD = 2 * FEWEST  # rows: five late ones tell a plateau from a ramp, held against as many before
_FELL = 0.01  # share of the pool: a rise and a fall by more are no noise
_INSTANT_S = 1e-6  # rows nearer to each other are of one time


@dataclass(frozen=True, slots=True)
class Start:
    """Where a rise begins."""

    at: int  # the first row that holds something
    start_s: float  # when the first call began, between two rows
    rho0: float  # share held before
    seen: bool  # False: the series begins in the middle of a rise, and its start is a line's extrapolation


@dataclass(frozen=True, slots=True)
class Rise:
    """The rows that are fitted, with what they lead to. Their times differ."""

    shape: Literal["ramp", "plateau", "level"]  # level: there is no rise, and need be none
    start: Start
    t_T: Array
    rho_T: Array
    live_T: Array | None
    notes: tuple[str, ...]


def find_rise(seen: Series) -> Rise:
    """The last rise from the pool's first level up to a full one, or the rows of a pool that is level.

    FieldError where they are neither, or too few: 5 are needed where something else than their course tells
    what they lead to, and 10 elsewhere.
    """
    nearly = seen.occupancy >= _NEARLY
    rows = int(np.argmax(nearly)) if nearly.any() else len(seen)
    kept = np.flatnonzero(np.diff(seen.t_s[:rows], append=np.inf) > _INSTANT_S)  # of one time the last
    if len(kept) == 0 or seen.occupancy[kept[-1]] <= seen.occupancy[kept[0]] + LITTLE:
        return _level(seen, kept, 0.0, seen.bound is not None)
    start = find_start(seen.t_s[kept], seen.occupancy[kept])
    whole, kept = kept, kept[start.at :]
    if len(kept) < (wanted := FEWEST if _end_known(seen) else _TOLD):
        is_bounded = bool(seen.is_bounded) and len(whole) >= FEWEST and not nearly.any()
        if is_bounded or LITTLE < seen.occupancy[whole[0]] >= seen.occupancy[whole[-1]] - _FELL:
            return _level(seen, whole, 0.0, is_bounded)  # but for a block or two at the end, or with a bound
        why = "" if wanted == FEWEST else ", to tell a pool that fills from windows that fill and level off"
        raise _refusal(seen, f"rises in {len(kept)} rows only: give {wanted} or more of them{why}")
    live_T, notes = _live(seen, kept)
    kind = _kind(seen.t_s[kept], seen.occupancy[kept], live_T, start.rho0, full=bool(nearly.any()))
    if kind is None:
        return _level(seen, kept, start.rho0, seen.bound is not None)
    if kind == "bent":
        return _late_rise(seen.t_s[kept], seen.occupancy[kept])
    if not start.seen:
        began = f"the series begins at {seen.occupancy[0]:.0%}"
        notes = (*notes, f"{began}: what came before is taken for a straight line")
    return Rise(kind, start, seen.t_s[kept], seen.occupancy[kept], live_T, notes)


def _end_known(seen: Series) -> bool:
    """Whether it is told what the rise leads to: the pool was full, or it is known whether calls have a
    bound."""
    stalls = seen.stalled is not None and bool((seen.stalled > 0).any())
    told = seen.promised is not None or seen.windowed is not None
    return stalls or told or bool((seen.occupancy >= _NEARLY).any())


def _live(seen: Series, kept: NDArray[np.int_]) -> tuple[Array | None, tuple[str, ...]]:
    """Live calls in the rows of a rise, and a note where nobody is told to hold what is held: then None.

    Lone rows of 0 are as their neighbours are: somebody held what they hold.
    """
    if seen.sessions is None:
        return None, ()
    told = kept[seen.sessions[kept] > 0.0]
    if len(told) == 0:
        return None, ("sessions is 0 while blocks are held: it is left out, and no rate of one session told",)
    return np.maximum(np.interp(seen.t_s[kept], seen.t_s[told], seen.sessions[told]), 1.0), ()


def _level(seen: Series, kept: NDArray[np.int_], rho0: float, is_bounded: bool) -> Rise:
    """The rows of a pool that stays as it is, or that cannot fill since its calls have a bound. FieldError
    where they are not, with what would do: of a file and of a live server alike."""
    t_T, rho_T = seen.t_s[kept], seen.occupancy[kept]
    live_T, notes = _live(seen, kept) if len(kept) else (None, ())
    is_bounded = is_bounded and len(kept) >= FEWEST
    is_held = len(kept) >= FEWEST and rho_T[-1] > LITTLE
    if not is_bounded and not (is_held and _is_level(t_T, rho_T, live_T)):
        raise _refusal(seen, _no_rise(seen))
    if not seen.is_bounded and len(kept) < _TOLD:
        raise _refusal(
            seen, f"is level in {len(kept)} rows only: give {_TOLD} or more, to tell that it stays"
        )
    return Rise("level", Start(0, float(t_T[0]), rho0, False), t_T, rho_T, live_T, notes)


def _is_level(t_T: Array, rho_T: Array, live_T: Array | None) -> bool:
    """Whether the pool is level, or is but for calls that come and go."""
    return is_level(t_T, rho_T) or (live_T is not None and is_level(t_T, rho_T * live_T[-1] / live_T))


def _refusal(seen: Series, why: str) -> FieldError:
    of = f"{seen.name}: kv_occupancy" if seen.name else "kv_occupancy"
    return FieldError(of, round(float(seen.occupancy[-1]), 4), why)


def _no_rise(seen: Series) -> str:
    """What is wrong, and what would do."""
    rho_T, peak = seen.occupancy, int(np.argmax(seen.occupancy))
    most = float(rho_T[peak])
    if rho_T[0] >= _NEARLY:
        return "is full from the first row on: look from before the pool fills"
    if most - rho_T[0] > _FELL and most - rho_T[-1] > _FELL:
        fell = f"rose to {most:.3g} by {seen.t_s[peak]:.1f} s and fell again"
        return f"{fell}: nothing fills at the end; look while calls fill it"
    if rho_T[-1] < rho_T[0] - _FELL:
        return f"falls from {rho_T[0]:.3g} to {rho_T[-1]:.3g}: look while the pool fills or is level"
    return "rises by too little to tell whether it goes on: look for longer, or while the pool fills"


def _kind(
    t_T: Array, rho_T: Array, live_T: Array | None, rho0: float, *, full: bool
) -> Literal["ramp", "bent", "plateau"] | None:
    """What the rows show; None where they do not rise."""
    # As if no call had come or gone: a pool that a window bounds still rises when more calls join.
    even_T = rho_T if live_T is None else rho0 + (rho_T - rho0) * live_T[-1] / live_T
    kind = "ramp" if full else trend(t_T, even_T)  # below a full pool there was no plateau
    if kind == "bent":
        kind = trend(t_T, rho_T)  # the pool itself must rise: calls that left do not come back
    return kind if rises(t_T, even_T, to_the_end=kind == "ramp") else None


def _late_rise(t_T: Array, rho_T: Array) -> Rise:
    """The end of a rise that has become much slower: nothing before it tells of what comes."""
    late = int(np.argmax(late_rows(t_T)))
    note = f"the pool fills much slower since {t_T[late]:.1f} s: only what came after is carried on"
    start = Start(late, float(t_T[late]), float(rho_T[late]), True)
    return Rise("ramp", start, t_T[late + 1 :], rho_T[late + 1 :], None, (note,))


def find_start(t_T: Array, rho_T: Array) -> Start:
    """Where the pool last began to fill. The last row must lie above the first by more than LITTLE."""
    risen = int(np.argmax(rho_T > rho_T[0] + LITTLE))
    rate = (rho_T[-1] - rho_T[0]) / max(t_T[-1] - t_T[risen - 1], 1e-9)
    waited = t_T[risen - 1] - t_T[0]
    # A pool that stays level for as long as would have filled 2 % of it was waiting for its first call.
    if rho_T[0] <= 0.02 or waited * rate > 0.02:
        at = int(np.flatnonzero(rho_T <= rho_T[0] + LITTLE)[-1]) + 1
        empty = int(np.flatnonzero(rho_T[:at] <= rho_T[0])[-1])
        start_s = _back_to(t_T[at:], rho_T[at:] - rho_T[0])
        return Start(at, float(np.clip(start_s, t_T[empty], t_T[at])), float(rho_T[0]), True)
    return Start(0, min(_back_to(t_T, rho_T), float(t_T[0])), 0.0, False)


def _back_to(t_T: Array, rho_T: Array) -> float:
    """When the line through the first quarter of the rise was at 0; where it falls, the first time."""
    early = max(int(np.argmax(rho_T >= rho_T[0] + (rho_T.max() - rho_T[0]) / 4)), 4)
    if np.ptp(t_T[:early]) == 0.0:
        return float(t_T[0])
    slope = np.polyfit(t_T[:early] - t_T[0], rho_T[:early], 1)[0]
    return float(t_T[0] - rho_T[0] / slope) if slope > 0.0 else float(t_T[0])
