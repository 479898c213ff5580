"""How many calls a device holds: what a tick costs, carried to numbers of calls that were not measured.

Knows:   ticks at several N, a budget, and the margin that is to be left of it.
Ignores: files, tables, drawing, and how long calls last (runtime/simulator.py).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from ..errors import NOTHING, FieldError, ProfileError
from ..runtime.cost import Cost
from .ticks import Ticks

FEWEST = 10  # ticks at one N, for that N to count as measured
_LONGEST_S = 3600.0  # of a budget
_LEVELS = 3  # such N: two for a line, and one that is held out
_BLOCK = 5  # neighbouring ticks, which are not independent of each other, are drawn together
_MOST_FITTED = 3000  # ticks; more are thinned by a seeded draw
_MOST_SESSIONS = 100_000
_EXACT = 1e-3  # of a tick: residuals below that are no noise
_QUANTILES = 101  # fewer would draw one bad tick out over many


@dataclass(frozen=True, slots=True)
class Asked:
    """`percentile` of ticks are to leave `margin` of `budget_s` free; None: the period of the beat."""

    budget_s: float | None = None
    margin: float = 0.2
    percentile: float = 95.0
    level: float = 0.9  # of the interval
    seed: int = 0
    resamples: int = 200  # of the bootstrap behind the interval

    def __post_init__(self) -> None:
        if self.budget_s is not None and not 0 < self.budget_s <= _LONGEST_S:
            raise ProfileError("budget", self.budget_s, f"use more than 0 seconds, at most {_LONGEST_S:g}")
        if not 0 <= self.margin < 1:
            raise ProfileError("margin", self.margin, "use a share, 0 to below 1")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One N, predicted from the ticks at all others. Seconds; errors are shares of what was measured."""

    n: int
    ticks: int
    p50_s: float
    p95_s: float
    predicted_p50_s: float
    predicted_p95_s: float

    @property
    def errors(self) -> tuple[float, float]:
        """Of p50 and p95, above 0 where the prediction was too long."""
        return self.predicted_p50_s / self.p50_s - 1, self.predicted_p95_s / self.p95_s - 1


@dataclass(frozen=True, slots=True)
class Capacity:
    """The N that fits. Ceilings in calls, None without one; 0 when not even one call fits."""

    deadline_sessions: int
    low: int
    high: int
    memory_sessions: int | None
    limit_s: float  # the budget less the margin
    budget_s: float
    cost: Cost
    of: Carried
    held_out: tuple[HeldOut, ...]

    @property
    def n(self) -> int:
        """What is met first."""
        memory = self.memory_sessions
        return self.deadline_sessions if memory is None else min(self.deadline_sessions, memory)

    @property
    def binds(self) -> Literal["deadline", "memory"]:
        return "deadline" if self.n == self.deadline_sessions else "memory"

    @property
    def worst(self) -> float:
        """The largest error of all predictions."""
        return max(abs(error) for held in self.held_out for error in held.errors)


