"""What the cells of a grid say together: each bound against the unbounded control, and which are safe.

Knows:   played cells as plain data, pairs by call, margins.
Ignores: how cells were played, tables and pictures.

A bound is safe in a mode when calls outgrew it, the answers that it loses against the unbounded control
are, with 95 % confidence, fewer than MARGIN of all, and it does not decay: its answers do not fall with the
age of a call while the control's stay. Few calls make wide intervals: safety has to be shown, not assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ..profile import Profile
from ..stats import mean_interval, paired_difference
from .grid import KINDS, STEP, UNBOUNDED, Bound, Cell
from .stream import age_buckets

LEAST_ANSWERED = 0.20  # by the unbounded control; below it a grid says nothing (issue: controls)
MARGIN = 0.10  # share of answers that a safe bound may lose

Played = Mapping[Cell, Mapping[str, Any]]
SCORES = ("lenient", "strict", "repeated_trigrams", "distinct_2")


def answered(cell: Mapping[str, Any]) -> float:
    """Share of the questions of a cell that were answered, leniently; recall does not count."""
    rows = [row for call in cell["calls"] for row in call if row["kind"] != "recall"]
    return float(sum(row["lenient"] for row in rows) / len(rows))


def refusal(kind: str, control: Mapping[str, Any]) -> str | None:
    """Why the cells of a kind are not worth playing; None when they are."""
    share = answered(control)
    if share >= LEAST_ANSWERED:
        return None
    return (
        f"{kind}: unbounded, the model answers {share:.0%} of the questions, and there must be "
        f"{LEAST_ANSWERED:.0%} to lose; use a model or questions (--data) that fit each other"
    )


def conclude(bounds: Sequence[Bound], played: Played, profile: Profile, seed: int) -> list[dict[str, Any]]:
    """One row per bound: each kind's scores, their differences from unbounded, and whether it is safe."""
    kinds = sorted({cell.kind for cell in played}, key=KINDS.index)
    rows = []
    for bound in bounds:
        row: dict[str, Any] = {
            "bound": bound.name,
            "policy": bound.policy,
            "window": bound.window,
            "sinks": bound.sinks,
        }
        for kind in kinds:
            mine, control = _of(played, kind, bound), _of(played, kind, UNBOUNDED)
            if mine:
                row[kind] = _kind_row(kind, mine, control, profile, seed)
                row[kind]["outgrown"] = row[kind].get("oldest_tokens", 0) > (bound.window or 0)
                # The control is what the others are held against; a bound that nobody met was not tried.
                if bound == UNBOUNDED or not row[kind]["outgrown"]:
                    row[kind]["safe"] = None
        rows.append(row)
    return rows


def safe(row: Mapping[str, Any], kind: str) -> bool | None:
    """Whether a bound is safe in a mode; None where that was not measured."""
    return row[kind].get("safe") if kind in row else None


def in_words(rows: Sequence[Mapping[str, Any]], profile: Profile) -> str:
    """Which of the tested bounds are safe in which mode, and the smallest pool that is."""
    parts = []
    for kind, words in (("turn", "Turn-based"), ("free", "Free-running")):
        bounded = [row for row in rows if kind in row and row["policy"] != "unbounded"]
        judged = [row for row in bounded if safe(row, kind) is not None]
        if small := [row["bound"] for row in bounded if not row[kind]["outgrown"]]:
            parts.append(f"{words}: no call outgrew {', '.join(small)}; longer calls would try them.")
        if not judged:
            continue
        good = [row for row in judged if safe(row, kind)]
        if not good:
            parts.append(f"{words}: none of the tested bounds is safe.")
            continue
        smallest = min(good, key=lambda row: float(row[kind]["blocks_per_call"]))
        sessions = profile.admission.max_sessions
        blocks = round(sessions * smallest[kind]["blocks_per_call"])
        parts.append(
            f"{words}: safe are {', '.join(row['bound'] for row in good)}; the smallest pool among them "
            f"is {smallest['bound']}'s, {blocks} blocks for {sessions} calls."
        )
    return " ".join(parts)


def _of(played: Played, kind: str, bound: Bound) -> list[Mapping[str, Any]]:
    """The cells of a kind and bound, by seed."""
    found = [cell for cell in played if cell.kind == kind and cell.bound == bound]
    return [played[cell] for cell in sorted(found, key=lambda cell: cell.seed)]


