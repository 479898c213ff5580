"""A probe's grid for a reader: tables, a heat map of what each bound costs, and curves by age.

Knows:   the `results` of a probe-quality report.
Ignores: how anything was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from .tables import NOTHING, Table

Row = Mapping[str, Any]
_MODES = (("turn", "turn-based"), ("free", "free-running"))
_MARKERS, _LINES = "osv^Dx*", ("-", "--", ":", "-.")


def quality_tables(results: Row) -> list[Table]:
    """What each bound keeps; then what it costs."""
    rows = results["rows"]
    modes = [(kind, words) for kind, words in _MODES if any(kind in row for row in rows)]
    tables = [_answers_table(rows, kind, words) for kind, words in modes]
    tables += [_perplexity_table(rows), _costs_table(rows)]
    tables += [_slopes_table(rows, kind, words) for kind, words in modes]
    if any("stream" in row for row in rows):
        tables.append(_stream_table(rows))
    if any("repeat" in row for row in rows):
        tables.append(_repeat_table(rows))
    known = [table.known() for table in tables]
    return [table for table in known if len(table.columns) > 1]


def _answers_table(rows: Sequence[Row], kind: str, words: str) -> Table:
    columns = ["bound", "answered, %", "strictly, %", "lost, %", "safe"]
    played = [(row["bound"], row[kind]) for row in rows if kind in row]
    heard = any("heard_wer" in of for _, of in played)
    spoke = any("asr_wer" in of for _, of in played)
    columns += ["last, %", "recall, %"] * (kind == "free") + ["ears: WER"] * heard + ["speech: WER"] * spoke
    shown = []
    for bound, of in played:
        cells = [bound, *_answers(of)]
        if kind == "free":
            cells += [_percent(of["fresh"]), _percent(of["recalled"])]
        if heard:
            cells.append(f"{of['heard_wer']:.3f}" if "heard_wer" in of else NOTHING)
        if spoke:
            cells.append(_interval(of.get("asr_wer"), digits=2))
        shown.append(tuple(cells))
    one = all(of["lenient"]["high"] is None or not isfinite(of["lenient"]["high"]) for _, of in played)
    over = "of one call each, which has no interval" if one else "95 % intervals over calls"
    return Table(f"{words}: answers, {over}", tuple(columns), tuple(shown))


def _answers(of: Row) -> list[str]:
    lost = of.get("lenient_difference")
    return [
        _interval(_scaled(of["lenient"], 100), 0),
        _interval(_scaled(of["strict"], 100), 0),
        NOTHING if lost is None else _interval(_scaled(_flipped(lost), -100), 0),
        {True: "yes", False: "no", None: NOTHING if of["outgrown"] else "not tried"}[of["safe"]],
    ]


def _flipped(of: Row) -> dict[str, float]:
    return {"mean": of["mean"], "low": of["high"], "high": of["low"]}


def _perplexity_table(rows: Sequence[Row]) -> Table:
    columns = ("bound", "of a text", "over unbounded's", "of what was said", "trigrams repeated, %")
    shown = []
    for row in rows:
        stream, played = row.get("stream") or {}, row.get("free") or row.get("turn") or {}
        repeated = (played.get("repeated_trigrams") or {}).get("mean")
        shown.append(
            (
                row["bound"],
                _interval(stream.get("ppl")),
                _interval(stream.get("ratio"), digits=3),
                _interval(played.get("gen_ppl")),
                _percent(repeated),
            )
        )
    judged = any(cell != NOTHING for row in shown for cell in row[1:-1])
    return Table("Perplexity" if judged else "Repetition", columns, tuple(shown))


def _costs_table(rows: Sequence[Row]) -> Table:
    """What a call takes: of the pool at its most, and of a frame when every window is full."""
    shown = []
    for row in rows:
        played = row.get("free") or row.get("turn") or {}
        share = f"{100 * played['pool_share']:.1f}" if "pool_share" in played else NOTHING
        pace = f"{row['pace']['ms_per_frame']:.0f}" if "pace" in row else NOTHING
        shown.append((row["bound"], share, pace))
    paced = next((row["pace"] for row in rows if "pace" in row), None)
    column = f"ms per frame of {paced['sessions']} calls" if paced else "ms per frame"
    return Table("Costs", ("bound", "share of the pool per call, %", column), tuple(shown))


def _slopes_table(rows: Sequence[Row], kind: str, words: str) -> Table:
    """The sign that a bound decays: what its scores gain or lose with age, less the control's."""
    columns = ("bound", "answered", "trigrams repeated", "log-ppl said")
    shown = []
    for row in rows:
        if kind in row:
            slopes = row[kind]["slopes_per_1000_tokens"]
            points = [_points(slopes.get(score)) for score in ("lenient", "repeated_trigrams")]
            shown.append((row["bound"], *points, _interval(slopes.get("gen_nll"), digits=2)))
    return Table(
        f"{words}: change per 1000 tokens of age, less unbounded's (points, nats)", columns, tuple(shown)
    )


