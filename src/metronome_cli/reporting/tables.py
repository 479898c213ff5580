"""Tables of plain text, and those of load and demo reports.

Knows:   the `results` of load and demo reports, and Markdown.
Ignores: terminals and colours, files, how anything was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Results = Mapping[str, Any]
NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; every row is as long as `columns`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """A GitHub table under a heading."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        cells = ("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return f"## {self.title}\n\n" + "\n".join(cells) + "\n"


def demo_tables(results: Results) -> list[Table]:
    """Both arms side by side, the moment of silence, and what had to hold."""
    return [arms_table(results["arms"]), moment_table(results), limits_table(results)]


def load_tables(results: Results) -> list[Table]:
    """One load run: limits, facts, and its course; by session age too where that says something else."""
    shown = [limits_table(results), facts_table(results), buckets_table(results)]
    if results["offered"].get("call_length") or results["offered"].get("rate_hz"):
        shown.append(ages_table(results))
    return shown


def limits_table(results: Results) -> Table:
    """What had to hold, and what was measured."""
    rows = [
        (item["name"], _value(item["limit"]), _value(item["measured"]), _verdict(item["held"]))
        for item in results["limits"]
    ]
    return Table("Limits", ("what", "limit", "measured", "held"), tuple(rows))


def facts_table(results: Results) -> Table:
    """One run in two dozen lines."""
    return Table("Run", ("what", "figure"), (*_call_facts(results), *_frame_facts(results)))


def _call_facts(results: Results) -> list[tuple[str, str]]:
    calls, offered, cancels = results["calls"], results["offered"], results.get("cancels")
    refused = ", ".join(f"{count} {reason}" for reason, count in calls["refused"].items()) or "0"
    facts = [("server", f"{offered['url']} ({results.get('protocol') or 'unknown'})")]
    facts.append(
        (
            "calls offered / opened / cut off",
            f"{calls.get('dialled', offered['sessions'])} / {calls['opened']} / {calls['cut_off']}",
        )
    )
    facts.append(("calls refused", refused))
    if calls.get("vanished"):
        facts.append(("calls that vanished", str(calls["vanished"])))
    if cancels and cancels["sent"]:
        went_on = f"{cancels['went_on'] or 'none'} went on"
        after = f" for {spread(cancels['went_on_s'])} s" if cancels["went_on"] else ""
        facts.append(("replies cancelled", f"{cancels['sent']}, {went_on}{after}"))
    if "speech_share" in results:
        facts.append(("speech, of the time of a call", share(results["speech_share"])))
    return [
        *facts,
        ("length (s)", seconds(results["elapsed_s"], 1)),
        ("frame (s)", seconds(results["frame_s"])),
    ]


def _frame_facts(results: Results) -> list[tuple[str, str]]:
    frames, client, fresh = results["frames"], results["client"], results["freshness"] or {}
    facts = [
        ("freshness, first token p50 / p90 / p99 (s)", spread(fresh.get("first_s"))),
        ("freshness, last token p50 / p90 / p99 (s)", spread(fresh.get("last_s"))),
        ("slope of freshness against age (s per minute)", _slope(results.get("slope"))),
        ("first token after speech p50 / p90 / p99 (s)", spread(results["after_speech_s"])),
        (
            "cadence (frames delivered / due)",
            f"{share(frames['cadence'])} ({frames['delivered']} / {_value(frames['due'])})",
        ),
        ("frames stalled / empty", f"{frames['stalled']} / {frames['empty']}"),
        ("beats skipped", str(results["skipped_beats"])),
        ("moment of silence (s)", seconds(results["silence_at_s"], 1)),
    ]
    if sound := results.get("sound"):
        facts.append(("speech given back, of what was sent", share(sound["share"])))
    if errors := results.get("wer"):
        facts.append(("words misheard (of words said)", f"{share(errors['wer'])} ({errors['words']})"))
    return [
        *facts,
        ("our own packet lag p50 / p99 (s)", spread(client["lag_s"], ("p50", "p99"))),
        ("our own CPU share", share(client["cpu_share"])),
    ]


def _slope(found: Mapping[str, float] | None) -> str:
    if not found:
        return NOTHING
    return f"{found['s_per_min']:+.4f} (95 %: {found['low']:+.4f} to {found['high']:+.4f})"


def buckets_table(results: Results) -> Table:
    """The run by elapsed time: a mean over everything would hide a collapse."""
    rows = [(_span(bucket), *_bucket(bucket)) for bucket in results["buckets"]]
    columns = ("elapsed (s)", "frames", "first p50", "first p99", "last p99", "stalled", "empty", "pool")
    return Table("By elapsed time", columns, tuple(rows))


