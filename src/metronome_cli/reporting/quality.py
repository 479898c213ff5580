"""A probe's grid for a reader: tables, a heat map of what each bound costs, and curves by age.

Knows:   the `results` of a probe-quality report.
Ignores: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .tables import NOTHING, Table

Row = Mapping[str, Any]
_MODES = (("turn", "turn-based"), ("free", "free-running"))


def quality_tables(results: Row) -> list[Table]:
    """What each bound keeps; then what it costs."""
    rows = results["rows"]
    repeated = [_repeat_table(rows)] if any("repeat" in row for row in rows) else []
    return [_answers_table(rows), _costs_table(rows), *repeated]


def _answers_table(rows: Sequence[Row]) -> Table:
    columns = ["bound"]
    for kind, words in _MODES:
        if any(kind in row for row in rows):
            columns += [f"{words}: answered", "lost", "safe"]
    if any("free" in row for row in rows):
        columns.append("recalled")
    shown = []
    for row in rows:
        cells = [row["bound"]]
        for kind, _ in _MODES:
            if any(kind in other for other in rows):
                cells += _answers(row.get(kind))
        if "recalled" in columns:
            cells.append(_share((row.get("free") or {}).get("recalled")))
        shown.append(tuple(cells))
    return Table("Answers, with 95 % intervals over calls", tuple(columns), tuple(shown))


def _answers(of: Row | None) -> list[str]:
    if of is None:
        return [NOTHING] * 3
    lost = of.get("lenient_difference")
    lost_shown = NOTHING if lost is None else _interval({k: -100 * v for k, v in _flipped(lost).items()}, "%")
    safe = {True: "yes", False: "no", None: NOTHING}[of["safe"]]
    return [_interval({k: 100 * v for k, v in of["lenient"].items()}, "%"), lost_shown, safe]


def _flipped(of: Row) -> dict[str, float]:
    return {"mean": of["mean"], "low": of["high"], "high": of["low"]}


def _costs_table(rows: Sequence[Row]) -> Table:
    columns = (
        "bound",
        "text: ppl",
        "against unbounded",
        "said: ppl",
        "repeated",
        "pool per call",
        "ms per frame",
    )
    shown = []
    for row in rows:
        stream, played = row.get("stream") or {}, row.get("free") or row.get("turn") or {}
        shown.append(
            (
                row["bound"],
                _interval(stream.get("ppl")),
                _interval(stream.get("ratio"), digits=3),
                _interval(played.get("gen_ppl")),
                _share((played.get("repeated_trigrams") or {}).get("mean")),
                NOTHING if "pool_share" not in played else f"{100 * played['pool_share']:.1f} %",
                NOTHING if "ms_per_frame" not in played else f"{played['ms_per_frame']:.0f}",
            )
        )
    return Table("Costs", columns, tuple(shown))


def _repeat_table(rows: Sequence[Row]) -> Table:
    """What a listener hears of the sentence, beside what the model wrote and the voice alone."""
    columns = ("bound", "sentence lies", "written: WER", "spoken: WER", "spoken: CER", "voice alone: WER")
    shown = [
        (
            row["bound"],
            f"{place['place']} (W={place['window']})",
            _interval(place["model_wer"], digits=2),
            _interval(place["spoken_wer"], digits=2),
            f"{place['spoken_cer']:.2f}",
            NOTHING if place["voice_wer"] is None else f"{place['voice_wer']:.2f}",
        )
        for row in rows
        if "repeat" in row
        for place in row["repeat"]["places"]
    ]
    return Table("Repeat after me, errors against the sentence", columns, tuple(shown))


def _interval(of: Row | None, unit: str = "", digits: int = 1) -> str:
    if of is None:
        return NOTHING
    if unit == "%":
        return f"{of['mean']:.0f} [{of['low']:.0f}, {of['high']:.0f}] %"
    return f"{of['mean']:.{digits}f} [{of['low']:.{digits}f}, {of['high']:.{digits}f}]"


def _share(of: float | None) -> str:
    return NOTHING if of is None else f"{100 * of:.0f} %"


def draw_quality(path: Path, results: Row) -> None:
    """Write a PNG: answers lost by window and sinks (a heat map a mode), and answers by age."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = results["rows"]
    modes = [(kind, words) for kind, words in _MODES if any(kind in row for row in rows)]
    figure = Figure(figsize=(12.0, 4.2 * max(1, len(modes))), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(max(1, len(modes)), 2, squeeze=False)
    for (left, right), (kind, words) in zip(panels, modes, strict=True):
        _heat(left, rows, kind, words)
        _ages(right, rows, kind, words)
    figure.suptitle(results["verdict"], wrap=True, fontsize=10)
    figure.savefig(path, dpi=110)


def _heat(panel: Any, rows: Sequence[Row], kind: str, words: str) -> None:
    """Windows across, sinks up; recycling is a row of its own."""
    bounded = [row for row in rows if row["policy"] != "unbounded" and kind in row]
    if not bounded:
        panel.set_axis_off()
        return
    across = sorted({row["window"] for row in bounded})
    up = list(dict.fromkeys(_sinks_of(row) for row in bounded))
    panel.set_title(f"{words}: answers lost against unbounded, points")
    panel.set_xticks(range(len(across)), [str(window) for window in across])
    panel.set_yticks(range(len(up)), up)
    panel.set(xlabel="window W", xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5))
    lost = [[float("nan")] * len(across) for _ in up]
    for row in bounded:
        difference = row[kind].get("lenient_difference")
        if difference:
            value = -100 * difference["mean"]
            x, y = across.index(row["window"]), up.index(_sinks_of(row))
            lost[y][x] = value
            mark = "" if row[kind]["safe"] else "\nnot safe"
            panel.text(x, y, f"{value:.0f}{mark}", ha="center", va="center", fontsize=9)
    panel.imshow(lost, cmap="cividis_r", vmin=0, vmax=100, aspect="auto", alpha=0.6, origin="lower")


def _sinks_of(row: Row) -> str:
    if row["policy"] == "recycle":
        return "recycle"
    return f"S={row['sinks']}" + (" absolute" if row["bound"].endswith("absolute") else "")


def _ages(panel: Any, rows: Sequence[Row], kind: str, words: str) -> None:
    for number, row in enumerate(row for row in rows if kind in row):
        ages = row[kind]["by_age"]
        panel.plot(
            [age["age_tokens"] for age in ages],
            [100 * age["lenient"] for age in ages],
            marker="osv^Dx*"[number % 7],
            linestyle=("-", "--", ":", "-.")[number % 4],
            label=row["bound"],
        )
    panel.set(
        title=f"{words}: answered by age of the call",
        xlabel="tokens heard and said before",
        ylabel="answered, %",
        ylim=(-3, 103),
    )
    panel.legend(fontsize=8)
    panel.grid(alpha=0.3)
