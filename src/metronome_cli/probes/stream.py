"""`stream_ppl`: what a retention policy costs on a long text, by the age of the session that reads it.

Knows:   places in a text, sessions paired over policies, age buckets, intervals over sessions.
Ignores: how a text is scored (models/perplexity.py), files, pictures.

Every policy reads the same excerpts, so a difference between policies is one of the policies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError
from ..models.assets import locate
from ..stats import Interval, mean_interval, paired_difference
from ..window import Policy, Positions

if TYPE_CHECKING:
    from ..models.perplexity import Scorer

# Shape letters: S sessions, A ages: column a is the token at index a + 1 of its session.
Nll = NDArray[np.float64]

_FIRST_BUCKET = 1024
_SLOPE_STEP = 256  # tokens whose mean is one point of a slope


@dataclass(frozen=True, slots=True)
class Stream:
    """What one policy's sessions paid, token by token, and the blocks that one session held and may hold."""

    nll_SA: Nll
    blocks_peak: int
    blocks_bound: int


def read_text(file: Path | str | None) -> str:
    """A long text: a UTF-8 file, or the asset moby-dick. FieldError when it cannot be read."""
    path = Path(file) if file else locate("moby-dick") / "data.txt"
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        raise FieldError("text", str(path), f"give a readable UTF-8 file ({error})") from None


def places(available: int, sessions: int, tokens: int, seed: int) -> list[int]:
    """Where each session's excerpt of `tokens` begins: seeded, ascending, no two overlap.

    FieldError when the text has no room for that many.
    """
    room = available - sessions * tokens
    if room < 0 or tokens < 2:
        raise FieldError(
            "tokens",
            tokens,
            f"the text has {available} tokens: {sessions} sessions take 2 to {available // sessions} each",
        )
    gaps = np.sort(np.random.default_rng(seed).integers(0, room, sessions, endpoint=True))
    return [int(gap) + number * tokens for number, gap in enumerate(gaps)]


def read_stream(
    scorer: Scorer,
    ids: Sequence[int],
    starts: Sequence[int],
    tokens: int,
    policy: Policy,
    positions: Positions = "anchored",
) -> Stream:
    """All excerpts under one policy, each by a session of its own."""
    scored = scorer.nll_of_all([ids[start : start + tokens] for start in starts], policy, positions)
    return Stream(
        np.stack([one.nll for one in scored]),
        max(one.blocks_peak for one in scored),
        max(one.blocks_bound for one in scored),
    )


def perplexity(nll_SA: Nll, seed: int = 0) -> Interval:
    """exp of the mean over sessions of each session's mean."""
    return _exp(mean_interval(nll_SA.mean(1).tolist(), seed))


def ratio(nll_SA: Nll, baseline_SA: Nll, seed: int = 0) -> Interval:
    """Perplexity over that of a baseline on the same excerpts: 1.02 is 2 % worse."""
    return _exp(paired_difference(nll_SA.mean(1).tolist(), baseline_SA.mean(1).tolist(), seed))


def slope(nll_SA: Nll, since: int = 0, seed: int = 0) -> Interval | None:
    """Growth of log-perplexity per 1000 tokens of age, from age `since` on: above 0, a bound decays.

    One least-squares line a session. A text gets harder and easier by itself: the slope of a difference
    (`nll_SA - baseline_SA`) is free of that. None when fewer than three steps of age are left.
    """
    steps = (nll_SA.shape[1] - since) // _SLOPE_STEP
    if steps < 3:
        return None
    cut_SA = nll_SA[:, since : since + steps * _SLOPE_STEP]
    level = cut_SA.reshape(len(nll_SA), steps, _SLOPE_STEP).mean(2)
    age = (np.arange(steps) + 0.5) * _SLOPE_STEP / 1000
    return mean_interval(np.polyfit(age, level.T, 1)[0].tolist(), seed)


def age_buckets(tokens: int) -> list[tuple[int, int]]:
    """0-1k, 1k-2k, 2k-4k, 4k-8k, ... up to `tokens`; the last one may be cut."""
    ends = [_FIRST_BUCKET]
    while ends[-1] < tokens:
        ends.append(ends[-1] * 2)
    return [(start, min(end, tokens)) for start, end in zip([0, *ends], ends, strict=False)]


def by_age(nll_SA: Nll, seed: int = 0) -> list[tuple[int, int, Interval]]:
    """Perplexity of each age bucket, as (from, to, perplexity)."""
    # Column a holds the token at index a + 1.
    return [
        (start, end, perplexity(nll_SA[:, max(0, start - 1) : end - 1], seed))
        for start, end in age_buckets(nll_SA.shape[1] + 1)
    ]


def summary(streams: Mapping[str, Stream], baseline: str, seed: int = 0) -> list[dict[str, Any]]:
    """One row a policy, as a report keeps it; ratios and slopes are against the one called `baseline`."""
    base = streams[baseline].nll_SA
    return [_row(name, stream, None if name == baseline else base, seed) for name, stream in streams.items()]


def _row(name: str, stream: Stream, base: Nll | None, seed: int) -> dict[str, Any]:
    nll = stream.nll_SA
    since = min(_FIRST_BUCKET, nll.shape[1] // 4)
    growth = slope(nll if base is None else nll - base, since, seed)
    return {
        "name": name,
        "sessions": len(nll),
        "tokens": nll.shape[1] + 1,
        "perplexity": asdict(perplexity(nll, seed)),
        "ratio": None if base is None else asdict(ratio(nll, base, seed)),
        "slope_per_1k": None if growth is None else asdict(growth),
        "by_age": [{"from": start, "to": end, **asdict(cut)} for start, end, cut in by_age(nll, seed)],
        "blocks_peak": stream.blocks_peak,
        "blocks_bound": stream.blocks_bound,
    }


def _exp(of: Interval) -> Interval:
    return Interval(math.exp(of.mean), math.exp(of.low), math.exp(of.high))
