from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metronome_cli.frame import Frame
from metronome_cli.runtime.mute import HOP_S, PAUSE_S, Unanswered
from metronome_cli.speech import RATE

MUTE_S = 30.0


def tone(seconds: float, dbfs: float = -20.0) -> NDArray[np.float32]:
    """A hum of that loudness: its root mean square, over whole hops."""
    times = np.arange(round(seconds * RATE)) / RATE
    hum: NDArray[np.float64] = np.sqrt(2) * 10 ** (dbfs / 20) * np.sin(2 * np.pi * 200 * times)
    return hum.astype(np.float32)


def hush(seconds: float) -> NDArray[np.float32]:
    return np.zeros(round(seconds * RATE), np.float32)


class Caller:
    """One call in frames of a second; its clock goes with its audio."""

    def __init__(self, free: bool = False, duplex: bool = True) -> None:
        self.unanswered = Unanswered()
        self.free, self.duplex, self.now = free, duplex, 0.0

    def frame(
        self,
        audio: NDArray[np.float32],
        said: str = "",
        *,
        speaking: bool | None = None,
        reply: int | None = None,
        clear: bool = False,
    ) -> bool:
        """Bring a frame to a tick; whether the call is mute after it."""
        self.unanswered.hear(Frame(1, audio, duplex=self.duplex, reply=reply, clear=clear))
        self.now += len(audio) / RATE
        speaks = self.free or bool(said) if speaking is None else speaking
        self.unanswered.answered(speaks, said, self.now)
        return self.unanswered.is_mute(MUTE_S, self.free, self.now)

    def frames(self, seconds: int, said: str = "", sound: bool = True) -> bool:
        """Whether the call was mute after any of so many frames."""
        return True in [self.frame(tone(1.0) if sound else hush(1.0), said) for _ in range(seconds)]


def test_a_free_model_that_says_nothing_to_half_a_minute_of_sound_is_mute() -> None:
    caller = Caller(free=True)
    assert not caller.frames(29)
    assert caller.frame(tone(1.0))


def test_a_word_takes_the_muteness_away_and_a_blank_does_not() -> None:
    caller = Caller(free=True)
    caller.frames(40)
    assert caller.frame(tone(1.0), said=" \n")
    assert not caller.frame(tone(1.0), said=" yes")
    assert not caller.frames(29)


def test_silence_is_no_speech_however_long() -> None:
    assert not Caller(free=True).frames(600, sound=False)


@pytest.mark.parametrize(("dbfs", "is_sound"), [(-44.0, True), (-46.0, False)])
def test_sound_begins_at_minus_45_dbfs(dbfs: float, is_sound: bool) -> None:
    caller = Caller(free=True)
    assert (True in [caller.frame(tone(1.0, dbfs)) for _ in range(31)]) is is_sound


def test_a_caller_who_speaks_without_a_pause_for_minutes_is_owed_nothing_yet() -> None:
    assert not Caller().frames(300)


def test_turns_that_are_answered_never_make_a_caller_mute() -> None:
    """Ten minutes of questions of 5 to 40 s, each answered in the frame after its pause."""
    caller = Caller()
    for length in (5, 12, 40, 8, 33, 20, 40, 40, 7, 35):
        assert not caller.frames(length)
        assert not caller.frames(int(PAUSE_S) + 1, sound=False)
        assert not caller.frames(3, said="Yes.", sound=False)


def test_the_answer_to_a_long_turn_may_take_a_while_to_begin() -> None:
    caller = Caller()
    caller.frames(120)
    assert not caller.frame(hush(1.0), speaking=True)
    assert not caller.frames(25, sound=False)
    assert not caller.frame(hush(1.0), said="Well, ")


def test_turns_that_nobody_answers_make_a_caller_mute() -> None:
    """Deaf ears: the model is never to speak. Only the pauses tell that somebody waits."""
    caller = Caller()
    mute = [caller.frames(5) | caller.frames(3, sound=False) for _ in range(8)]
    assert mute == [False] * 5 + [True] * 3


def test_a_model_that_is_to_speak_and_does_not_makes_a_caller_mute() -> None:
    caller = Caller()
    assert True in [caller.frame(tone(1.0), speaking=True) for _ in range(40)]


@pytest.mark.parametrize("asked", [True, False])
def test_who_asks_for_replies_may_pause_at_will_until_then(asked: bool) -> None:
    caller = Caller(duplex=False)
    for _ in range(20):
        assert not caller.frames(5)
        assert not caller.frames(4, sound=False)
    caller.frame(hush(1.0), reply=0 if asked else None)
    assert caller.frames(40, sound=False) is asked


def test_a_free_model_that_was_told_to_wait_for_a_request_owes_nothing_before() -> None:
    caller = Caller(free=True, duplex=False)
    assert True not in [caller.frame(tone(1.0), speaking=False) for _ in range(60)]


def test_what_a_caller_took_back_is_not_owed() -> None:
    caller = Caller(duplex=False)
    caller.frames(60)
    caller.frame(hush(1.0), clear=True)
    caller.frame(hush(1.0), reply=0)
    assert not caller.frames(60, sound=False)
    caller.frames(60)
    caller.frame(hush(1.0), reply=0)
    caller.unanswered.forgive()  # the reply was cancelled
    assert not caller.frames(60, sound=False)


@given(st.lists(st.integers(0, 4 * round(RATE * HOP_S)), max_size=30), st.booleans())
def test_how_audio_is_cut_into_frames_does_not_matter(sizes: list[int], duplex: bool) -> None:
    audio = np.concatenate((tone(0.3), hush(0.1), tone(0.2), hush(0.05), tone(0.1)))
    whole, cut = Unanswered(), Unanswered()
    whole.hear(Frame(1, audio, duplex=duplex))
    start = 0
    for size in [*sizes, len(audio)]:
        cut.hear(Frame(1, audio[start : start + size], duplex=duplex))
        start += size
    for counted in (whole, cut):
        counted.answered(True, "", 0.0)
    levels = [0.02 * hops for hops in range(40)]
    heard = [[c.is_mute(level, False, 1e9) for level in levels] for c in (whole, cut)]
    assert heard[0] == heard[1]
