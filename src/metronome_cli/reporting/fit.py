"""A fit of the collapse model as tables and a picture.

Knows:   the `results` of a fit-collapse-model report, matplotlib.
Ignores: how anything was fitted, and where the samples came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .tables import NOTHING, Table, seconds, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Results = Mapping[str, Any]
PICTURE = "fit.png"
_MOST_PANELS = 12
# The two moments are beats to minutes apart, and a reader may hold one against the other.
_FULL = "99.5 % of the blocks are held, or a call found none; silent (demo, load) is when all calls stall"

_DEADLINE = (
    "the median beat takes all of the period; `metronome fit capacity` holds p95 to less, and tells fewer"
)

_NEVER_FULL = "not in this trace: nothing to hold the forecast against"
_NOT_TOLD, _UNTOLD = "not told", "the server's own run folder tells, and its metrics page while calls are on"
_BOUND = {True: "yes", False: "no", None: "not told here: windows that still fill rise like this"}


def fit_tables(results: Results) -> list[Table]:
    """One fit in a column of facts; several as numbered rows under a list of their names, so that neither
    names nor numbers are broken in a terminal of 80 columns. Scores stand in a table of their own."""
    fits = results["fits"]
    if len(fits) == 1:
        return [Table(f"Collapse model of {fits[0]['source']}", ("what", "figure"), tuple(_facts(fits[0])))]
    columns = ("", "full at (s)", "left (s)", "straight line (s)", "levels off at", "binds first")
    numbers = [str(number) for number in range(1, len(fits) + 1)]
    names = _short([fit["source"] for fit in fits])
    rows = tuple((number, *_row(fit)) for number, fit in zip(numbers, fits, strict=True))
    shown = [
        Table("Fitted", ("", "source"), tuple(zip(numbers, names, strict=True))),
        Table("Collapse model", columns, rows),
    ]
    if scored := [(n, fit["score"]) for n, fit in zip(numbers, fits, strict=True) if fit["score"]]:
        what = ("full in fact (s)", *(name for name, _ in _off_by(scored[0][1])))
        cells = tuple((n, _full_s(score), *(cell for _, cell in _off_by(score))) for n, score in scored)
        shown.append(Table("Forecasts beside what happened", ("", *what), cells))
    if meanings := [meaning for fit in fits for meaning in _meanings(fit)]:
        shown.append(Table("In these tables", ("word", "means"), tuple(dict.fromkeys(meanings))))
    return shown


def draw_fit(path: Path, title: str, results: Results) -> None:
    """Write a PNG, a panel for each of the first 12 fits: samples, curve, where it may end, straight line."""
    # matplotlib takes half a second to load; the tables do not need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = results["drawn"][:_MOST_PANELS]
    across = 1 if len(drawn) == 1 else 2
    down = math.ceil(len(drawn) / across)
    figure = Figure(figsize=(9.0, 5.0) if across == 1 else (14.0, 4.0 * down), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    names = _short([fit["source"] for fit in results["fits"]])
    for panel, fit, shown, name in zip(panels, results["fits"], drawn, names, strict=False):
        _draw(panel, fit, shown)
        if across > 1:
            panel.set_title(name, fontsize="small", wrap=True)
    for panel in panels[len(drawn) :]:
        panel.set_axis_off()
    figure.suptitle(title, wrap=True)
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _facts(fit: Results) -> list[tuple[str, str]]:
    level = f"{100 * fit['level']:g} %"
    facts = [
        ("shape", fit["shape"]),
        (f"full at (s), {level} interval", _interval(fit["t_sat"])),
        ("left from the last sample (s)", seconds(fit["left_s"], 1)),
        ("full at, by the straight line over 10-80 % (s)", _baseline(fit)),
        ("held before the calls, rho0", share(fit["rho0"])),
        ("fill rate (% of the pool per minute)", _per_minute(fit["fill_rate"])),
        ("fill rate per session (% per minute)", _per_minute(fit["rate_per_session"])),
    ]
    if plateau := fit["plateau"]:
        facts += [
            (f"plateau, {level} interval", _level_of(fit)),
            ("share of a session, s(W)", share(plateau["per_session"], 3)),
            ("sessions that memory holds", _count(plateau["ceiling"])),
        ]
    elif fit["shape"] == "plateau":
        facts.append(("levels off at", f"{_NOT_TOLD}: {_UNTOLD}"))
    means = dict(_meanings(fit))
    if "full" in means:
        facts.append(("full means", means["full"]))
    if (fit["shape"] == "ramp" and fit["left_s"] != 0.0) or not (plateau or fit["t_sat"]):
        facts.append(("calls have a bound", _BOUND[fit.get("bounded")]))
    if fit["collapse_probability"] is not None:
        name = f"calls of {fit['session_length_s']:g} s collapse, probability"
        facts.append((name, f"{fit['collapse_probability']:.2f}"))
    facts += [("binds first", _binds(fit)), ("why", fit["limit"]["why"])]
    if fit["limit"]["deadline_sessions"] is not None:
        facts.append(("sessions within the deadline", _count(fit["limit"]["deadline_sessions"])))
        facts.append(("within the deadline means", means["deadline"]))
    if fit["score"]:
        facts += _score(fit["score"])
    return [*facts, ("samples used", f"{fit['points']}, up to {seconds(fit['last_s'], 1)} s")]


def _meanings(fit: Results) -> list[tuple[str, str]]:
    """Words of the tables, as they are meant there."""
    found = [("full", _FULL)] if fit["shape"] == "ramp" else []
    found += [("not told", _UNTOLD)] if _level_of(fit) == _NOT_TOLD else []
    return [*found, ("deadline", _DEADLINE)] if fit["limit"]["deadline_sessions"] is not None else found


def _level_of(fit: Results) -> str:
    """Where the pool levels off."""
    if fit["plateau"]:
        return _interval(fit["plateau"]["level"], 100, " %")
    return _NOT_TOLD if fit["shape"] == "plateau" else NOTHING


def _score(score: Results) -> list[tuple[str, str]]:
    """The forecast beside what happened."""
    if score["full_s"] is None:
        return [("full in fact (s)", _NEVER_FULL)]
    return [("full in fact (s)", _full_s(score)), *_off_by(score)]


def _full_s(score: Results) -> str:
    return "not seen" if score["full_s"] is None else seconds(score["full_s"], 1)


def _off_by(score: Results) -> list[tuple[str, str]]:
    held = {True: "yes", False: "no", None: NOTHING}[score["inside"]]
    return [
        ("forecast off by (s)", _off(score["error_s"], score["error_share"])),
        ("straight line off by (s)", _off(score["baseline_error_s"], score["baseline_error_share"])),
        ("in the interval", held),
    ]


def _off(error_s: float | None, of_length: float | None) -> str:
    return NOTHING if error_s is None else f"{error_s:+.1f} ({share(of_length, sign='+')})"


def _row(fit: Results) -> tuple[str, ...]:
    return (
        _interval(fit["t_sat"]),
        seconds(fit["left_s"], 1),
        _baseline(fit),
        _level_of(fit),
        _binds(fit),
    )


def _binds(fit: Results) -> str:
    """The limit; of a ramp that nothing tells the bound of, with what memory depends on."""
    binds = fit["limit"]["binds"]
    unsure = binds == "memory" and fit["shape"] == "ramp" and fit.get("bounded") is None
    return f"{binds}, if calls have no bound" if unsure and fit["left_s"] != 0.0 else binds or NOTHING


def _short(sources: list[str]) -> list[str]:
    """Sources without the folders that they share."""
    parts = [source.split("/") for source in sources]
    shared = min(map(len, parts)) - 1
    while len({tuple(words[:shared]) for words in parts}) > 1:
        shared -= 1
    return ["/".join(words[shared:]) for words in parts]


def _baseline(fit: Results) -> str:
    """Of a ramp only: a line through a plateau has an end too, which nobody should wait for."""
    return seconds(fit["baseline"] if fit["shape"] == "ramp" else None, 1)


def _interval(of: Results | None, scale: float = 1.0, unit: str = "") -> str:
    if of is None:
        return NOTHING
    ends = (NOTHING if of[end] is None else f"{scale * of[end]:.1f}" for end in ("low", "high"))
    return f"{scale * of['estimate']:.1f}{unit} ({' to '.join(ends)})"


def _per_minute(rate: float | None) -> str:
    return NOTHING if rate is None else f"{100 * 60 * rate:.3g}"


def _count(value: int | None) -> str:
    return NOTHING if value is None else f"{value:,}"


def _draw(panel: Axes, fit: Results, shown: Results) -> None:
    samples, curve, line = shown["samples"], shown["curve"], shown["line"]
    panel.plot(
        samples["t_s"], _percent(samples["occupancy"]), "o", color="#0072B2", markersize=3, label="samples"
    )
    panel.plot(curve["t_s"], _percent(curve["occupancy"]), color="#D55E00", linewidth=1.6, label="fit")
    if line and fit["shape"] == "ramp":
        ends = [curve["t_s"][0], curve["t_s"][-1]]
        heights = [100 * (line["rho0"] + line["rate"] * t) for t in ends]
        panel.plot(ends, heights, color="#999999", linewidth=0.8, label="straight line over 10-80 %")
    if fit["t_sat"]:
        _draw_moment(panel, fit, shown["from"], curve["t_s"][-1])
    if fit["plateau"]:
        _draw_level(panel, fit)
    if fit["at"] is not None:
        panel.axvline(fit["last_s"], color="#666666", linestyle=":", label="what was known ends here")
    panel.set(xlabel="time (s)", ylabel="KV pool in use (%)", ylim=(0, 105))
    panel.set_xlim(curve["t_s"][0], max(curve["t_s"][-1], samples["t_s"][-1]))
    panel.grid(alpha=0.3)
    panel.legend(loc="best", fontsize="small")


def _draw_moment(panel: Axes, fit: Results, height: float, end: float) -> None:
    """Where the pool is full, and the fan from the last sample to the earliest and the latest end."""
    moment, start = fit["t_sat"], fit["last_s"]
    low = max(start, moment["low"])
    high = end if moment["high"] is None else moment["high"]
    if high > start:
        panel.fill(
            [start, low, high],
            [100 * height, 100, 100],
            color="#D55E00",
            alpha=0.2,
            linewidth=0,
            label=f"{100 * fit['level']:g} % interval",
        )
    panel.axvline(
        moment["estimate"], color="#000000", linestyle="--", label=f"full at {moment['estimate']:.1f} s"
    )


def _draw_level(panel: Axes, fit: Results) -> None:
    level = fit["plateau"]["level"]
    panel.axhspan(100 * level["low"], 100 * level["high"], color="#009E73", alpha=0.2)
    panel.axhline(
        100 * level["estimate"],
        color="#009E73",
        linestyle="--",
        label=f"plateau, {100 * level['estimate']:.1f} %",
    )


def _percent(shares: list[float]) -> list[float]:
    return [100 * value for value in shares]