def _kind_row(
    kind: str,
    mine: Sequence[Mapping[str, Any]],
    control: Sequence[Mapping[str, Any]],
    profile: Profile,
    seed: int,
) -> dict[str, Any]:
    if kind == "stream":
        return _stream_row(mine, control, seed)
    if kind == "repeat":
        return _repeat_row(mine, control, seed)
    if kind == "pace":
        return {name: mine[0][name] for name in ("ms_per_frame", "sessions", "age_tokens")}
    calls = [call for cell in mine for call in cell["calls"]]
    against = [call for cell in control for call in cell["calls"]]
    row: dict[str, Any] = {}
    for score in SCORES:
        row |= _compared(score, [_mean(c, score) for c in calls], [_mean(c, score) for c in against], seed)
    if all(any("gen_nll" in answer for answer in call) for call in (*calls, *against)):
        row |= _compared("gen_nll", list(map(_judged, calls)), list(map(_judged, against)), seed)
        row["gen_ppl"] = {name: _exp(value) for name, value in row["gen_nll"].items()}
    if all(_heard_back(call) is not None for call in (*calls, *against)):
        wers = [[_heard_back(call) or 0.0 for call in group] for group in (calls, against)]
        row |= _compared("asr_wer", wers[0], wers[1], seed)
    row["fresh"], row["recalled"] = (_share(calls, asked) for asked in ("fresh", "recall"))
    row["by_age"] = by_age(calls)
    row["slopes_per_1000_tokens"] = _slopes(calls, against, seed)
    if heard := [answer["heard_wer"] for call in calls for answer in call if "heard_wer" in answer]:
        row["heard_wer"] = sum(heard) / len(heard)
    row["blocks_per_call"] = max(cell["blocks_per_call"] for cell in mine)
    row["pool_share"] = row["blocks_per_call"] / profile.pool.count
    row["stalled"] = sum(answer["stalled"] for call in calls for answer in call)
    row["calls"] = len(calls)
    row["oldest_tokens"] = max(answer["age_tokens"] for call in calls for answer in call)
    row["safe"] = _is_safe(row)
    return row


