"""Sentences to say again: plain, told apart, and as far from the request as they are said to be."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import AssetError, FieldError
from metronome_cli.models.listener import Listener
from metronome_cli.models.voice import find_voice
from metronome_cli.probes.repeat import (
    KEY_WORDS,
    PRACTICE,
    QUESTION_TOKENS,
    REQUEST_TOKENS,
    SENTENCE_TOKENS,
    SENTENCES,
    Place,
    place_of,
    questions_between,
    repetitions,
)
from metronome_cli.probes.spoken import SpokenReply, asr_wer

QUESTIONS = [f"What is {n}?" for n in range(20)]
PLACES: tuple[Place, ...] = ("near", "edge", "beyond")

seeds = st.integers(0, 1000)
windows = st.integers(64, 2048)


def test_there_are_at_least_32_sentences_of_6_to_10_plain_words() -> None:
    assert len(set(SENTENCES)) == len(SENTENCES) >= 32
    for sentence in SENTENCES:
        assert re.fullmatch(r"[A-Z][a-z]*(?: [a-z]+){5,9}\.", sentence), sentence


def test_no_two_sentences_are_asked_back_by_the_same_words() -> None:
    assert len({tuple(sentence.split()[:KEY_WORDS]) for sentence in SENTENCES}) == len(SENTENCES)


@given(windows, seeds)
def test_calls_of_every_place_and_window_say_the_same_only_longer(window: int, seed: int) -> None:
    near, edge, beyond = (repetitions(place, window, 4, seed, QUESTIONS) for place in PLACES)
    for short, middle, long in zip(near, edge, beyond, strict=True):
        assert short.sentence == middle.sentence == long.sentence
        assert short.turns[-1] == middle.turns[-1] == long.turns[-1]
        assert short.turns[:-1] == middle.turns[: len(short.turns) - 1]
        assert middle.turns[:-1] == long.turns[: len(middle.turns) - 1]
        assert len(short.turns) == PRACTICE + 2 <= len(middle.turns) < len(long.turns)


@given(windows, seeds)
def test_the_sentence_is_told_once_and_asked_back_by_its_first_words(window: int, seed: int) -> None:
    for call in repetitions("beyond", window, 3, seed, QUESTIONS):
        assert [n for n, turn in enumerate(call.turns) if call.sentence in turn] == [call.told]
        key = " ".join(call.sentence.split()[:KEY_WORDS])
        assert call.turns[-1].endswith(f'"{key}".')
        assert set(call.turns[call.told + 1 : -1]) <= set(QUESTIONS)


@given(seeds, st.integers(1, len(SENTENCES)))
def test_a_call_practises_with_a_sentence_that_is_not_its_own(seed: int, calls: int) -> None:
    for call in repetitions("near", 256, calls, seed, QUESTIONS):
        told, asked = call.turns[: call.told]
        (practised,) = [sentence for sentence in SENTENCES if sentence in told]
        assert practised != call.sentence
        assert asked == told.split(":")[0] + "."


def test_calls_differ_and_a_seed_gives_the_same_again() -> None:
    calls = repetitions("edge", 512, len(SENTENCES), 5, QUESTIONS)
    assert {call.sentence for call in calls} == set(SENTENCES)
    assert len({call.turns[call.told + 1 : -1] for call in calls}) == len(calls)
    assert calls == repetitions("edge", 512, len(SENTENCES), 5, QUESTIONS)
    assert calls != repetitions("edge", 512, len(SENTENCES), 6, QUESTIONS)


@given(windows.filter(lambda window: window >= SENTENCE_TOKENS + REQUEST_TOKENS))
def test_questions_of_usual_length_put_a_sentence_where_it_was_wanted(window: int) -> None:
    for place in PLACES:
        told, repeated = 100, 100 + SENTENCE_TOKENS
        each = QUESTION_TOKENS[place == "edge"]
        asked = repeated + each * questions_between(place, window)
        found = place_of(told, repeated, asked, window)
        # Nearly out and just told is one in a window that holds no question besides.
        assert found == ("near" if asked == repeated else place)


@pytest.mark.parametrize(
    ("asked", "place"),
    [(150, "near"), (151, "edge"), (320, "edge"), (321, None), (405, None), (406, "beyond")],
)
def test_a_sentence_that_leaves_during_the_reply_is_neither_in_view_nor_gone(
    asked: int, place: Place | None
) -> None:
    window = 256
    assert REQUEST_TOKENS == 36
    assert place_of(100, 150, asked, window) == place


def test_more_calls_than_sentences_are_refused() -> None:
    with pytest.raises(FieldError, match=f"sessions = 1000: use at most {len(SENTENCES)}"):
        repetitions("near", 256, 1000, 0, QUESTIONS)


@pytest.mark.slow
@pytest.mark.assets("whisper-tiny.en")
def test_every_sentence_spoken_is_heard_word_for_word() -> None:
    try:
        voice = find_voice()
    except AssetError as error:
        pytest.skip(str(error))
    replies = [
        SpokenReply(sentence, sentence, audio)
        for sentence, audio in zip(SENTENCES, voice.say(SENTENCES), strict=True)
    ]
    found = asr_wer(replies, Listener())
    assert {
        sentence: heard
        for sentence, heard, errors in zip(SENTENCES, found.heard, found.voice.each, strict=True)
        if errors
    } == {}
