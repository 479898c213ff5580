"""What `metronome fit collapse-model` says of a series: a plain document, a sentence, the parts of a picture.

Knows:   forecasts, limits, and the names in the document.
Ignores: where a series came from, tables, drawing, terminals.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
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
_MOST_SPELLS = 50  # of calls that hung up, the last ones: a day's trace may have thousands
_PARTS = (0.9, 0.75, 0.5, 0.25)  # of the most that was held: shares that are tried for --at


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
    """Forecast one source. FieldError when the series never reaches `asked.at`, or nothing follows from it.

    Where that is so of a whole trace because its calls have hung up, what came before is forecast: of the
    last ones that stayed for long enough.
    """
    try:
        return _answer(source, asked)
    except FieldError as error:
        if not source.is_over or asked.at is not None:
            raise
        for before in islice(source.series.before_hang_ups(), _MOST_SPELLS):
            with suppress(FieldError):
                return _answer(_of_those_before(source, before), asked)
        if (share := _share_that_works(source.series)) is not None:
            raise FieldError(error.field, error.value, f"{error.cure}, or ask --at {share:g}") from None
        raise


def _of_those_before(source: Source, before: Series) -> Source:
    left = source.series.t_s[len(before)]
    note = f"calls hung up from {left:.1f} s on: only what came before is fitted, as if they had stayed"
    return replace(source, series=before, notes=(*source.notes, note), hung_up_s=float(left))


def _share_that_works(series: Series) -> float | None:
    """An `at` for which there is a forecast."""
    for part in _PARTS:
        share = round(part * float(series.occupancy.max()), 2)
        if 0.01 <= share <= 0.99 and (series.occupancy >= share).any():
            with suppress(FieldError):
                if forecast(series, until=share).shape != "empty":
                    return share
    return None


def _answer(source: Source, asked: Asked) -> Answer:
    series = source.series
    if asked.at is not None and series.occupancy.max() < asked.at:
        most = float(series.occupancy.max())
        raise FieldError(f"{series.name}: at", asked.at, f"the pool is never fuller than {most:.3g}")
    if asked.at is not None and series.occupancy[0] >= asked.at:
        cure = f"the pool is at {series.occupancy[0]:.3g} in the first row: ask a share above that"
        raise FieldError(f"{series.name}: at", asked.at, cure)
    of = forecast(series, until=asked.at, level=asked.level, session_length=asked.session_length)
    if of.shape == "empty":
        most = round(float(series.occupancy.max()), 4)
        cure = "nothing is held: look while calls bring something"
        raise FieldError(f"{series.name}: kv_occupancy", most, cure)
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
        "hung_up_s": source.hung_up_s,
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
        # Of a ramp that nothing tells the bound of, all that is said up to here is under that condition.
        unsure = told["shape"] == "ramp" and told["bounded"] is None and told["left_s"] != 0.0
        so = "then " if unsure and binds == "memory" else ""
        parts.append(f"{so}{'memory' if binds == 'memory' else 'the deadline'} binds first")
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
        return f"{_if_so(told)} be full at {at} s ({low} to {high}), {left} s from the last sample"
    if told["plateau"] is None:
        return (
            f"These calls have a bound: the pool, now at {100 * told['occupancy']:.0f} %, fills until their "
            "windows are full and levels off then; where, only the server tells: fit its own run folder, or "
            "--metrics-url while calls are on"
        )
    return _plateau(told)


def _if_so(told: dict[str, Any]) -> str:
    """What a moment depends on: calls without a bound, and that they stayed."""
    unsure = told["bounded"] is None
    if told["hung_up_s"] is not None:
        return f"Had the calls stayed{', and if they have no bound' if unsure else ''}, the pool would"
    return "If calls have no bound, the pool will" if unsure else "The pool will"


def _plateau(told: dict[str, Any]) -> str:
    level, ceiling = told["plateau"]["level"], told["plateau"]["ceiling"]
    at = f"at {100 * level['estimate']:.1f} % ({100 * level['low']:.1f} to {100 * level['high']:.1f})"
    holds = "" if ceiling is None else f"; it holds {ceiling} sessions"
    if told["fill_rate"] == 0.0 and not told["bounded"]:
        return f"The pool stays {at} and will not run out while calls go on as they did{holds}"
    return f"The pool levels off {at} and does not fill{holds}"


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
