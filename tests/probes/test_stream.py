"""Places in a text, age buckets, and figures over sessions: on made-up losses whose answer is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import FieldError
from metronome_cli.models.perplexity import Scored
from metronome_cli.probes.stream import (
    Stream,
    age_buckets,
    by_age,
    perplexity,
    places,
    ratio,
    read_stream,
    slope,
    summary,
)
from metronome_cli.window import Policy, Positions, Unbounded, Window


def losses(
    sessions: int = 4, tokens: int = 4096, level: float = 3.0, growth: float = 0.0, seed: int = 0
) -> np.ndarray:
    """Noise around a level that may grow per 1000 tokens of age."""
    noise = np.random.default_rng(seed).normal(0, 0.5, (sessions, tokens - 1))
    return level + noise + growth * np.arange(1, tokens) / 1000


@given(st.integers(1, 9), st.integers(2, 40), st.integers(0, 300), st.integers(0, 10))
def test_places_are_in_the_text_and_never_overlap(sessions: int, tokens: int, room: int, seed: int) -> None:
    available = sessions * tokens + room
    starts = places(available, sessions, tokens, seed)
    assert len(starts) == sessions
    assert starts[0] >= 0
    assert starts[-1] + tokens <= available
    assert all(b - a >= tokens for a, b in itertools.pairwise(starts))


def test_places_depend_on_the_seed_alone() -> None:
    assert places(10_000, 3, 100, 1) == places(10_000, 3, 100, 1)
    assert places(10_000, 3, 100, 1) != places(10_000, 3, 100, 2)


def test_a_text_without_room_is_refused_with_what_would_fit() -> None:
    with pytest.raises(
        FieldError, match="tokens = 400: the text has 1000 tokens: 3 sessions take 2 to 333 each"
    ):
        places(1000, 3, 400, 0)


class RecordingScorer:
    """Charges every token its own id."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[list[int]], Policy, Positions]] = []

    def nll_of_all(self, texts: list[list[int]], policy: Policy, positions: Positions) -> list[Scored]:
        self.asked.append((texts, policy, positions))
        return [Scored(np.array(ids[1:], np.float64), 3 + n, 9) for n, ids in enumerate(texts)]


def test_every_policy_reads_the_same_excerpts() -> None:
    scorer = RecordingScorer()
    streams = [
        read_stream(scorer, list(range(100)), [5, 60], 10, policy)  # type: ignore[arg-type]
        for policy in (Unbounded(), Window(8))
    ]
    assert scorer.asked[0][0] == scorer.asked[1][0] == [list(range(5, 15)), list(range(60, 70))]
    assert streams[0].nll_SA.tolist() == [list(range(6, 15)), list(range(61, 70))]
    assert (streams[0].blocks_peak, streams[0].blocks_bound) == (4, 9)


@given(st.integers(2, 200_000))
def test_age_buckets_double_and_cover_every_age_once(tokens: int) -> None:
    buckets = age_buckets(tokens)
    assert buckets[0][0] == 0
    assert buckets[-1][1] == tokens
    assert all(before[1] == after[0] for before, after in itertools.pairwise(buckets))
    assert all(start == 0 or end <= 2 * start for start, end in buckets)


def test_age_buckets_are_those_of_the_table() -> None:
    assert age_buckets(10_000) == [(0, 1024), (1024, 2048), (2048, 4096), (4096, 8192), (8192, 10_000)]


def test_a_bucket_holds_the_tokens_of_its_ages() -> None:
    nll = np.zeros((2, 2047))
    nll[:, 1023:] = 1.0  # from the token at index 1024 on
    young, old = by_age(nll)
    assert (young[:2], old[:2]) == ((0, 1024), (1024, 2048))
    assert (young[2].mean, old[2].mean) == pytest.approx((1.0, math.e))


def test_perplexity_and_ratio_hold_what_was_put_in() -> None:
    base = losses()
    assert perplexity(base).low < math.exp(3.0) < perplexity(base).high
    worse = ratio(base + math.log(1.5), base)
    assert (worse.mean, worse.low, worse.high) == pytest.approx((1.5, 1.5, 1.5))


def test_a_paired_ratio_is_far_narrower_than_the_texts_differ() -> None:
    easy_and_hard = losses() + np.array([[0.0], [1.0], [2.0], [3.0]])
    found = ratio(easy_and_hard + losses(level=0.1, seed=1), easy_and_hard)
    assert found.mean == pytest.approx(math.exp(0.1), rel=0.01)
    assert found.high / found.low < 1.02 < perplexity(easy_and_hard).high / perplexity(easy_and_hard).low


def test_a_bound_that_decays_is_seen_in_the_slope() -> None:
    base = losses()
    found = slope(losses(growth=0.05, seed=1) - base, since=1024)
    assert found is not None
    assert 0 < found.low < 0.05 < found.high
    steady = slope(losses(seed=1) - base)
    assert steady is not None
    assert steady.low < 0 < steady.high


def test_a_short_stream_has_no_slope() -> None:
    assert slope(losses(tokens=700)) is None


def test_a_summary_tells_each_policy_against_the_baseline() -> None:
    base = losses()
    streams = {"full": Stream(base, 256, 256), "W=8": Stream(base + math.log(2), 17, 26)}
    full, bounded = summary(streams, "full")
    assert (full["ratio"], bounded["ratio"]["mean"]) == (None, pytest.approx(2.0))
    assert (bounded["sessions"], bounded["tokens"], bounded["blocks_bound"]) == (4, 4096, 26)
    assert [(cut["from"], cut["to"]) for cut in bounded["by_age"]] == [(0, 1024), (1024, 2048), (2048, 4096)]
    assert full["slope_per_1k"]["low"] < 0 < full["slope_per_1k"]["high"]
