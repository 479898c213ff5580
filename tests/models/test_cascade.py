"""Speech in, text out: what is heard becomes one turn when its utterance is over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from metronome_cli.frame import Frame, Prefilled, Said
from metronome_cli.models import cascade
from metronome_cli.models.assets import locate
from metronome_cli.models.cascade import MOST_WORDS, Cascade, _Ear, _finished
from metronome_cli.models.ears import Heard, Listening
from metronome_cli.profile import Profile, load_profile, parse_profile
from metronome_cli.speech import RATE

FRAME = 2 * RATE
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
    pieces = [np.zeros(round(p * RATE), np.float32) if isinstance(p, float) else p for p in parts]
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
            1: frames(0.5, france, 10.0 - len(france) / RATE),
            2: frames(3.0, week, 7.5 - len(week) / RATE),
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


# ---- Commits and clears, with ears and a thinker that only remember ----


class Hearing:
    """Ears that hear a word in each second of sound, and forget when told to."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.forgotten = 0

    def open(self) -> Listening:
        return Listening()

    def forget(self, listening: Listening) -> None:
        self.forgotten += 1

    def hear(self, calls: Any, audios: list[NDArray[np.float32]], commits: list[bool]) -> list[Heard]:
        texts = [" ".join(["word"] * (len(audio) // RATE)) for audio in audios]
        return [Heard(text, commit and text != "") for text, commit in zip(texts, commits, strict=True)]


class Thinking:
    """A thinker that remembers what it was told."""

    def __init__(self, *_: Any) -> None:
        self.told: list[Frame] = []

    def open(self, *_: Any) -> None:
        return None

    def tick(self, frames: list[Frame]) -> Iterator[Prefilled]:
        self.told += frames
        return (Prefilled(frame.session, 0) for frame in frames)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Cascade:
    """One call, to one who only remembers."""
    monkeypatch.setattr(cascade, "Ears", Hearing)
    monkeypatch.setattr(cascade, "TextModel", Thinking)
    monkeypatch.setattr(cascade, "locate", Path)
    made = Cascade(load_profile("laptop"))
    made.open(1, seed=0)
    return made


def hear(listener: Cascade, seconds: int, **fields: Any) -> tuple[tuple[str, ...], int]:
    """What the thinker is told in a tick, and how many utterances ended in it."""
    frame = Frame(1, np.zeros(seconds * RATE, np.float32), duplex=False, **fields)
    (event,) = listener.tick([frame])
    assert isinstance(event, Prefilled)
    return listener._text.told[-1].texts, event.over  # type: ignore[attr-defined]


def test_words_that_were_not_committed_are_forgotten_by_a_clear(listener: Cascade) -> None:
    assert hear(listener, 3) == ((), 0)
    assert hear(listener, 1, clear=True) == ((), 0)
    assert listener._ears.forgotten == 1  # type: ignore[attr-defined]
    assert hear(listener, 1, commit=1) == (("word word",), 1)


def test_a_clear_forgets_even_the_words_of_a_long_speech(listener: Cascade) -> None:
    for _ in range(2 * MOST_WORDS // 5):
        assert hear(listener, 5) == ((), 0)
    assert hear(listener, 0, clear=True, commit=1) == ((), 1)


def test_every_commit_of_a_frame_is_told_even_when_nothing_was_heard(listener: Cascade) -> None:
    assert hear(listener, 0, commit=3) == ((), 3)
    assert hear(listener, 2, commit=2) == (("word word",), 2)


def test_a_speech_that_is_never_committed_fills_no_memory(
    listener: Cascade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cascade, "MOST_KEPT", 10)
    for _ in range(20):
        hear(listener, 3)
    assert hear(listener, 0, commit=1) == ((" ".join(["word"] * 10),), 1)