class Carried:
    """Measured ticks with the cost fitted to them, carried to any number of calls.

    A tick of n calls is a measured one with n times its calls. What it holds grows as they do. What they
    bring and say is n times the mean of a call and tick, and differs from that by sqrt(n / calls) times what
    the measured tick differed by, as sums of independent callers do. It lies as far from the line, in
    proportion, as the measured tick.
    """

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks
        self.coefficients = fit_cost(ticks)
        self.ratio_T = ticks.took_T / (_loads(ticks) @ self.coefficients)
        calls = ticks.sessions_T.sum()
        self.tokens_in, self.tokens_out = ticks.tokens_in_T.sum() / calls, ticks.tokens_out_T.sum() / calls
        self.blocks = ticks.blocks_T.sum() / calls  # held by a call, in the mean

    def at(self, n: int) -> NDArray[np.float64]:
        """[T] seconds that ticks of `n` calls take, one for each that was measured."""
        ticks = self._ticks
        growth_T = n / ticks.sessions_T
        load_T5 = np.column_stack(
            (
                np.ones(len(ticks)),
                np.full(len(ticks), n),
                ticks.blocks_T * growth_T,
                self._tokens(ticks.tokens_in_T, self.tokens_in, growth_T),
                self._tokens(ticks.tokens_out_T, self.tokens_out, growth_T),
            )
        )
        carried: NDArray[np.float64] = load_T5 @ self.coefficients * self.ratio_T
        return carried

    def within(self, limit_s: float, percentile: float) -> int:
        """The most calls of which `percentile` of ticks take at most `limit_s`; 0 to 100,000."""
        counts = range(1, _MOST_SESSIONS + 1)
        return bisect_right(counts, limit_s, key=lambda n: float(np.percentile(self.at(n), percentile)))

    def cost(self) -> Cost:
        """The line as a simulator takes it."""
        ratios = np.quantile(self.ratio_T, np.linspace(0, 1, _QUANTILES))
        fixed, session, block, token_in, token_out = map(float, self.coefficients)
        return Cost(fixed, session, block, token_in, token_out, tuple(map(float, ratios)))

    def _tokens(
        self, tokens_T: NDArray[np.float64], mean: float, growth_T: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        sessions_T = self._ticks.sessions_T
        beyond_T = (tokens_T - mean * sessions_T) * np.sqrt(growth_T)
        return np.maximum(0.0, mean * sessions_T * growth_T + beyond_T)


def plan(ticks: Ticks, asked: Asked) -> Capacity:
    """The most calls that leave the margin, with an interval, and how well each N is told by the others.

    The deadline's N is where the percentile of the carried ticks passes budget x (1 - margin). The interval
    is a bootstrap over blocks of neighbouring ticks. Memory's N is the pool by the blocks that a
    call reserves; calls without a bound have none: they fill any pool, sooner or later (paper, "The model").
    FieldError for too few N or ticks, or a beat whose period is not told.
    """
    budget_s = _budget(ticks, asked)
    limit_s = budget_s * (1 - asked.margin)
    kept = _thinned(ticks, asked.seed)
    levels = _levels(kept)
    carried = Carried(kept)
    low, high = _interval(kept, lambda drawn: drawn.within(limit_s, asked.percentile), asked)
    most = carried.within(limit_s, asked.percentile)
    return Capacity(
        deadline_sessions=most,
        low=min(low, most),
        high=max(high, most),
        memory_sessions=_ceiling(ticks),
        limit_s=limit_s,
        budget_s=budget_s,
        cost=carried.cost(),
        of=carried,
        held_out=tuple(_hold_out(kept, n) for n in levels),
    )


def fit_cost(ticks: Ticks) -> NDArray[np.float64]:
    """[5] seconds: fixed, a call, a resident block, a token read, a token said; none below 0.

    Huber's loss, in shares of the median tick of as many calls: a tick that something else held up counts
    little, and one of many calls no more than one of few. Loads that grow together share their cost as they
    like; their sum is what is known.
    """
    usual_T = _usual(ticks)
    shares_T5 = _loads(ticks) / usual_T[:, None]
    size_5 = np.where(shares_T5.any(axis=0), shares_T5.max(axis=0), 1.0)
    even_T5, took_T = shares_T5 / size_5, ticks.took_T / usual_T

    def off(part_5: NDArray[np.float64]) -> NDArray[np.float64]:
        return even_T5 @ part_5 - took_T

    def slopes(_: NDArray[np.float64]) -> NDArray[np.float64]:
        return even_T5

    start_5, _ = optimize.nnls(even_T5, took_T)
    noise = max(_EXACT, float(stats.median_abs_deviation(off(start_5), scale="normal")))
    found = optimize.least_squares(
        off,
        start_5,
        jac=slopes,
        bounds=(0.0, np.inf),
        loss="huber",
        f_scale=noise,
    )
    coefficients: NDArray[np.float64] = found.x / size_5
    return coefficients


def _loads(ticks: Ticks) -> NDArray[np.float64]:
    """[T, 5], as `Cost.seconds` takes them."""
    ones = np.ones(len(ticks))
    return np.column_stack((ones, ticks.sessions_T, ticks.blocks_T, ticks.tokens_in_T, ticks.tokens_out_T))


def _usual(ticks: Ticks) -> NDArray[np.float64]:
    """[T] the median of all ticks of as many calls."""
    usual_T = np.empty(len(ticks))
    for n in np.unique(ticks.sessions_T):
        usual_T[ticks.sessions_T == n] = np.median(ticks.took_T[ticks.sessions_T == n])
    return usual_T


def _levels(ticks: Ticks) -> list[int]:
    """Every N with ticks enough."""
    counts = dict(zip(*np.unique(ticks.sessions_T, return_counts=True), strict=True))
    levels = [int(n) for n, count in counts.items() if count >= FEWEST]
    if len(levels) < _LEVELS:
        names = ", ".join(ticks.names)
        cure = f"give traces at {_LEVELS} or more numbers of sessions, with {FEWEST} or more ticks each"
        raise FieldError(f"{names}: sessions", {int(n): int(count) for n, count in counts.items()}, cure)
    return levels


def _budget(ticks: Ticks, asked: Asked) -> float:
    budget_s = asked.budget_s or ticks.period_s
    if budget_s is None:
        raise FieldError(
            f"{', '.join(ticks.names)}: due",
            NOTHING,
            "the runs' beats differ, or are not told: give a --budget",
        )
    return budget_s


def _thinned(ticks: Ticks, seed: int) -> Ticks:
    if len(ticks) <= _MOST_FITTED:
        return ticks
    return ticks.only(np.sort(np.random.default_rng(seed).choice(len(ticks), _MOST_FITTED, replace=False)))


def _ceiling(ticks: Ticks) -> int | None:
    """Calls that the pool can promise their blocks; None where they have no bound, or no pool is told."""
    bound = float(np.median(ticks.reserved_T / ticks.sessions_T))
    return int(ticks.pool / bound) if ticks.pool and bound > 0 else None


def _interval(ticks: Ticks, told: Callable[[Carried], int], asked: Asked) -> tuple[int, int]:
    """The range that is to hold the figure, by a bootstrap over blocks of neighbouring ticks."""
    runs = np.split(np.arange(len(ticks)), np.flatnonzero(np.diff(ticks.run_T)) + 1)
    blocks = [block for run in runs for block in np.array_split(run, max(1, len(run) // _BLOCK))]
    drawn = stats.bootstrap(
        (np.arange(len(blocks)),),
        lambda chosen: float(told(Carried(ticks.only(np.concatenate([blocks[int(n)] for n in chosen]))))),
        vectorized=False,
        n_resamples=asked.resamples,
        confidence_level=asked.level,
        method="percentile",
        rng=np.random.default_rng(asked.seed),
    ).confidence_interval
    return int(np.floor(drawn.low)), int(np.ceil(drawn.high))


def _hold_out(ticks: Ticks, n: int) -> HeldOut:
    out_T = ticks.sessions_T == n
    measured = np.percentile(ticks.took_T[out_T], (50, 95))
    predicted = np.percentile(Carried(ticks.only(~out_T)).at(n), (50, 95))
    return HeldOut(n, int(out_T.sum()), *map(float, (*measured, *predicted)))
