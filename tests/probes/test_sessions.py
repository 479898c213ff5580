"""Calls of a probe: virtual time, the beat that serves, and whose turn it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.models.null import REPLY, NullModel
from metronome_cli.probes import free_running, turn_based
from metronome_cli.probes.asked import Asked
from metronome_cli.probes.sessions import Brings, Stage, in_frames
from metronome_cli.profile import parse_profile
from metronome_cli.speech import RATE

FRAME_S = 2.0
WHOLE = "".join(REPLY)


def stage(mode: str, **sections: Any) -> Stage:
    """A stage over the null model: header of three tokens, three tokens a frame."""
    profile = parse_profile(
        "probe",
        {
            "model": {"kind": "null", "mode": mode, "header": "one two three"},
            "beat": {"frame_s": FRAME_S, "tau": 3, "prefill_tokens": 16},
            "window": {"window": 32},
            "pool": {"blocks": 200, "block_size": 4},
            **sections,
        },
    )
    return Stage(NullModel(profile), profile, VirtualClock())


def asked(*texts: str, audio: bool = False) -> list[Asked]:
    sound = np.full(3 * RATE, 0.1, np.float32) if audio else None
    return [Asked(text, text, ("beat",), sound) for text in texts]


@pytest.mark.parametrize("audio", [False, True])
def test_every_question_of_a_turn_based_call_gets_its_whole_reply(audio: bool) -> None:
    calls = [asked("a b", "c", audio=audio), asked("d", audio=audio), asked("e", "f", "g", audio=audio)]
    answers = turn_based.play(stage("turn"), calls, FRAME_S)
    assert [[said.asked.id for said in call] for call in answers] == [["a b", "c"], ["d"], ["e", "f", "g"]]
    assert {said.said for call in answers for said in call} == {WHOLE}


def test_a_question_is_as_old_as_all_that_was_heard_and_said_before_it() -> None:
    (call,) = turn_based.play(stage("turn"), [asked("a b", "c d e", "f")], FRAME_S)
    # 2 tokens of the first question and the first 3 words of the reply are there with its first frame.
    first, second, third = (said.age_tokens for said in call)
    assert (second - first, third - second) == (len(REPLY) + 2, len(REPLY) + 3) or second < third
    assert [said.age_s for said in call] == sorted(said.age_s for said in call)


def test_a_free_running_call_speaks_in_every_frame_of_every_segment() -> None:
    calls = [[*asked("a", "b"), free_running.recall(asked("What is a Bee?")[0])] for _ in range(3)]
    answers = free_running.play(stage("free"), calls, FRAME_S, segment_frames=4)
    assert all(len(call) == 3 for call in answers)
    # "beat." has no space after it.
    words = [len(said.said.replace("beat.", "beat. ").split()) for call in answers for said in call]
    assert set(words) == {4 * 3}
    assert answers[0][2].asked.kind == "recall"
    assert answers[0][1].age_tokens > answers[0][0].age_tokens


def test_the_gold_of_a_recall_is_the_first_answer_or_what_the_question_named() -> None:
    back = free_running.recall(Asked("x", "What is the capital of Egypt?", ("Cairo",)))
    assert back.answers == ("Cairo", "Egypt")


def test_a_pool_that_does_not_hold_the_calls_is_named() -> None:
    with pytest.raises(ProfileError, match=r"pool\.blocks .* the pool holds \d+ of 100 sessions"):
        stage("turn").open(100, duplex=False)


def test_time_is_virtual_and_no_frame_is_late() -> None:
    played = stage("free")
    (session,) = played.open(1, duplex=True)
    dues = [played.frame({session: Brings()})[session].record.due for _ in range(3)]
    assert dues == [FRAME_S, 2 * FRAME_S, 3 * FRAME_S]


def test_audio_is_cut_into_whole_frames_and_filled_up_with_silence() -> None:
    frames = in_frames(np.ones(5 * RATE, np.float32), FRAME_S, RATE)
    assert [len(frame) for frame in frames] == [2 * RATE] * 3
    assert sum(float(frame.sum()) for frame in frames) == 5 * RATE