def ages_table(results: Results) -> Table:
    """The run by the age of its calls: with calls coming and going, elapsed time mixes old and young."""
    rows = [(_span(bucket), str(bucket["sessions"]), *_bucket(bucket)[:-1]) for bucket in results["ages"]]
    columns = ("age (s)", "calls", "frames", "first p50", "first p99", "last p99", "stalled", "empty")
    return Table("By session age", columns, tuple(rows))


def points_table(results: Results) -> Table:
    """A search for the largest N: every N that was tried. Without ticks, the time after speech is shown."""
    ticks = any(point["last_s"] for point in results["points"])
    shown = (("first", "first_s"), ("last", "last_s")) if ticks else (("after speech", "after_speech_s"),)
    rows = [
        (
            f"{point['n']}",
            "yes" if point["held"] else "no",
            *(spread(point[key], ("p50", "p99")) for _, key in shown),
            share(point["cadence"]),
            share(point["cpu_share"], digits=0),
            point["why"] or NOTHING,
        )
        for point in results["points"]
    ]
    columns = ("N", "holds", *(f"{name} p50 / p99" for name, _ in shown), "cadence", "our CPU", "why not")
    within = f" within {seconds(results['budget_s'])} s" if results["budget_s"] else ""
    return Table(f"Calls{within}", columns, tuple(rows))


def arms_table(arms: Mapping[str, Results]) -> Table:
    """Two arms side by side, by elapsed time."""
    longest = max((arm["buckets"] for arm in arms.values()), key=len)
    rows = []
    for number, bucket in enumerate(longest):
        row = [_span(bucket)]
        for arm in arms.values():
            row += _arm_cells(arm["buckets"][number]) if number < len(arm["buckets"]) else [NOTHING] * 3
        rows.append(tuple(row))
    columns = [cell for name in arms for cell in (f"{name} p50 / p99 (s)", "stalled", "pool")]
    return Table("Freshness of the first token by elapsed time", ("elapsed (s)", *columns), tuple(rows))


def moment_table(results: Results) -> Table:
    """The moment of silence, measured beside predicted."""
    moment = results["moment"]
    rows = [
        ("measured: from here on every session only stalls", seconds(moment["measured_s"], 1)),
        (
            f"predicted by rho0 + N r t from the first {moment['fitted_until_s']:.0f} s",
            seconds(moment["predicted_s"], 1),
        ),
        ("prediction off by", share(moment["error_share"], sign="+")),
    ]
    return Table("Moment of silence, unbounded (s)", ("what", "figure"), tuple(rows))


def seconds(value: float | None, digits: int = 3) -> str:
    """A time, or a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}"


def share(value: float | None, digits: int = 1, sign: str = "") -> str:
    """A fraction of one as per cent, or a dash. With `sign` "+" a gain has one too."""
    return NOTHING if value is None else f"{100 * value:{sign}.{digits}f} %"


def spread(
    cuts: Mapping[str, float] | None, keys: Sequence[str] = ("p50", "p90", "p99"), digits: int = 3
) -> str:
    """Percentiles in one cell, or a dash."""
    return " / ".join(seconds(cuts[key], digits) for key in keys) if cuts else NOTHING


def _span(bucket: Results) -> str:
    return f"{bucket['from_s']:.0f}-{bucket['to_s']:.0f}"


def _bucket(bucket: Results) -> tuple[str, ...]:
    fresh = bucket["freshness"]
    first, last = (fresh["first_s"], fresh["last_s"]) if fresh else ({}, {})
    times = (seconds(first.get("p50")), seconds(first.get("p99")), seconds(last.get("p99")))
    counts = (str(bucket["stalled"]), str(bucket["empty"]), share(bucket.get("occupancy")))
    return (str(bucket["frames"]), *times, *counts)


def _arm_cells(bucket: Results) -> list[str]:
    first = bucket["freshness"]["first_s"] if bucket["freshness"] else None
    stalled = bucket["stalled"] / bucket["frames"] if bucket["frames"] else None
    times = spread(first, ("p50", "p99"), digits=2)
    return [times, share(stalled, digits=0), share(bucket["occupancy"], digits=0)]


def _verdict(held: bool | None) -> str:
    return "not measurable" if held is None else "yes" if held else "no"


def _value(value: object) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3f}" if isinstance(value, float) else str(value)
