"""Tables of plain text, and those of load and demo reports.

Knows:   the `results` of load and demo reports, and Markdown.
Ignores: terminals and colours, files, how anything was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..tail import end_of

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

    def known(self) -> Table:
        """The table without columns in which nothing was measured."""
        told = [n for n in range(len(self.columns)) if n == 0 or any(row[n] != NOTHING for row in self.rows)]
        rows = tuple(tuple(row[n] for n in told) for row in self.rows)
        return Table(self.title, tuple(self.columns[n] for n in told), rows)


def demo_tables(results: Results) -> list[Table]:
    """Both arms side by side, the moment of silence, and what had to hold."""
    return [arms_table(results["arms"]), moment_table(results), limits_table(results)]


def load_tables(results: Results) -> list[Table]:
    """One load run: limits, facts, and its course; by session age too where that says something else.

    When frames were missing, where any were.
    """
    shown = [limits_table(results), facts_table(results), buckets_table(results)]
    if any(bucket.get("missing") for bucket in results["buckets"]):
        shown.append(missing_table(results))
    if results["offered"].get("call_length") or results["offered"].get("rate_hz"):
        shown.append(ages_table(results))
    return shown


def limits_table(results: Results) -> Table:
    """What had to hold, and what was measured."""
    rows = [
        (item["name"], _value(item["limit"]), _measured(item), _verdict(item["held"]))
        for item in results["limits"]
    ]
    return Table("Limits", ("what", "limit", "measured", "held"), tuple(rows))


def facts_table(results: Results) -> Table:
    """One run in two dozen lines."""
    return Table("Run", ("what", "figure"), (*_call_facts(results), *_frame_facts(results)))


def _call_facts(results: Results) -> list[tuple[str, str]]:
    calls, offered, cancels = results["calls"], results["offered"], results.get("cancels")
    facts = [("server", str(offered["url"])), ("protocol", results.get("protocol") or "unknown")]
    facts.append(
        (
            "calls offered / opened / cut off",
            f"{calls.get('dialled', offered['sessions'])} / {calls['opened']} / {calls['cut_off']}",
        )
    )
    facts += _refusal_facts(calls)
    if calls.get("vanished"):
        facts.append(("calls that vanished", str(calls["vanished"])))
    if cancels and cancels["sent"]:
        went_on = f"{cancels['went_on'] or 'none'} went on"
        after = f" for {counted(cancels['went_on_s'])} s" if cancels["went_on"] else ""
        facts.append(("replies cancelled", f"{cancels['sent']}, {went_on}{after}"))
    if "speech_share" in results:
        facts.append(("speech, of the time of a call", share(results["speech_share"])))
    return [
        *facts,
        ("length (s)", seconds(results["elapsed_s"], 1)),
        ("frame (s)", seconds(results["frame_s"])),
    ]


def _refusal_facts(calls: Results) -> list[tuple[str, str]]:
    """Calls that never got in, and what dialling again came to, where that was done."""
    again = calls.get("retry_after_s")
    facts = [("calls refused", reasons(calls["refused"]))]
    if calls.get("refusals") and again is not None:
        facts.append(("told to come again after, at most (s)", f"{again:g}"))
    if calls.get("redials"):
        facts.append(("dialled again / refusals met", f"{calls['redials']} / {reasons(calls['refusals'])}"))
        late = calls["let_in_late_s"]
        waited = f"{late['n']}, {seconds(late['p50'])} / {seconds(late['max'])}" if late else "none"
        facts.append(("let in late, waited p50 / longest (s)", waited))
    return facts


def _frame_facts(results: Results) -> list[tuple[str, str]]:
    frames, client, fresh = results["frames"], results["client"], results["freshness"] or {}
    facts = [
        ("freshness, first token p50 / p90 / p99 (s)", counted(fresh.get("first_s"))),
        ("freshness, last token p50 / p90 / p99 (s)", counted(fresh.get("last_s"))),
        ("slope against age, 95 % (s per minute)", _slope(results.get("slope"))),
        ("after speech p50 / p90 / p99 (s)", counted(results["after_speech_s"])),
        (
            "cadence (frames delivered / due)",
            f"{share(frames['cadence'])} ({frames['delivered']} / {_value(frames['due'])})",
        ),
        ("frames stalled / empty / missing", not_delivered(frames)),
        ("beats skipped", str(results["skipped_beats"])),
        *_filled(results),
        ("moment of silence (s)", seconds(results["silence_at_s"], 1)),
    ]
    if sound := results.get("sound"):
        facts.append(("speech given back, of what was sent", share(sound["share"])))
    if errors := results.get("replies_wer"):
        facts.append(("replies misheard (of words written)", f"{share(errors['wer'])} ({errors['words']})"))
    if errors := results.get("wer"):
        facts.append(("words misheard (of words said)", f"{share(errors['wer'])} ({errors['words']})"))
    return [
        *facts,
        ("our own packet lag p50 / p99 (s)", counted(client["lag_s"], ("p50", "p99"))),
        ("our own CPU share", share(client["cpu_share"])),
    ]


def _filled(results: Results) -> list[tuple[str, str]]:
    filled = results.get("window_filled")
    return [] if filled is None else [("window filled at the end, middle call", share(filled, digits=0))]


def _slope(found: Mapping[str, float] | None) -> str:
    if not found:
        return NOTHING
    return f"{found['s_per_min']:+.4f} ({found['low']:+.4f} to {found['high']:+.4f})"


def buckets_table(results: Results) -> Table:
    """The run by elapsed time: a mean over everything would hide a collapse."""
    end = _end_in(results["buckets"])
    rows = [(_span(bucket), *_bucket(bucket, end)) for bucket in results["buckets"]]
    return Table("By elapsed time (s)", ("elapsed", *_bucket_heads(end), "pool"), tuple(rows))


def missing_table(results: Results) -> Table:
    """The steps of elapsed time in which frames were due that were never told."""
    rows = [
        (_span(bucket), str(bucket["missing"]), str(bucket["frames"] + bucket["missing"]))
        for bucket in results["buckets"]
        if bucket["missing"]
    ]
    return Table("Missing frames by time (s)", ("elapsed", "missing", "of due"), tuple(rows))


def ages_table(results: Results) -> Table:
    """The run by the age of its calls: with calls coming and going, elapsed time mixes old and young."""
    end = _end_in(results["ages"])
    rows = [
        (_span(bucket), str(bucket["sessions"]), *_bucket(bucket, end)[:-1]) for bucket in results["ages"]
    ]
    return Table("By session age (s)", ("age", "calls", *_bucket_heads(end)), tuple(rows))


def search_tables(results: Results) -> list[Table]:
    """A search for the largest N: every N that was tried, and why those did not hold that did not."""
    lost = [(str(point["n"]), point["why"]) for point in results["points"] if point["why"]]
    shown = [_points_table(results)] if results["points"] else []
    return [*shown, Table("What did not hold", ("N", "why not"), tuple(lost))] if lost else shown


def _points_table(results: Results) -> Table:
    """Without ticks, the time after speech is shown."""
    points = results["points"]
    ticks = any(point["last_s"] for point in points)
    shown = (("first", "first_s"), ("last", "last_s")) if ticks else (("after speech", "after_speech_s"),)
    judged = shown[-1][1]
    end = _one_end(point[judged] for point in points)
    rows = [
        (
            f"{point['n']}",
            "yes" if point["held"] else "no",
            count_of(point[judged]),
            *(spread(point[key], ("p50", end)) for _, key in shown),
            share(point["cadence"]),
            share(point["cpu_share"], digits=0),
        )
        for point in points
    ]
    columns = (
        "N",
        "holds",
        "frames" if ticks else "turns",
        *(f"{name} p50 / {end}" for name, _ in shown),
        "cadence",
        "our CPU",
    )
    within = f" within {seconds(results['budget_s'])} s" if results["budget_s"] else ""
    return Table(f"Calls{within}", columns, tuple(rows))


def arms_table(arms: Mapping[str, Results]) -> Table:
    """Two arms side by side, by elapsed time."""
    longest = max((arm["buckets"] for arm in arms.values()), key=len)
    end = _end_in(bucket for arm in arms.values() for bucket in arm["buckets"])
    rows = []
    for number, bucket in enumerate(longest):
        row = [_span(bucket)]
        for arm in arms.values():
            row += _arm_cells(arm["buckets"][number], end) if number < len(arm["buckets"]) else [NOTHING] * 3
        rows.append(tuple(row))
    columns = [cell for name in arms for cell in (f"{name} p50 / {end} (s)", "stalled", "pool")]
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
    """Percentiles in one cell, or a dash. In place of a p99 of too few values stands the largest of them."""
    return " / ".join(_cut(cuts, key, digits) for key in keys) if cuts else NOTHING


def counted(
    cuts: Mapping[str, float] | None, keys: Sequence[str] = ("p50", "p90", "p99"), digits: int = 3
) -> str:
    """`spread`, and how many values that is of."""
    told = spread(cuts, keys, digits)
    return f"{told}, n {count_of(cuts)}" if cuts and "n" in cuts else told


def not_delivered(frames: Results) -> str:
    """Frames of a load run that were due and did not do what they were to do, by how."""
    return " / ".join(_value(frames.get(how)) for how in ("stalled", "empty", "missing"))


def reasons(counts: Mapping[str, int]) -> str:
    """How many of what, or 0."""
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "0"


def _cut(cuts: Mapping[str, float], key: str, digits: int) -> str:
    if key != "p99" or end_of(cuts) == "p99":
        return seconds(cuts.get(key), digits)
    return f"max {seconds(cuts['max'], digits)}" if "max" in cuts else NOTHING


def _one_end(cuts: Iterable[Mapping[str, float] | None]) -> str:
    """What stands in a column of tails: "max" where all of them are of too few values for a p99."""
    ends = {end_of(cut) for cut in cuts if cut}
    return "max" if ends == {"max"} else "p99"


def _end_in(buckets: Iterable[Results]) -> str:
    return _one_end(bucket["freshness"]["first_s"] for bucket in buckets if bucket["freshness"])


def count_of(cuts: Mapping[str, float] | None) -> str:
    """How many values percentiles are of, or a dash."""
    return f"{cuts['n']:.0f}" if cuts and "n" in cuts else NOTHING


def _span(bucket: Results) -> str:
    return f"{bucket['from_s']:.0f}-{bucket['to_s']:.0f}"


def _bucket_heads(end: str) -> tuple[str, ...]:
    return ("frames", f"first p50 / {end}", f"last {end}", "stalled", "empty")


def _bucket(bucket: Results, end: str) -> tuple[str, ...]:
    fresh = bucket["freshness"]
    first, last = (fresh["first_s"], fresh["last_s"]) if fresh else (None, None)
    times = (spread(first, ("p50", end)), spread(last, (end,)))
    counts = (str(bucket["stalled"]), str(bucket["empty"]), share(bucket.get("occupancy"), digits=0))
    return (str(bucket["frames"]), *times, *counts)


def _arm_cells(bucket: Results, end: str) -> list[str]:
    first = bucket["freshness"]["first_s"] if bucket["freshness"] else None
    stalled = bucket["stalled"] / bucket["frames"] if bucket["frames"] else None
    times = spread(first, ("p50", end), digits=2)
    return [times, share(stalled, digits=0), share(bucket["occupancy"], digits=0)]


def _measured(limit: Results) -> str:
    """What was held to a limit; of a time, whether that is its p99 or the largest, and of how many."""
    told, n = _value(limit["measured"]), limit.get("n")
    if n is None:
        return told
    return f"{told} ({end_of(limit)} of {n})"


def _verdict(held: bool | None) -> str:
    return "not measurable" if held is None else "yes" if held else "no"


def _value(value: object) -> str:
    if value is None:
        return NOTHING
    return f"{value:.3f}" if isinstance(value, float) else str(value)
