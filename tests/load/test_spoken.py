"""Servers that speak: what counts as an answer, what is kept of it, and what a listener makes of that."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from metronome_cli import wire
from metronome_cli.errors import InputError, ProfileError
from metronome_cli.load import results, spoken
from metronome_cli.load.call import Cancel
from metronome_cli.load.figures import waits_after_speech
from metronome_cli.load.frames import CallFrames
from metronome_cli.load.openai import Metronome, OpenAI
from metronome_cli.load.plan import Plan
from metronome_cli.load.protocols import ReplyDone, Sound, Token
from metronome_cli.load.spoken import Spoken, spoken_errors, write_all
from metronome_cli.speech import RATE

from .runs import a_call, a_run

LOUD = (np.sin(np.arange(2400) / 5) * 9000).astype("<i2").tobytes()  # a tenth of a second
QUIET = bytes(4800)


def same(text: str) -> str:
    return text.lower()


# ---- What counts ----


def test_sound_is_fresh_output_and_a_pause_of_it_too(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    frames.sound(2.1, audible=False)
    frames.sound(2.3, audible=False)
    record = frames.close(told.tick(0, tokens_out=2))
    assert (record.first, record.last, record.tokens_out, record.said, record.empty) == (
        2.1,
        2.3,
        2,
        "",
        False,
    )


def test_a_token_that_is_text_and_sound_is_one_token(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    for at, text in ((0.5, "before "), (2.1, "I "), (2.2, "hear")):
        frames.token(at, text)
        frames.sound(at + 0.05, audible=True)
    record = frames.close(told.tick(1, tokens_out=2))
    assert (record.first, record.last, record.tokens_out, record.said) == (2.1, 2.25, 2, "I hear")


def test_only_audible_sound_answers_speech() -> None:
    call = a_call()
    assert call.frames
    while call.stream.sent < 5 * RATE:
        call.stream.packet()
    end = call.stream.speech_ends()[0]
    for at, pcm in ((end + 0.1, QUIET), (end + 0.3, LOUD)):
        call.note(call.frames, Sound(pcm), at)
    assert waits_after_speech(call)[0] == pytest.approx(0.3)
    assert (call.sound_s, call.audible_s) == pytest.approx((0.2, 0.1))


def test_sound_that_comes_after_a_cancel_counts_as_a_reply_that_went_on() -> None:
    call = a_call()
    assert call.frames
    call.note(call.frames, Sound(LOUD, "r"), 1.0)
    assert call.reply == "r"
    call.cancels["r"] = Cancel("r", 1.1)
    call.note(call.frames, Sound(QUIET, "r"), 1.5)
    assert call.cancels["r"].last == 1.5


# ---- What is said and heard over the wire ----


def test_our_own_servers_sound_is_heard_as_it_is() -> None:
    tongue = Metronome()
    ids: dict[str, Any] = {"event_id": "e", "response_id": "r", "item_id": "i"}
    assert list(tongue.hear(wire.encode(wire.AudioDelta(delta=LOUD, **ids)))) == [Sound(LOUD, "r")]
    assert list(tongue.hear(wire.encode(wire.TranscriptDelta(delta="a", **ids)))) == [Token("a", "r")]
    assert list(tongue.hear(wire.encode(wire.TranscriptDone(transcript="a", **ids)))) == [ReplyDone("r")]
    assert list(tongue.hear(wire.encode(wire.AudioDone(**ids)))) == []


@pytest.mark.parametrize("tongue", [Metronome, OpenAI])
@pytest.mark.parametrize("modality", ["auto", "text", "audio"])
def test_replies_are_asked_for_in_one_modality(tongue: Any, modality: str) -> None:
    asked = wire.decode_client_event(tongue(modality).opening()[0])
    assert isinstance(asked, wire.SessionUpdate)
    by_itself = None if tongue is Metronome else ["text"]
    assert asked.session.output_modalities == (by_itself if modality == "auto" else [modality])


def test_sound_that_is_no_base64_is_an_error_of_the_server() -> None:
    with pytest.raises(InputError, match="expected base64"):
        OpenAI().hear('{"type":"response.output_audio.delta","delta":"***"}')
    good = base64.b64encode(LOUD).decode()
    said = f'{{"type":"response.output_audio.delta","delta":"{good}","response_id":"r"}}'
    assert list(OpenAI().hear(said)) == [Sound(LOUD, "r")]


def test_a_protocol_without_a_choice_is_offered_none() -> None:
    with pytest.raises(ProfileError, match="moshi"):
        Plan("127.0.0.1", 1, 9.0, protocol="moshi", replies="audio")
    with pytest.raises(ProfileError, match="use one of auto, text, audio"):
        Plan("127.0.0.1", 1, 9.0, replies="video")


# ---- What is kept ----


def test_what_is_kept_is_bounded_and_written_as_it_was_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spoken, "_MOST_BYTES", 2 * len(LOUD))
    one, silent = Spoken(3), Spoken(4)
    for number in range(5):
        one.read(f"word{number} ")
        one.hear(LOUD)
    assert one.text == "word0 word1 "
    assert write_all([one, silent], tmp_path) == ["spoken/call-0003.wav"]
    samples, rate = soundfile.read(tmp_path / "spoken/call-0003.wav", dtype="int16")
    assert (rate, samples.astype("<i2").tobytes()) == (24_000, 2 * LOUD)
    assert len(one.samples()) == pytest.approx(0.2 * RATE, abs=2)
    assert write_all([silent], tmp_path / "nothing") == []


def test_a_listeners_errors_are_counted_against_the_transcript(told: Any) -> None:
    run = a_run(told, [2.0], 4.0)
    (call,) = run.calls
    assert results.reply_errors(run, lambda clips: [""] * len(clips)) is None
    call.spoken = Spoken(0)
    call.spoken.read("the quick brown fox jumps over the lazy dog again and again")
    call.spoken.hear(LOUD)
    found = results.reply_errors(run, lambda clips: ["The quick red fox jumps over the lazy dog"])
    assert found is not None
    assert (found["substituted"], found["lost"], found["calls"], found["words"]) == (1, 0, 1, 9)


def test_a_text_without_sound_and_sound_without_text_say_nothing() -> None:
    mute, wordless = Spoken(0), Spoken(1)
    mute.read("a word")
    wordless.hear(LOUD)
    assert spoken_errors([mute, wordless], ["a word", "a word"], same) is None


def test_half_a_sample_at_the_end_costs_no_run(tmp_path: Path) -> None:
    one = Spoken(0)
    one.hear(LOUD)
    one.hear(b"x")
    assert write_all([one], tmp_path) == ["spoken/call-0000.wav"]
    kept, _ = soundfile.read(tmp_path / "spoken/call-0000.wav", dtype="int16")
    assert kept.tobytes() == LOUD
    assert len(one.samples()) == RATE // 10
    assert [Sound(pcm, "r").audible for pcm in (b"x", LOUD + b"x", QUIET + b"x")] == [False, True, False]
