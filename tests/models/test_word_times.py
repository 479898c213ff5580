"""When each word was heard, on attention made by hand and by every possible alignment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.models.word_times import Word, _bounds, is_lost, is_spoken, timed_words

PIECES = (" He", " was", " not", " an", " old", "-", "sp", "osed", " man", ".", " him", " 's")


def text_of(tokens: Sequence[int]) -> str:
    return "".join(PIECES[token] for token in tokens)


def looking(at_s: Sequence[float], positions: int = 300) -> NDArray[np.float32]:
    """Attention [2, T, A] of two heads; each token looks from its time to the next one's, or for 0.1 s."""
    attention = np.full((2, len(at_s), positions), 1e-3, np.float32)
    for token, (at, then) in enumerate(itertools.pairwise([*at_s, 0.0])):
        attention[:, token, round(at / 0.02) : round((then if then > at else at + 0.1) / 0.02)] = 1.0
    share: NDArray[np.float32] = attention / attention.sum(-1, keepdims=True)
    return share


def test_a_word_lasts_until_the_next_one_is_looked_for() -> None:
    words = timed_words([0, 1, 2], 0, looking([0.4, 1.0, 1.8, 2.4]), text_of, origin_s=100.0)
    assert [word.text for word in words] == ["He", "was", "not"]
    assert [word.end for word in words] == pytest.approx([101.0, 101.8, 102.4], abs=0.06)
    assert [word.start for word in words[1:]] == [word.end for word in words[:-1]]


def test_pieces_without_a_space_belong_to_the_word_before() -> None:
    words = timed_words([4, 5, 6, 7, 8, 9], 0, looking([0.2, 0.5, 0.7, 0.9, 1.4, 1.9, 2.0]), text_of)
    assert [word.text for word in words] == ["old-sposed", "man."]
    assert words[1].tokens == (8, 9)
    assert words[1].end == pytest.approx(1.9, abs=0.06)  # not where its full stop ends


def test_words_handed_on_before_are_left_out() -> None:
    words = timed_words([0, 1, 2], 2, looking([0.4, 1.0, 1.8, 2.4]), text_of)
    assert [word.text for word in words] == ["not"]
    assert timed_words([0, 1], 2, looking([0.4, 1.0, 1.8]), text_of) == []


def test_the_transcript_ends_where_it_looks_back_for_what_was_said_before() -> None:
    heard = looking([0.4, 1.0, 1.8, 2.6, 0.4, 1.0, 1.8, 2.6])
    words = timed_words([0, 1, 2, 3, 0, 1, 2, 3], 2, heard, text_of)
    assert [word.text for word in words] == ["not", "an"]


def test_an_echo_takes_its_whole_word_with_it() -> None:
    words = timed_words([0, 1, 4, 5, 6, 7], 0, looking([0.4, 1.0, 2.6, 2.8, 0.4, 1.0]), text_of)
    assert [word.text for word in words] == ["He", "was"]


def test_a_transcript_is_lost_once_it_repeats_what_it_hears_again() -> None:
    tokens, at_s = [0, 1, 2, 3, 4, 8] * 3, [0.4, 1.0, 1.8, 2.6, 3.4, 4.2] * 3
    lost = [n for n in range(1, 19) if is_lost(tokens[:n], 0, looking(at_s[:n]), text_of)]
    assert lost == list(range(12, 19))  # six tokens after the sixth, where the echo begins


def test_words_that_are_truly_said_twice_are_no_loss() -> None:
    at_s = [0.4 * n for n in range(18)]
    assert not is_lost([0, 1, 2, 3, 4, 8] * 3, 0, looking(at_s, positions=400), text_of)


def test_a_look_back_without_a_repetition_is_no_loss() -> None:
    at_s = [0.4, 1.0, 1.8, 2.6, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]
    assert not is_lost([0, 1, 2, 3, 4, 8, 10, 1, 3, 8], 0, looking(at_s), text_of)


def test_punctuation_may_look_anywhere() -> None:
    words = timed_words([0, 1, 8, 9], 0, looking([0.4, 1.0, 2.6, 0.0, 3.0]), text_of)
    assert [word.text for word in words] == ["He", "was", "man."]


def test_more_tokens_than_the_audio_has_positions_are_no_words() -> None:
    assert timed_words([0, 1, 2, 3], 0, looking([0, 0, 0, 0], positions=3), text_of) == []


def test_a_word_can_shed_the_punctuation_after_it() -> None:
    assert Word("man.", (8, 9), 1, 1.0, 1.5).without_punctuation() == Word("man", (8,), 1, 1.0, 1.5)
    assert is_spoken(" 50%")
    assert not is_spoken(' ..."')


@pytest.mark.parametrize("seed", range(20))
def test_no_other_alignment_has_more_focus(seed: int) -> None:
    random = np.random.default_rng(seed)
    tokens, positions = int(random.integers(1, 5)), int(random.integers(5, 9))
    focus_TA = random.normal(size=(tokens, positions)).astype(np.float32)

    def worth(bounds: Sequence[int]) -> float:
        return sum(float(focus_TA[t, bounds[t] : bounds[t + 1]].sum()) for t in range(tokens))

    ways = ((0, *cuts, positions) for cuts in itertools.combinations(range(1, positions), tokens - 1))
    assert worth(_bounds(focus_TA).tolist()) == pytest.approx(max(map(worth, ways)))
