"""What a row says, by its logits, its settings and its dice."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.engine.sampling import Chooser, Sampling, choose
from metronome_cli.errors import ProfileError


@settings(max_examples=40, deadline=None)
@given(st.floats(0.05, 1.0), st.integers(0, 10_000))
def test_top_p_draws_only_from_the_smallest_set_that_reaches_it(top_p: float, seed: int) -> None:
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(seed)) * 2
    token = int(choose(logits.clone(), [Chooser(Sampling(1.0, top_p, seed))])[0])
    probability = logits.softmax(-1)[0]
    likelier = probability[probability > probability[token]].sum()
    assert float(likelier) < top_p


@pytest.mark.parametrize(
    ("temperature", "top_p"), [(-1.0, 1.0), (1e-300, 1.0), (1e300, 1.0), (float("nan"), 1.0), (1.0, 1e-300)]
)
def test_settings_that_no_draw_survives_are_refused(temperature: float, top_p: float) -> None:
    with pytest.raises(ProfileError, match=r"model\.(temperature|top_p) = .*: use "):
        Sampling(temperature, top_p)


def test_the_coldest_draws_are_of_the_likeliest_token_alone() -> None:
    logits = torch.tensor([[1e4, 1.0, 2e4, 1.9e4]])
    for coldest in (Sampling(0.01), Sampling(100.0, 0.001)):
        assert int(choose(logits.clone(), [Chooser(coldest)])[0]) == 2


def drawn(logits: list[float], uniform: float, sampling: Sampling) -> int:
    """What one row says, when its dice show `uniform`."""
    chooser = Chooser(sampling)
    chooser._returned = uniform
    return int(choose(torch.tensor([logits]), [chooser])[0])


def test_a_number_that_single_precision_takes_for_1_draws_nothing_that_may_not_be_said() -> None:
    for top_p in (1.0, 0.9):
        assert drawn([9.0, 1.0, 2.0], 1 - 2**-40, Sampling(1.0, top_p, suppress=(0,))) == 2


def test_an_infinite_logit_is_the_likeliest() -> None:
    assert drawn([1.0, 2.0, math.inf, 3.0], 0.5, Sampling(1.0, 0.9)) == 2


def test_of_tokens_that_are_alike_top_p_keeps_all_or_none() -> None:
    """Which of them stood first would be an accident of sorting."""
    logits = [0.0, 3.0, 2.0] + [1.0] * 50
    said = {drawn(logits, number / 200, Sampling(1.0, 0.5)) for number in range(200)}
    assert said == set(range(1, 53))
    assert {drawn(logits, number / 200, Sampling(1.0, 0.15)) for number in range(200)} == {1, 2}


def test_draws_follow_the_probabilities() -> None:
    logits = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log()
    chooser = Chooser(Sampling(temperature=1.0, seed=1))
    counts = torch.zeros(4)
    for _ in range(4000):
        counts[int(choose(logits.clone(), [chooser])[0])] += 1
    torch.testing.assert_close(counts / 4000, logits.exp()[0], rtol=0, atol=0.03)
