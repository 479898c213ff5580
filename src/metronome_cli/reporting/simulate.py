"""A simulated fleet as tables and a picture.

Knows:   the `results` of a simulate report, matplotlib.
Ignores: how anything was simulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .tables import NOTHING, Table, seconds, share

Results = Mapping[str, Any]


def simulate_tables(results: Results) -> list[Table]:
    """What became of the calls."""
    refused = ", ".join(f"{count:,} {reason}" for reason, count in results["refused"].items()) or "0"
    full = results["saturated"]
    rows = (
        ("devices", f"{results['devices']:,}"),
        ("calls offered", f"{results['offered']:,}"),
        ("admitted", f"{results['admitted']:,} ({share(results['admitted_share'])})"),
        ("refused", refused),
        ("most live calls at a time", f"{results['peak_live']:,}"),
        ("fullest pool", share(results["peak_occupancy"])),
        ("devices on which a call got no block", f"{full:,}" if full else "none"),
        ("the first of them at, t_sat (s)", NOTHING if not full else seconds(results["t_sat"], 1)),
        ("frames stalled", f"{results['stalled']:,} of {results['frames']:,}"),
        (f"ticks later than {results['target_s']:.3g} s", share(results["late_share"], 2)),
        ("beats skipped", f"{results['skipped']:,}"),
    )
    return [Table("Simulated", ("what", "figure"), rows)]


def draw_simulated(path: Path, title: str, results: Results) -> None:
    """Write a PNG over time: live calls above, the pools' occupancy below, with t_sat."""
    # matplotlib takes half a second to load; the tables do not need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    looks = results["looks"]
    at = [look["at"] for look in looks]
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    calls, pool = figure.subplots(2, 1, sharex=True)
    calls.plot(at, [look["live"] for look in looks], color="#0072B2")
    calls.set(ylabel="live calls, all devices", ylim=(0, None))
    pool.plot(at, [100 * look["occupancy"] for look in looks], color="#0072B2", label="mean of the devices")
    pool.plot(at, [100 * look["fullest"] for look in looks], color="#D55E00", label="fullest device")
    if results["t_sat"] is not None:
        pool.axvline(
            results["t_sat"], color="#000000", linestyle="--", label=f"t_sat, {results['t_sat']:.0f} s"
        )
    pool.set(xlabel="time (s)", ylabel="KV pool in use (%)", ylim=(0, 105), xlim=(0, at[-1]))
    pool.legend(loc="best", fontsize="small")
    for panel in (calls, pool):
        panel.grid(alpha=0.3)
    figure.suptitle(title, wrap=True)
    # No date inside: the same run drawn twice gives the same bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None})
