"""A run as one picture: how full the pool was, and how fresh the answers were.

Knows:   tick and frame records, arms, matplotlib.
Ignores: how anything was measured, and terminals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..tail import FEWEST_FOR_P99, end_of
from ..trace import FrameRecord, TickRecord

# Okabe and Ito's palette: told apart by every kind of colour vision. The markers differ too.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
_MARKERS = ("o", "s", "^", "D")
_MOMENT = "#000000"


def draw_points(path: Path, title: str, points: Sequence[Mapping[str, Any]], budget_s: float | None) -> None:
    """Write a PNG of p50 and p99 (max of a few) against N, with the budget and what did not hold."""
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for number, (key, name) in enumerate(
        (("first_s", "first token"), ("last_s", "last token"), ("after_speech_s", "first token after speech"))
    ):
        told = [point for point in points if point[key]]
        if key == "after_speech_s" and any(point["last_s"] for point in points):
            continue
        middle = [point[key]["p50"] for point in told]
        ends, end = _ends([point[key] for point in told])
        for values, cut, look in ((middle, "p50", ":"), (ends, end, "-")):
            panel.plot(
                [point["n"] for point in told],
                values,
                color=_COLOURS[number],
                marker=_MARKERS[number],
                linestyle=look,
                label=f"{name}, {cut}" if told else "",
            )
    for point in points:
        if not point["held"]:
            panel.axvline(point["n"], color="#999999", linewidth=0.8, alpha=0.6)
    if budget_s:
        panel.axhline(budget_s, color=_MOMENT, linestyle="--", label=f"budget, {budget_s:g} s")
    panel.set(
        xlabel="N, calls held at once (grey: did not hold)", ylabel="seconds", xscale="log", ylim=(0, None)
    )
    tried = [point["n"] for point in points]
    panel.set_xticks(tried, [str(n) for n in tried])
    panel.set_xticks([], minor=True)
    _finish(figure, [panel], path, title)


def draw_courses(path: Path, title: str, courses: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a PNG of several runs' freshness by elapsed time; each course is the buckets of one run."""
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, 1, sharex=True)
    told_of = {name: [one for one in course if one["freshness"]] for name, course in courses.items()}
    _, end = _ends([one["freshness"]["first_s"] for told in told_of.values() for one in told])
    for number, (name, told) in enumerate(told_of.items()):
        style = {"color": _COLOURS[number % 4], "marker": _MARKERS[number % 4], "markersize": 4}
        cuts = [bucket["freshness"]["first_s"] for bucket in told]
        levels = (("p50", [cut["p50"] for cut in cuts]), (end, _ends(cuts)[0]))
        for panel, (cut, level) in zip(panels, levels, strict=True):
            ends = [(bucket["from_s"], bucket["to_s"]) for bucket in told]
            at = [end for pair in ends for end in pair]  # a level for the length of its bucket, no slope
            panel.plot(at, [y for y in level for _ in range(2)], label=name, **style)
            panel.set_ylabel(f"freshness of the first token, {cut} (s)")
    panels[1].set_xlabel("elapsed time (s)")
    for panel in panels:
        panel.set(xlim=(0, None), ylim=(0, 1.1 * panel.dataLim.y1 or None))
    _finish(figure, list(panels), path, title)


