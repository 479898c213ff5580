"""Word errors against the clips' script, with the cut words at both ends of a call left in peace."""

from __future__ import annotations

import numpy as np
import pytest

from metronome_cli.load import results
from metronome_cli.load.heard import heard_errors
from metronome_cli.models.normal import normal
from metronome_cli.speech import RATE, Clip, Stream

from .runs import a_call

SCRIPT = {
    "a": "the quick brown fox jumps over the lazy dog",
    "b": "how many minutes are in an hour",
    "c": "red planets turn slowly around distant suns",
}
CLIPS = [Clip(name, np.full(3 * RATE, 0.5, np.float32), text) for name, text in SCRIPT.items()]


def spoken(seconds: float, seed: int = 1) -> tuple[Stream, list[str]]:
    """A stream of that length, and the full texts of its clips in order."""
    stream = Stream(CLIPS, seed)
    while stream.sent < seconds * RATE:
        stream.packet()
    return stream, [SCRIPT[p.clip] for p in stream.passages if p.clip and p.start < stream.sent]


def same(text: str) -> str:
    return text.lower()


def test_a_call_that_was_heard_rightly_has_no_errors_wherever_it_was_cut() -> None:
    stream, texts = spoken(30.0)
    words = " ".join(texts).split()
    for first, last in ((0, 0), (3, 0), (0, 4), (5, 2)):
        heard = " ".join(words[first : len(words) - last])
        found = heard_errors([(stream, heard)], SCRIPT, same)
        assert found is not None
        assert (found["wer"], found["words"]) == (0.0, len(words) - first - last)


def test_errors_in_the_middle_are_counted_by_kind() -> None:
    stream, texts = spoken(30.0)
    words = " ".join(texts).split()
    middle = len(words) // 2
    heard = [*words[:middle], "extra", "wrong", *words[middle + 1 : middle + 4], *words[middle + 5 :]]
    found = heard_errors([(stream, " ".join(heard))], SCRIPT, same)
    assert found is not None
    assert (found["added"], found["substituted"], found["lost"]) == (1, 1, 1)
    assert found["wer"] == pytest.approx(3 / found["words"])


def test_a_whole_clip_that_was_not_heard_is_lost_words_and_no_cut() -> None:
    stream, texts = spoken(30.0)
    del texts[3]
    found = heard_errors([(stream, " ".join(texts))], SCRIPT, same)
    assert found is not None
    assert found["lost"] >= 6


def test_where_the_script_is_unknown_or_nothing_was_told_there_is_no_rate() -> None:
    stream, texts = spoken(20.0)
    heard = " ".join(texts)
    assert heard_errors([(stream, heard)], {**SCRIPT, "b": None}, same) is None
    assert heard_errors([(stream, "")], SCRIPT, same) is None
    assert heard_errors([], SCRIPT, same) is None


def test_words_are_compared_as_whisper_normalises_them() -> None:
    assert normal("The colour is Grey; it's twenty-five!") == "the color is gray it is 25"


def test_a_run_compares_what_its_calls_heard_with_what_their_clips_say() -> None:
    from metronome_cli.load.plan import Plan
    from metronome_cli.load.runner import Run

    call = a_call()
    call.stream, texts = spoken(30.0)
    call.heard = [f"{text}. " for text in texts]
    found = results.word_errors(Run(Plan("127.0.0.1", 1, 60.0), 0.0, [call], CLIPS))
    assert found is not None
    assert found["wer"] == 0.0
    call.heard = []
    assert results.word_errors(Run(Plan("127.0.0.1", 1, 60.0), 0.0, [call], CLIPS)) is None
