"""An answer counts when its words are there, however numbers are written; a rut is seen as one."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.models.assets import locate
from metronome_cli.probes.scores import first_sentence, lenient, loops, plain, strict

# fmt: off
UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
# fmt: on
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

words = st.lists(st.text("bcdfghjklm", min_size=4, max_size=8), min_size=1, max_size=12)


def spelled(value: int) -> str:
    """`value` in English words, 0 to 999,999,999."""
    if value < 20:
        return UNITS[value]
    if value < 100:
        rest = f"-{UNITS[value % 10]}" if value % 10 else ""
        return TENS[value // 10 - 2] + rest
    for size, name in ((10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if value >= size:
            rest = f" {spelled(value % size)}" if value % size else ""
            return f"{spelled(value // size)} {name}{rest}"
    raise AssertionError


@given(st.integers(0, 999_999_999))
def test_a_number_in_words_and_in_digits_is_the_same(value: int) -> None:
    assert plain(f"about {spelled(value)} of them") == ["about", str(value), "of", "them"]
    assert plain(f"{value:,}") == [str(value)]
    assert strict(f"There are {spelled(value)} legs.", [str(value)])
    assert strict(f"There are {value} legs.", [spelled(value)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three", "1 2 3"),
        ("one hundred and five", "105"),
        ("a hundred", "a 100"),
        ("8 billion", "8000000000"),
        ("two thousand and one", "2001"),
        ("salt and seven", "salt and 7"),
        ("seven and eight", "7 and 8"),
        ("3.14", "3.14"),
        ("everyone, someone", "everyone someone"),
        ("Zürich isn\u2019t Newton's", "zurich isn't newton"),
        ("007", "7"),
    ],
)
def test_words_are_compared_in_one_form(text: str, expected: str) -> None:
    assert plain(text) == expected.split()


@given(words, words, words)
def test_what_is_strict_is_lenient_and_an_answer_may_stand_anywhere_in_its_sentence(
    before: list[str], answer: list[str], after: list[str]
) -> None:
    reply = " ".join([*before, *answer, *after]).capitalize() + ". And more."
    assert strict(reply, [" ".join(answer)])
    assert lenient(reply, [" ".join(answer)])


@given(st.text(), st.text())
def test_strict_never_holds_where_lenient_does_not(reply: str, answer: str) -> None:
    assert lenient(reply, [answer]) or not strict(reply, [answer])


@given(words, words)
def test_an_answer_in_the_second_sentence_is_lenient_only(first: list[str], answer: list[str]) -> None:
    reply = f"{' '.join(first)} zz. It is {' '.join(answer)} zz."
    gold = ["is " + " ".join(answer)]
    assert (strict(reply, gold), lenient(reply, gold)) == (False, True)


@pytest.mark.parametrize(
    ("reply", "answers", "states"),
    [
        ("The capital is PARIS!", ["Paris"], True),
        ("He is a Parisian.", ["Paris"], False),
        ("It is in San. Francisco", ["San Francisco"], False),
        ("United States of America", ["the United States"], True),
        ("A spider has eight legs.", ["six", "8"], True),
        ("There are 18 of them.", ["8"], False),
        ("It has twenty-eight.", ["eight"], False),
        ("", ["Paris"], False),
        ("...", ["?"], False),
        ("Paris", [], False),
    ],
)
def test_only_whole_words_in_their_order_state_an_answer(
    reply: str, answers: list[str], states: bool
) -> None:
    assert strict(reply, answers) is states


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Paris. It is big.", "Paris."),
        ("\n\nParis\nIt is big.", "Paris"),
        ("Really?! Yes.", "Really?!"),
        ("... Well. Yes.", "... Well."),
        ("Dr. Bell did. In 1876.", "Dr. Bell did."),
        ("J. Smith and St. Paul. Amen.", "J. Smith and St. Paul."),
        ("1. Paris. 2. Rome.", "1. Paris."),
        ("It is 3.14 or so. Yes.", "It is 3.14 or so."),
        ('"It is Rome." he said. Yes.', '"It is Rome."'),
        ("no end", "no end"),
        ("  ", ""),
    ],
)
def test_the_first_sentence_ends_where_a_reader_ends_it(text: str, first: str) -> None:
    assert first_sentence(text) == first


def test_every_built_in_answer_is_found_in_a_sentence_and_not_in_its_question() -> None:
    for row in json.loads((locate("questions") / "questions.json").read_text("utf-8")):
        for answer in row["answers"]:
            assert strict(f"I think that {answer} is right.", row["answers"])
        assert not lenient(row["question"], row["answers"])


@given(st.text())
def test_loop_scores_are_shares(text: str) -> None:
    found = loops(text)
    assert 0.0 <= found.repeated_trigrams <= 1.0
    assert 0.0 < found.distinct_2 <= 1.0


@given(st.lists(st.text("bcdfg", min_size=3, max_size=9), min_size=3, max_size=20, unique=True))
def test_a_longer_rut_scores_worse_and_no_rut_scores_best(sentence: list[str]) -> None:
    found = [loops(" ".join(sentence * times)) for times in (1, 2, 4, 16)]
    assert (found[0].repeated_trigrams, found[0].distinct_2) == (0.0, 1.0)
    assert all(a.repeated_trigrams < b.repeated_trigrams for a, b in pairwise(found))
    assert all(a.distinct_2 > b.distinct_2 for a, b in pairwise(found))


def test_loop_scores_are_those_of_a_hand_count() -> None:
    found = loops("The sea, the sea, the SEA!")  # trigrams: tst sts tst sts; bigrams: ts st ts st ts
    assert found.repeated_trigrams == pytest.approx(2 / 4)
    assert found.distinct_2 == pytest.approx(2 / 5)


@pytest.mark.parametrize("text", ["", "word", "?!"])
def test_a_text_too_short_to_repeat_anything_is_no_rut(text: str) -> None:
    assert (loops(text).repeated_trigrams, loops(text).distinct_2) == (0.0, 1.0)