def _stream_row(
    mine: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    sessions = [steps for cell in mine for steps in cell["steps"]]
    against = [steps for cell in control for steps in cell["steps"]]
    means, theirs = ([sum(steps) / len(steps) for steps in group] for group in (sessions, against))
    row = _compared("nll", means, theirs, seed)
    row["ppl"] = {name: _exp(value) for name, value in row["nll"].items()}
    if "nll_difference" in row:
        row["ratio"] = {name: _exp(value) for name, value in row["nll_difference"].items()}
    row["by_age"] = [
        {"from": start, "to": end, **_paid([steps[first:last] for steps in sessions], seed)}
        for start, end in age_buckets(STEP * len(sessions[0]))
        for first, last in [(start // STEP, end // STEP)]
    ]
    if len(against) == len(sessions) and len(sessions[0]) >= 3:
        ages = (np.arange(len(sessions[0])) + 0.5) * STEP / 1000
        lost = np.asarray(sessions) - np.asarray(against)
        row["slope_per_1000_tokens"] = asdict(mean_interval(np.polyfit(ages, lost.T, 1)[0].tolist(), seed))
    return row


def _paid(sessions: Sequence[Sequence[float]], seed: int) -> dict[str, float]:
    """Perplexity of one bucket of ages."""
    found = mean_interval([sum(steps) / len(steps) for steps in sessions], seed)
    return {name: _exp(value) for name, value in asdict(found).items()}


def _repeat_row(
    mine: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """Word errors at every place, over the calls of all seeds, against the control's same calls."""
    keys = list(dict.fromkeys((t["place"], t["window"]) for cell in mine for t in cell["places"]))
    return {"places": [_place_row(key, mine, control, seed) for key in keys]}


def _place_row(
    key: tuple[str, int], mine: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    place, window = key
    own, theirs = (
        [t for cell in cells for t in cell["places"] if (t["place"], t["window"]) == key]
        for cells in (mine, control)
    )
    row: dict[str, Any] = {"place": place, "window": window}
    for name in ("spoken", "model"):
        errors, other = ([e for t in tried for e in t[name]["each"]] for tried in (own, theirs))
        row |= _compared(f"{name}_wer", errors, other, seed)
    voice = [e for t in own for e in t["voice"]["each"] if e is not None]
    row["voice_wer"] = sum(voice) / len(voice) if voice else None
    row["spoken_cer"] = sum(t["spoken"]["cer"] for t in own) / len(own)
    row["lay_elsewhere"] = sum(lay != place for t in own for lay in t["lay"])
    return row


def by_age(calls: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, float]]:
    """The answers of all calls, question by question: their mean age in tokens, and their mean scores."""
    longest = max(len(call) for call in calls)
    asked = [
        [call[number] for call in calls if number < len(call) and call[number]["kind"] != "recall"]
        for number in range(longest)
    ]
    return [
        {name: sum(row[name] for row in rows) / len(rows) for name in ("age_tokens", *SCORES)}
        for rows in asked
        if rows
    ]


def _compared(score: str, values: list[float], theirs: list[float], seed: int) -> dict[str, Any]:
    """A score with its interval, and its difference from the control's in pairs of calls."""
    found = {score: asdict(mean_interval(values, seed))}
    if len(theirs) == len(values):
        found[f"{score}_difference"] = asdict(paired_difference(values, theirs, seed))
    return found


def _mean(call: Sequence[Mapping[str, Any]], score: str) -> float:
    values = [float(row[score]) for row in call if row["kind"] != "recall"]
    return sum(values) / len(values)


def _share(calls: Sequence[Sequence[Mapping[str, Any]]], asked: str) -> float | None:
    """Of the questions of a kind those that were answered, leniently."""
    found = [answer["lenient"] for call in calls for answer in call if answer["kind"] == asked]
    return sum(found) / len(found) if found else None


def _judged(call: Sequence[Mapping[str, Any]]) -> float:
    """Nats per token that a call's replies cost the judge; of a call that said nothing, 0."""
    judged = [row for row in call if "gen_nll" in row]
    return float(sum(row["gen_nll"] for row in judged) / max(1, sum(row["gen_tokens"] for row in judged)))


def _heard_back(call: Sequence[Mapping[str, Any]]) -> float | None:
    """Mean word errors of a call's speech; None where nobody listened or nothing was written."""
    rates = [row["asr_wer"] for row in call if row.get("asr_wer") is not None]
    return sum(rates) / len(rates) if rates else None


def _slopes(
    calls: Sequence[Sequence[Mapping[str, Any]]], against: Sequence[Sequence[Mapping[str, Any]]], seed: int
) -> dict[str, dict[str, float]]:
    """Change of each score per 1000 tokens of age, less the control's: questions are not equally hard.

    One least-squares line a call, the interval over calls. Empty where calls cannot be paired.
    """
    if len(against) != len(calls):
        return {}
    found = {}
    for score in (*SCORES, "gen_nll"):
        lines = [_line(*pair, score) for pair in zip(calls, against, strict=True)]
        measured = [line for line in lines if line is not None]
        if measured:
            found[score] = asdict(mean_interval(measured, seed))
    return found


def _line(
    call: Sequence[Mapping[str, Any]], control: Sequence[Mapping[str, Any]], score: str
) -> float | None:
    """Slope of a score's difference over one call; None when it has no three ages with that score."""
    pairs = [
        (row, other)
        for row, other in zip(call, control, strict=True)
        if row["kind"] != "recall" and _has(row, score) and _has(other, score)
    ]
    ages = [row["age_tokens"] / 1000 for row, _ in pairs]
    if len(set(ages)) < 3:
        return None
    return float(np.polyfit(ages, [_value(row, score) - _value(other, score) for row, other in pairs], 1)[0])


def _has(row: Mapping[str, Any], score: str) -> bool:
    return score in row and (score != "gen_nll" or row["gen_tokens"] > 0)


def _value(row: Mapping[str, Any], score: str) -> float:
    """Of `gen_nll` nats per token, as it is kept for the whole reply."""
    return float(row[score]) / (row["gen_tokens"] if score == "gen_nll" else 1)


def _is_safe(row: Mapping[str, Any]) -> bool | None:
    difference, slope = row.get("lenient_difference"), row["slopes_per_1000_tokens"].get("lenient")
    if difference is None:
        return None
    decays = slope is not None and slope["high"] < 0
    return bool(difference["low"] >= -MARGIN and not decays)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