def _stream_table(rows: Sequence[Row]) -> Table:
    """Perplexity of a text by the age of the session that reads it."""
    read = [row for row in rows if "stream" in row]
    ages = (f"{cut['from']:,}-{cut['to']:,}" for cut in read[0]["stream"]["by_age"])
    shown = [
        (
            row["bound"],
            *(_interval(cut) for cut in row["stream"]["by_age"]),
            _interval(row["stream"].get("slope_per_1000_tokens"), digits=3),
        )
        for row in read
    ]
    return Table(
        "Perplexity of the text by age in tokens; its log's change per 1000, less unbounded's",
        ("bound", *ages, "change"),
        tuple(shown),
    )


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


def _interval(of: Row | None, digits: int = 1) -> str:
    """A mean with its interval; of a single call, which bounds nothing, the mean alone."""
    if of is None:
        return NOTHING
    # Of one call an interval reaches to infinity, which a report that was saved has as null.
    if not all(end is not None and isfinite(end) for end in (of["low"], of["high"])):
        return f"{of['mean']:.{digits}f}"
    return f"{of['mean']:.{digits}f} [{of['low']:.{digits}f}, {of['high']:.{digits}f}]"


def _points(of: Row | None) -> str:
    return _interval(None if of is None else _scaled(of, 100))


def _scaled(of: Row, factor: float) -> dict[str, float | None]:
    # Adding 0 makes a plain 0 of what would read "-0".
    return {name: None if value is None else factor * value + 0.0 for name, value in of.items()}


def _percent(of: float | None) -> str:
    return NOTHING if of is None else f"{100 * of:.0f}"


def draw_quality(path: Path, results: Row) -> None:
    """Write a PNG: answers lost by window and sinks (a heat map a mode), and answers by age."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = results["rows"]
    modes = [(kind, words) for kind, words in _MODES if any(kind in row for row in rows)]
    read = [row for row in rows if "stream" in row]
    lines = len(modes) + bool(read)
    figure = Figure(figsize=(13.5, 4.2 * max(1, lines)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(max(1, lines), 2, squeeze=False)
    for (left, right), (kind, words) in zip(panels, modes, strict=False):
        _heat(left, rows, kind, words)
        _ages(right, rows, kind, words)
    if read:
        _stream(panels[-1], read)
    figure.suptitle(results["verdict"], wrap=True, fontsize=10)
    figure.savefig(path, dpi=110)


def _stream(panels: Sequence[Any], rows: Sequence[Row]) -> None:
    """Perplexity of the text by age, and over all ages against the unbounded control's."""
    left, right = panels
    for number, row in enumerate(rows):
        ages = row["stream"]["by_age"]
        look = {"marker": _MARKERS[number % 7], "linestyle": _LINES[number % 4]}
        left.plot([cut["to"] for cut in ages], [cut["mean"] for cut in ages], label=row["bound"], **look)
    left.set(title="text: perplexity by age", xlabel="age of the session, tokens", ylabel="perplexity")
    left.set(xscale="log", yscale="log")
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_formatter("{x:g}")
    left.grid(alpha=0.3, which="both")
    left.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    paired = [row for row in rows if "ratio" in row["stream"]]
    ratios = [row["stream"]["ratio"] for row in paired]
    for place, of in enumerate(ratios):
        if of["low"] is not None and of["high"] is not None:  # one session bounds nothing
            right.plot([of["low"], of["high"]], [place, place], color="C0")
        right.plot([of["mean"]], [place], "o", color="C0")
    right.set_yticks(range(len(paired)), [row["bound"] for row in paired])
    right.set(title="text: perplexity over unbounded's", xlabel="ratio, 95 % interval")
    right.axvline(1.0, color="k", lw=0.8)
    right.grid(alpha=0.3)


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
            value = -100 * difference["mean"] + 0.0
            x, y = across.index(row["window"]), up.index(_sinks_of(row))
            lost[y][x] = value
            mark = {True: "", False: "\nnot safe", None: "\nnot tried"}[row[kind]["safe"]]
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
            marker=_MARKERS[number % 7],
            linestyle=_LINES[number % 4],
            label=row["bound"],
        )
    panel.set(
        title=f"{words}: answered by age of the call",
        xlabel="tokens heard and said before",
        ylabel="answered, %",
        ylim=(-3, 103),
    )
    panel.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    panel.grid(alpha=0.3)
