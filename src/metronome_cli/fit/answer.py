"""What `metronome fit collapse-model` says of a series: a plain document, a sentence, the parts of a picture.

Knows:   forecasts, limits, and the names in the document.
Ignores: where a series came from, tables, drawing, terminals.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..errors import FieldError
from .collapse import between, fit_line
from .forecast import FULL, Forecast, forecast, score
from .limits import first_limit
from .series import Series
from .sources import Source

_BASELINE = (0.1, 0.8)  # the paper's line is fitted between these shares
_MOST_DRAWN = 600  # samples


@dataclass(frozen=True, slots=True)
class Asked:
    """What a fit is asked: `at` a share (None: everything), `level` of intervals, `session_length` in s."""

    at: float | None = None
    level: float = 0.9
    session_length: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """`told` begins with t_sat; `drawn` holds samples, curve, fan and baseline for a picture."""

    told: dict[str, Any]
    drawn: dict[str, Any]

    @property
    def left_s(self) -> float | None:
        """Seconds from the last sample used to a full pool: 0 if it is or was full, None if it never is."""
        left: float | None = self.told["left_s"]
        return left


def answer(source: Source, asked: Asked) -> Answer:
    """Forecast one source. FieldError when the series never reaches `asked.at`, or shows no rise."""
    series = source.series
    if asked.at is not None and series.occupancy.max() < asked.at:
        most = float(series.occupancy.max())
        raise FieldError(f"{series.name}: at", asked.at, f"the pool is never fuller than {most:.3g}")
    of = forecast(series, until=asked.at, level=asked.level, session_length=asked.session_length)
    if of.shape == "empty":
        most = float(series.occupancy.max())
        raise FieldError(f"{series.name}: kv_occupancy", most, "does not rise: expected a pool that fills")
    told = _told(source, of, asked)
    return Answer(told, _drawn(series, of, asked))


def _told(source: Source, of: Forecast, asked: Asked) -> dict[str, Any]:
    limit = first_limit(of, source.beats)
    told = {
        "t_sat": None if of.t_sat is None else _bounded(asdict(of.t_sat)),
        "rho0": of.rho0,
        "rate_per_session": of.rate_per_session,
        "fill_rate": of.fill_rate,
        "shape": of.shape,
        "bounded": of.bounded,
        "collapse_probability": of.collapse_probability,
        "session_length_s": asked.session_length,
        "plateau": None if of.plateau is None else asdict(of.plateau),
        "limit": asdict(limit),
        "baseline": of.baseline,
        "score": None if asked.at is None else score(source.series, of),
        "left_s": _left(source.series, of),
        "last_s": of.last_s,
        "occupancy": _last(source.series, of),
        "points": of.points,
        "at": asked.at,
        "level": asked.level,
        "notes": [*source.notes, *of.notes],
        "source": source.series.name,
    }
    return told | {"verdict": sentence(told)}


def _left(series: Series, of: Forecast) -> float | None:
    if _last(series, of) >= FULL:
        return 0.0
    return None if of.t_sat is None else max(0.0, of.t_sat.estimate - of.last_s)


def _last(series: Series, of: Forecast) -> float:
    """The last share that was used."""
    return float(series.occupancy[series.t_s <= of.last_s][-1])


def sentence(told: dict[str, Any]) -> str:
    """The document in words."""
    parts = [_pool(told)]
    if told["collapse_probability"] is not None:
        parts.append(
            f"calls of {told['session_length_s']:g} s collapse with probability "
            f"{told['collapse_probability']:.2f}"
        )
    if binds := told["limit"]["binds"]:
        parts.append(f"{'memory' if binds == 'memory' else 'the deadline'} binds first")
    return "; ".join(parts) + "."


def _pool(told: dict[str, Any]) -> str:
    if told["left_s"] == 0.0:
        at = "" if told["t_sat"] is None else f" {_seconds(told['t_sat']['estimate'])} s"
        if told["occupancy"] < FULL:
            return f"The pool was full at{at}, and is at {100 * told['occupancy']:.0f} % now"
        return f"The pool is full, since{at}" if at else "The pool is full"
    if told["t_sat"] is not None:
        low, high = (_seconds(told["t_sat"][end]) for end in ("low", "high"))
        at, left = _seconds(told["t_sat"]["estimate"]), _seconds(told["left_s"])
        if_so = "The pool" if told["bounded"] is False else "If calls have no bound, the pool"
        return f"{if_so} will be full at {at} s ({low} to {high}), {left} s from the last sample"
    level, ceiling = told["plateau"]["level"], told["plateau"]["ceiling"]
    holds = "" if ceiling is None else f"; it holds {ceiling} sessions"
    return (
        f"The pool levels off at {100 * level['estimate']:.1f} % "
        f"({100 * level['low']:.1f} to {100 * level['high']:.1f}) and does not fill{holds}"
    )


def _bounded(interval: dict[str, float]) -> dict[str, float | None]:
    """None for an end that nothing bounds: JSON has no infinity."""
    return {end: value if np.isfinite(value) else None for end, value in interval.items()}


def _seconds(value: float | None) -> str:
    if value is None:
        return "no bound"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _drawn(series: Series, of: Forecast, asked: Asked) -> dict[str, Any]:
    """Samples (thinned), the fitted curve to its end, and the baseline's line, for a picture."""
    kept = np.unique(np.linspace(0, len(series) - 1, _MOST_DRAWN).round().astype(int))
    end = float(series.t_s[-1])
    if of.t_sat is not None and np.isfinite(of.t_sat.high):
        # An interval without a near end would squeeze everything else: it is cut in the picture.
        end = max(end, min(of.t_sat.high, 2 * of.t_sat.estimate - of.last_s + 1.0))
    curve = np.linspace(series.t_s[0], end, 200)
    return {
        "source": series.name,
        "samples": {"t_s": series.t_s[kept].tolist(), "occupancy": series.occupancy[kept].tolist()},
        "curve": {"t_s": curve.tolist(), "occupancy": [of.at(t) for t in curve.tolist()]},
        "from": of.at(of.last_s),
        "line": _line(series, of),
    }


def _line(series: Series, of: Forecast) -> dict[str, float] | None:
    """The straight line behind `baseline`."""
    used = series.t_s <= of.last_s
    try:
        line = fit_line(*between(series.t_s[used], series.occupancy[used], *_BASELINE))
    except FieldError:
        return None
    return {"rho0": line.rho0, "rate": line.rate}
