"""Speech in, text out: what is heard becomes one turn when its utterance is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from metronome_cli.frame import HEARING_RATE, Frame, Prefilled, Said
from metronome_cli.models.assets import locate
from metronome_cli.models.cascade import MOST_WORDS, Cascade, _Ear, _finished
from metronome_cli.models.ears import Heard, Listening
from metronome_cli.profile import Profile, load_profile, parse_profile

FRAME = 2 * HEARING_RATE
SILENCE = np.zeros(0, np.float32)


def test_words_wait_for_the_end_of_their_utterance_and_go_in_as_one_turn() -> None:
    ear, duplex = _Ear(Listening()), Frame(1, SILENCE)
    assert _finished(duplex, ear, Heard("What is", False)) == ()
    assert _finished(duplex, ear, Heard("", False)) == ()
    assert _finished(duplex, ear, Heard("the time?", True)) == ("What is the time?",)
    assert _finished(duplex, ear, Heard("", True)) == ()


def test_in_a_call_that_is_not_duplex_only_a_commit_ends_an_utterance() -> None:
    ear = _Ear(Listening())
    assert _finished(Frame(1, SILENCE, duplex=False), ear, Heard("What is", True)) == ()
    assert _finished(Frame(1, SILENCE, duplex=False, commit=1), ear, Heard("it?", False)) == ("What is it?",)


def test_who_never_pauses_is_answered_all_the_same_and_fills_no_memory() -> None:
    ear, frame = _Ear(Listening()), Frame(1, SILENCE)
    turns = [turn for _ in range(100) for turn in _finished(frame, ear, Heard("on and on", False))]
    assert len(turns) == 100 // (MOST_WORDS // 3 + 1)
    assert all(MOST_WORDS <= len(turn.split()) < MOST_WORDS + 3 for turn in turns)
    assert len(ear.words) < MOST_WORDS


def question(name: str) -> NDArray[np.float32]:
    samples: NDArray[np.float32] = soundfile.read(locate("questions") / f"{name}.flac", dtype="float32")[0]
    return samples


def frames(*parts: NDArray[np.float32] | float) -> Iterator[NDArray[np.float32]]:
    """A call's audio in frames of 2 s; numbers are seconds of silence."""
    pieces = [np.zeros(round(p * HEARING_RATE), np.float32) if isinstance(p, float) else p for p in parts]
    audio = np.concatenate(pieces)
    for at in range(0, len(audio), FRAME):
        yield audio[at : at + FRAME]


def play(profile: Profile, calls: dict[int, Iterator[NDArray[np.float32]]]) -> list[dict[int, Any]]:
    """One dict a tick: per session what was heard, how many tokens went in, what was said."""
    model = Cascade(profile)
    for session in calls:
        assert model.open(session, seed=session) is None
    ticks = []
    for audios in zip(*calls.values(), strict=True):
        tick: dict[int, Any] = {s: {"heard": "", "in": 0, "said": "", "count": 0} for s in calls}
        for event in model.tick([Frame(s, a) for s, a in zip(calls, audios, strict=True)]):
            row = tick[event.session]
            if isinstance(event, Prefilled):
                row["heard"], row["in"] = event.heard, event.tokens_in
            elif isinstance(event, Said):
                row["said"] += event.text
                row["count"] += 1
        ticks.append(tick)
    return ticks


@pytest.mark.assets("whisper-tiny.en")
def test_two_calls_hear_their_own_question_and_speak_in_every_frame(tiny_chat: Path) -> None:
    profile = parse_profile(
        "test",
        {
            "model": {"thinker": str(tiny_chat), "mode": "free", "header": "Be brief."},
            "beat": {"tau": 3, "prefill_tokens": 200},
            "window": {"policy": "unbounded"},
            "run": {"threads": 1},
        },
    )
    france, week = question("capital-of-france"), question("days-in-a-week")
    ticks = play(
        profile,
        {
            1: frames(0.5, france, 10.0 - len(france) / HEARING_RATE),
            2: frames(3.0, week, 7.5 - len(week) / HEARING_RATE),
        },
    )
    heard = {s: " ".join(tick[s]["heard"] for tick in ticks).lower() for s in (1, 2)}
    assert "capital of france" in heard[1]
    assert "days" in heard[2]
    assert "france" not in heard[2]
    assert all(tick[s]["count"] == 3 for tick in ticks for s in (1, 2))
    for session in (1, 2):
        turns = [tick[session]["in"] for tick in ticks[1:] if tick[session]["in"]]
        assert len(turns) == 1, "one utterance, one turn"


@pytest.mark.assets("whisper-tiny.en", "smollm2-135m-instruct")
def test_a_spoken_question_is_answered_by_the_default_profile() -> None:
    ticks = play(load_profile("laptop"), {1: frames(1.0, question("capital-of-france"), 12.0)})
    assert "Paris" in "".join(tick[1]["said"] for tick in ticks)
