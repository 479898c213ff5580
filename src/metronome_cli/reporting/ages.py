"""Perplexity by session age as one picture: a line a policy, its interval shaded.

Knows:   the rows of probes.stream.summary, matplotlib.
Ignores: how a text was scored, files' names, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by every kind of colour vision. The markers differ too.
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_MARKERS = "osD^vP*X"
_LINES = ("-", "--", ":")


def draw_by_age(path: Path, title: str, panels: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a PNG of one panel a key; a row has `name` and `by_age` = [{from, to, mean, low, high}]."""
    figure = Figure(figsize=(9.0, 4.5 * len(panels)), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, rows) in zip(
        figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True
    ):
        _draw(axes, name, rows)
    figure.suptitle(title)
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})


def _draw(axes: Axes, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    ends = sorted({cut["to"] for row in rows for cut in row["by_age"]})
    for number, row in enumerate(rows):
        at, level = [cut["to"] for cut in row["by_age"]], [cut["mean"] for cut in row["by_age"]]
        turn, place = divmod(number, len(_COLOURS))
        colour, look = _COLOURS[place], _LINES[turn % len(_LINES)]
        axes.plot(
            at, level, label=row["name"], color=colour, linestyle=look, marker=_MARKERS[place], ms=4, lw=1.2
        )
        low, high = ([cut[end] for cut in row["by_age"]] for end in ("low", "high"))
        if None not in low + high:  # one session bounds nothing
            axes.fill_between(at, low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set(
        title=name,
        xlabel="age: tokens that the session has seen",
        ylabel="perplexity",
        xscale="log",
        yscale="log",
    )
    axes.set_xticks(ends, [f"{end // 1024}k" if end >= 1024 else str(end) for end in ends])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")