def draw(
    path: Path,
    title: str,
    ticks: Sequence[TickRecord],
    frames: Sequence[FrameRecord],
    arms: Mapping[str, Mapping[str, Any]],
    moment: Mapping[str, Any] | None = None,
) -> None:
    """Write a PNG of two panels over elapsed time. `arms` gives each arm's `started` and `frame_s`."""
    figure = Figure(figsize=(9.0, 7.0), layout="constrained")
    FigureCanvasAgg(figure)
    pool, fresh = figure.subplots(2, 1, sharex=True)
    for number, (name, arm) in enumerate(arms.items()):
        style = {"color": _COLOURS[number % 4], "marker": _MARKERS[number % 4]}
        _draw_pool(pool, [tick for tick in ticks if tick.arm == name], arm["started"], name, style)
        _draw_freshness(fresh, [frame for frame in frames if frame.arm == name], arm["started"], name, style)
    _draw_budget(fresh, arms)
    if moment:
        _draw_moment(pool, fresh, moment)
    pool.set(ylabel="KV pool in use (%)", ylim=(0, 105))
    fresh.set(ylabel="freshness of the first token (s)", xlabel="elapsed time (s)")
    fresh.set_ylim(bottom=-0.05 * fresh.get_ylim()[1])
    _finish(figure, [pool, fresh], path, title)


def _ends(cuts: Sequence[Mapping[str, float]]) -> tuple[list[float], str]:
    """What is held to a limit of each, and what it is: p99, or the largest of values too few for one."""
    ends = [end_of(cut) for cut in cuts]
    names = set(ends) or {"p99"}
    name = names.pop() if len(names) == 1 else f"p99, or max of fewer than {FEWEST_FOR_P99}"
    return [cut[end] for cut, end in zip(cuts, ends, strict=True)], name


def _finish(figure: Figure, panels: Sequence[Axes], path: Path, title: str) -> None:
    figure.suptitle(title, wrap=True)
    for panel in panels:
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[1]:
            panel.legend(loc="best", fontsize="small")
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _draw_pool(
    panel: Axes, ticks: Sequence[TickRecord], start: float, name: str, style: Mapping[str, Any]
) -> None:
    held = [tick for tick in ticks if tick.kv_total]
    at = [tick.done - start for tick in held]
    percent = [100 * tick.kv_leased / tick.kv_total for tick in held]
    panel.plot(at, percent, label=name or "pool", markersize=3, **style)


def _draw_freshness(
    panel: Axes, frames: Sequence[FrameRecord], start: float, name: str, style: Mapping[str, Any]
) -> None:
    at = [frame.due - start for frame in frames if frame.first is not None]
    late = [frame.first - frame.due for frame in frames if frame.first is not None]
    quiet = [f.due - start for f in frames if f.first is None and (f.stalled or f.speaking)]
    if at:
        panel.scatter(at, late, s=10, alpha=0.6, label=f"{name} frame".strip(), **style)
    if quiet:
        label = f"{name} frame without a token".strip()
        top = panel.get_xaxis_transform()  # at the upper edge: no freshness at all is not a good one
        panel.scatter(
            quiet, [0.97] * len(quiet), s=22, marker="x", color=style["color"], label=label, transform=top
        )


def _draw_budget(panel: Axes, arms: Mapping[str, Mapping[str, Any]]) -> None:
    budgets = [arm["frame_s"] for arm in arms.values() if arm.get("frame_s")]
    if budgets:
        panel.axhline(budgets[0], color="#666666", linestyle=":", label=f"frame budget, {budgets[0]:g} s")


def _draw_moment(pool: Axes, fresh: Axes, moment: Mapping[str, Any]) -> None:
    """The straight line, and where silence came and was to come."""
    line, until = moment["line"], moment["predicted_s"]
    if line and until is not None:
        ends = [0.0, until]
        levels = [100 * (line["rho0"] + line["rate_per_s"] * t) for t in ends]
        pool.plot(
            ends,
            levels,
            color=_MOMENT,
            linestyle="--",
            linewidth=1,
            label="rho0 + N r t, from the first third",
        )
    for key, look, label in (
        ("measured_s", "-", "silence, measured"),
        ("predicted_s", "--", "silence, predicted"),
    ):
        if moment[key] is not None:
            for panel in (pool, fresh):
                panel.axvline(
                    moment[key],
                    color=_MOMENT,
                    linestyle=look,
                    linewidth=1.2,
                    label=f"{label}: {moment[key]:.1f} s",
                )
