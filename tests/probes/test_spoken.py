"""Word error rates tell model, voice and ears apart, and are not measured where an instrument is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.errors import AssetError, NotMeasured
from metronome_cli.models.listener import Listener
from metronome_cli.models.voice import Voice, find_voice
from metronome_cli.probes import spoken
from metronome_cli.probes.spoken import SpokenReply, asr_wer, error_rates, instruments

SILENCE = np.zeros(0, np.float32)


class Hears(Listener):
    """A listener that hears what it is told to hear."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def write(self, clips: Sequence[NDArray[np.float32]]) -> list[str]:
        assert len(clips) == len(self._texts)
        return list(self._texts)


def test_rates_are_those_of_a_hand_count_after_normalising() -> None:
    found = error_rates(["The cat sat.", "Twenty four dogs"], ["the cat sat down", "24 cats"])
    # "the cat sat" gains a word; "24 dogs" has one replaced.
    assert found.each == pytest.approx((1 / 3, 1 / 2))
    assert found.wer == pytest.approx(2 / 5)
    assert found.words == 5


def test_a_pair_in_which_nothing_was_meant_is_left_out_and_an_empty_reply_is_all_wrong() -> None:
    found = error_rates(["", "two words"], ["noise", ""])
    assert found.each == (None, 1.0)
    assert (found.wer, found.cer, found.words) == (1.0, 1.0, 2)
    assert error_rates(["..."], ["x"]).wer is None
    assert error_rates([], []).wer is None


def test_a_fault_of_the_model_and_one_of_the_voice_are_told_apart() -> None:
    replies = [
        SpokenReply("red green blue white", "red green blue", SILENCE),  # the model forgot a word
        SpokenReply("one big house here", "one big house here", SILENCE),  # the ears mistake one
    ]
    found = asr_wer(replies, Hears("red green blue", "one big mouse here"))
    assert found.model.each == (0.25, 0.0)
    assert found.voice.each == (0.0, 0.25)
    assert found.spoken.each == (0.25, 0.25)
    assert found.heard == ("red green blue", "one big mouse here")


@pytest.mark.assets("whisper-tiny.en")
def test_a_sentence_spoken_and_heard_comes_back() -> None:
    try:
        voice: Voice = find_voice()
    except AssetError as error:
        pytest.skip(str(error))
    sentence = "The old farmer waters his garden every morning."
    forgetful = "The old farmer waters his garden."
    texts = [sentence, forgetful, ""]
    replies = [
        SpokenReply(sentence, text, audio) for text, audio in zip(texts, voice.say(texts), strict=True)
    ]
    found = asr_wer(replies, instruments()[1])
    assert found.voice.each == (0.0, 0.0, None)
    assert found.model.each == found.spoken.each == (0.0, 2 / 8, 1.0)


def test_without_a_voice_or_ears_nothing_is_measured_and_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_voice() -> Voice:
        raise AssetError("no voice: run `pip install it`")

    monkeypatch.setattr(spoken, "find_voice", no_voice)
    with pytest.raises(NotMeasured, match=r"asr_wer: no voice: run `pip install it`"):
        instruments()
    monkeypatch.setattr(spoken, "find_voice", lambda: None)
    with pytest.raises(NotMeasured, match=r"asr_wer: 'no-ears' is no path here"):
        instruments("no-ears")
