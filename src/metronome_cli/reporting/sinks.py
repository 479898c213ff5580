"""`probe sinks` as tables and a picture.

Knows:   the `results` of a probe-sinks report, matplotlib.
Ignores: how attention was watched, files' names, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tables import Table, share

Results = Mapping[str, Any]


def sinks_tables(results: Results) -> list[Table]:
    """Shares by how many first tokens are kept, and where the parts of the chat begin."""
    columns = (
        "first tokens",
        "attention on them",
        "if all drew the same",
        "heads above 30 %",
        "strongest head",
    )
    rows = [
        (str(row["k"]), *(share(row[key]) for key in ("share", "even", "heads_above", "most")))
        for row in results["kept"]
    ]
    marks, spelled = results["marks"], results["spelled"]
    parts = [
        (name, str(at), spelled[at] if at < len(spelled) else "")
        for name, at in (("header", 0), *((part, marks[part]) for part in ("content", "generated", "text")))
    ]
    strongest = [(str(row["place"]), row["token"], share(row["share"], 2)) for row in results["strongest"]]
    return [
        Table("Attention on the first tokens (mean over layers and heads)", columns, tuple(rows)),
        Table("Where the chat's parts begin", ("part", "place", "token"), tuple(parts)),
        Table("Places that draw most", ("place", "token", "attention"), tuple(strongest)),
    ]


def draw_sinks(path: Path, title: str, results: Results) -> None:
    """Write a PNG: shares by layer and head, and the mean over heads by place with the three marks."""
    # matplotlib takes half a second to load; the tables do not need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    heat, curve = figure.subplots(2, 1, height_ratios=(3, 2))
    kept = str(max(results["suggested"], 1))
    image = heat.imshow(
        list(zip(*results["heads"][kept], strict=True)), aspect="auto", vmin=0, vmax=1, cmap="viridis"
    )
    figure.colorbar(image, ax=heat, label="share of the head's attention")
    first = "the first token" if kept == "1" else f"the first {kept} tokens"
    heat.set(title=f"on {first}, by layer and head", xlabel="layer", ylabel="head")
    heat.yaxis.get_major_locator().set_params(integer=True)
    curve.plot(range(len(results["places"])), results["places"], color="#000000", linewidth=0.9)
    for (name, key), colour in zip(
        (("header ends", "header"), ("first content", "content"), ("first generated", "generated")),
        ("#D55E00", "#0072B2", "#009E73"),
        strict=True,
    ):
        at = results["marks"][key]
        curve.axvline(at, color=colour, linestyle="--", label=f"{name}, {at}")
    curve.set(xlabel="place", ylabel="mean share of attention", yscale="log")
    curve.set_xlim(-3, len(results["places"]))  # the first place is often the only peak
    curve.grid(alpha=0.3)
    curve.legend(loc="upper right", fontsize="small")
    figure.suptitle(title)
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})
