"""A fit of capacity as tables and a picture.

Knows:   the `results` of a fit-capacity report, matplotlib.
Ignores: how anything was fitted, and where the ticks came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tables import NOTHING, Table, seconds, share

Results = Mapping[str, Any]

_COSTS = (
    ("a tick with calls", "fixed_s"),
    ("each session", "session_s"),
    ("each resident block", "block_s"),
    ("each token read", "token_in_s"),
    ("each token said", "token_out_s"),
)


def capacity_tables(results: Results) -> list[Table]:
    """The N that fits, what a tick costs, and each N beside its prediction from the others."""
    fit = results["fit"]
    return [
        Table("Capacity", ("what", "figure"), tuple(_facts(fit))),
        Table("Cost of a tick", ("part", "ms"), tuple(_costs(fit))),
        Table(
            "Every N, predicted from the others",
            ("N", "ticks", "p50 (s)", "predicted", "off", "p95 (s)", "predicted", "off"),
            tuple(map(_held_out, fit["held_out"])),
        ),
    ]


def draw_capacity(path: Path, title: str, results: Results) -> None:
    """Write a PNG of tick time against sessions: ticks, carried percentiles, held-out predictions, budget."""
    # matplotlib takes half a second to load; the tables do not need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fit, ticks, line = results["fit"], results["drawn"]["ticks"], results["drawn"]["carried"]
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.plot(
        ticks["sessions"], ticks["took_s"], "o", color="#999999", markersize=3, alpha=0.5, label="ticks"
    )
    panel.plot(line["sessions"], line["p50_s"], color="#0072B2", label="fit, median")
    panel.plot(line["sessions"], line["cut_s"], color="#D55E00", label=f"fit, p{fit['percentile']:g}")
    held = fit["held_out"]
    for key, colour, marker in (("p50", "#0072B2", "s"), ("p95", "#D55E00", "D")):
        panel.plot(
            [point["n"] for point in held],
            [point[f"predicted_{key}_s"] for point in held],
            marker,
            color=colour,
            markerfacecolor="none",
            label=f"{key}, told from the other N",
        )
    panel.axhline(fit["budget_s"], color="#000000", label=f"budget, {fit['budget_s']:g} s")
    panel.axhline(
        fit["limit_s"], color="#000000", linestyle="--", label=f"less margin, {fit['limit_s']:.3g} s"
    )
    panel.axvline(fit["n"], color="#009E73", linestyle=":", label=f"N = {fit['n']}, {fit['binds']} binds")
    panel.set(xlabel="sessions", ylabel="tick (s)", xlim=(0, None), ylim=(0, None))
    panel.grid(alpha=0.3)
    panel.legend(loc="best", fontsize="small")
    figure.suptitle(title, wrap=True)
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _facts(fit: Results) -> list[tuple[str, str]]:
    deadline, memory, each = fit["deadline"], fit["memory_sessions"], fit["per_session"]
    return [
        ("sessions that fit", str(fit["n"])),
        ("binds first", fit["binds"]),
        (
            f"sessions within the deadline, {100 * fit['level']:g} % interval",
            f"{deadline['estimate']} ({deadline['low']} to {deadline['high']})",
        ),
        ("sessions that memory holds", NOTHING if memory is None else str(memory)),
        ("budget (s)", seconds(fit["budget_s"])),
        (f"limit of p{fit['percentile']:g}, margin {share(fit['margin'], 0)} (s)", seconds(fit["limit_s"])),
        ("blocks that a session held", f"{each['blocks']:.1f}"),
        ("tokens read / said by a session and tick", f"{each['tokens_in']:.2f} / {each['tokens_out']:.2f}"),
        ("worst error of a held-out N", share(fit["worst_error"])),
    ]


def _costs(fit: Results) -> list[tuple[str, str]]:
    return [(name, f"{1000 * fit['cost'][key]:.4g}") for name, key in _COSTS]


def _held_out(point: Results) -> tuple[str, ...]:
    cells = [str(point["n"]), str(point["ticks"])]
    for key in ("p50", "p95"):
        cells += [
            seconds(point[f"{key}_s"]),
            seconds(point[f"predicted_{key}_s"]),
            share(point[f"{key}_error"], sign="+"),
        ]
    return tuple(cells)
