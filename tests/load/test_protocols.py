"""Each protocol against a server that speaks it over real sockets, and how one is told from another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection

import metronome_cli
from metronome_cli import wire
from metronome_cli.cli.local_server import serving
from metronome_cli.clock import SystemClock
from metronome_cli.errors import InputError, ProfileError, TargetUnreachable
from metronome_cli.load import caller, limits, results
from metronome_cli.load.moshi import Moshi
from metronome_cli.load.openai import Metronome, OpenAI
from metronome_cli.load.protocols import (
    Begun,
    Fault,
    Heard,
    ReplyDone,
    Sound,
    Token,
    Tongue,
    recognise,
    tongue,
)
from metronome_cli.load.runner import Plan, Run, run_load
from metronome_cli.load.targets import endpoint
from metronome_cli.load.vllm import Vllm
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.speech import RATE, Clip, read_clips

from .fakes import MoshiServer, OpenAIServer, VllmServer, served

QUESTIONS = Path(metronome_cli.__file__).parent / "data" / "questions"


def run(plan: Plan, clips: list[Clip]) -> Run:
    return run_load(plan, clips, SystemClock(), Recorder(None, SystemClock()))


# ---- Which one it is ----


@pytest.mark.parametrize(
    ("asked", "path", "first", "name"),
    [
        ("auto", "/v1/realtime", '{"type":"session.created","session":{"metronome":{}}}', "metronome"),
        ("auto", "/v1/realtime", '{"type":"session.created","session":{"id":"x"}}', "openai"),
        ("auto", "/v1/realtime", '{"type":"session.created","id":"sess-1","created":0}', "vllm"),
        ("auto", "/v1/realtime", '{"type":"error","error":{}}', "openai"),
        ("auto", "/api/chat", b"\x00", "moshi"),
        ("auto", "/api/chat/", b"\x00", "moshi"),
        ("openai", "/v1/realtime", '{"type":"session.created","session":{"metronome":{}}}', "openai"),
        ("moshi", "/elsewhere", b"\x00", "moshi"),
    ],
)
def test_a_protocol_is_known_by_name_by_path_or_by_its_first_message(
    asked: str, path: str, first: str | bytes, name: str
) -> None:
    assert recognise(asked, f"ws://127.0.0.1:1{path}", first) == name


@pytest.mark.parametrize("first", ["hello", b"\xff\xfe", "[]", ""])
def test_a_greeting_in_no_tongue_we_know_is_said_in_plain_words(first: str | bytes) -> None:
    with pytest.raises(TargetUnreachable, match="--protocol"):
        recognise("auto", "ws://127.0.0.1:1/v1/realtime", first)


def test_moshi_is_called_at_its_own_path() -> None:
    assert endpoint("http://127.0.0.1:8998", "moshi") == "ws://127.0.0.1:8998/api/chat"


# ---- OpenAI's ----


def test_an_openai_server_is_measured_by_the_time_after_speech(clips: list[Clip]) -> None:
    fake = OpenAIServer()
    with served(fake) as url:
        done = run(Plan(url, 2, 2.0, spread_s=0.1, talk_s=0.4, silence_s=0.4, budget_s=0.5), clips)
    found = results.summarise(done)
    assert found["protocol"] == "openai"
    assert found["freshness"] is None
    assert found["silence_at_s"] is None
    assert 0.2 <= found["after_speech_s"]["p50"] < 0.35  # its server_vad waits for 200 ms of silence
    assert limits.held(found)
    settings = fake.asked[0].session
    assert settings.type == "realtime"
    assert settings.audio is not None
    assert settings.audio.input is not None
    assert settings.audio.input.turn_detection is not None
    assert settings.audio.input.turn_detection.type == "server_vad"
    assert fake.samples == pytest.approx(1.5 * sum(call.stream.sent for call in done.calls), rel=0.02)
    assert all(session["heard"].startswith("Hello there.") for session in found["sessions"])


def test_without_a_budget_an_openai_server_is_not_measurable(clips: list[Clip]) -> None:
    with served(OpenAIServer()) as url:
        found = results.summarise(run(Plan(url, 1, 1.5, talk_s=0.4, silence_s=0.4), clips))
    assert [limit["held"] for limit in found["limits"]] == [True, True, None, None, None]
    assert not limits.held(found)
    assert "time after speech" in results.notes(found)[0]


def test_a_server_that_speaks_aloud_is_heard_too(clips: list[Clip]) -> None:
    with served(OpenAIServer(spoken=True)) as url:
        found = results.summarise(run(Plan(url, 1, 1.2, talk_s=0.4, silence_s=0.4), clips))
    assert found["after_speech_s"] is not None
    assert found["sound"]["back_s"] == pytest.approx(0.3 * round(found["sound"]["back_s"] / 0.3))
    assert found["sound"]["back_s"] > 0


def test_an_openai_reply_is_cancelled_once_and_only_while_it_lasts(clips: list[Clip]) -> None:
    slow = OpenAIServer(words=100, pause_s=0.02)
    with served(slow) as url:
        found = results.summarise(run(Plan(url, 1, 1.5, talk_s=0.4, silence_s=1.0, cancel_rate=1.0), clips))
    assert found["cancels"]["sent"] == slow.cancelled >= 1
    assert found["calls"]["errors"] == {}
    quick = OpenAIServer(words=2, pause_s=0.0)
    with served(quick) as url:
        found = results.summarise(run(Plan(url, 1, 1.0, talk_s=0.4, silence_s=0.4, cancel_rate=1.0), clips))
    assert found["cancels"]["sent"] == quick.cancelled == 0
    assert any("no reply was cancelled" in note for note in results.notes(found))


@pytest.mark.parametrize(
    ("message", "events"),
    [
        ('{"type":"response.output_text.delta","delta":"a","response_id":"r"}', [Token("a", "r")]),
        (
            '{"type":"response.output_audio_transcript.delta","delta":"a","response_id":"r"}',
            [Token("a", "r")],
        ),
        ('{"type":"response.text.delta","delta":"a","response_id":"r"}', [Token("a", "r")]),
        ('{"type":"response.output_audio.delta","delta":"' + "A" * 64_000 + '"}', [Sound(bytes(48_000))]),
        ('{"type":"response.done","response":{"id":"r"}}', [ReplyDone("r")]),
        ('{"type":"session.created","session":{"id":"s"}}', [Begun("s")]),
        ('{"type":"error","error":{"code":"c"}}', [Fault("c")]),
        ('{"type":"error","error":{"type":"t","code":null}}', [Fault("t")]),
        ('{"type":"error","error":null}', [Fault("error")]),
        (
            '{"type":"conversation.item.input_audio_transcription.completed","transcript":"hi"}',
            [Heard("hi ")],
        ),
        ('{"type":"response.output_item.added","delta":{"odd":1},"response":7}', []),
    ],
)
def test_an_openai_event_means_what_it_means(message: str, events: list[object]) -> None:
    assert list(OpenAI().hear(message)) == events


@pytest.mark.parametrize(
    ("told", "window"),
    [
        ({"policy": "window", "window": 256, "sinks": 4}, 260),
        ({"policy": "window", "window": 256, "sinks": "header"}, 256),
        ({"policy": "window", "window": "20 s"}, None),  # seconds: nobody says how many tokens
        ({"policy": "unbounded", "window": 256}, None),
        ({}, None),
    ],
)
def test_a_window_is_known_where_it_is_told_in_tokens(told: dict[str, Any], window: int | None) -> None:
    info = wire.SessionInfo(
        id="s", model="m", audio=wire.AudioSettings(), metronome=wire.MetronomeInfo(**told)
    )
    [begun] = Metronome().hear(wire.encode(wire.SessionCreated(event_id="e", session=info)))
    assert isinstance(begun, Begun)
    assert begun.window == window


@pytest.mark.parametrize("speaker", [OpenAI, lambda: Vllm("m"), Metronome])
@pytest.mark.parametrize("message", ["", "{", "[]", "7", "{}", b"\xff"])
def test_a_malformed_event_is_an_input_error_and_no_crash(
    speaker: Callable[[], Tongue], message: str | bytes
) -> None:
    with pytest.raises(InputError):
        speaker().hear(message)


def appended(message: str | bytes | None) -> bytes:
    assert message is not None
    event = wire.decode_client_event(message)
    assert isinstance(event, wire.AudioAppend)
    return event.audio


def test_24_khz_for_openai_is_the_same_sound_and_not_late() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE) * 16_000
    packets = [tone[at : at + 320].astype("<i2").tobytes() for at in range(0, RATE, 320)]
    speaker = OpenAI()
    heard = np.frombuffer(b"".join(appended(speaker.packet(packet)) for packet in packets), "<i2")
    assert 0 <= 24_000 - len(heard) <= 24  # a millisecond
    there = np.sin(2 * np.pi * 440 * np.arange(len(heard)) / 24_000) * 16_000
    assert np.corrcoef(heard, there)[0, 1] > 0.99


def test_our_own_server_can_be_called_as_any_openai_server(tmp_path: Path) -> None:
    profile = tmp_path / "turn.toml"
    profile.write_text('[model]\nkind = "null"\nmode = "turn"\n[beat]\nframe_s = 0.1\n')
    [italy] = [clip for clip in read_clips(QUESTIONS) if clip.name == "capital-of-italy.flac"]
    with serving(["--profile", str(profile), "--no-record"]) as url:
        # This seed begins early in the question: its end, and the pause after it, lie within the run.
        plan = Plan(
            url, 1, 2.8, seed=11, protocol="openai", talk_s=italy.seconds, silence_s=1.2, budget_s=2.0
        )
        found = results.summarise(run(plan, [italy]))
    assert found["frames"]["closed"] == 0  # nobody asked for ticks
    assert found["calls"]["errors"] == {}
    assert 0.2 < found["after_speech_s"]["p50"] < 2.0  # server_vad waits for half a second of silence


# ---- vLLM's ----


def test_a_vllm_server_is_given_a_model_sound_and_a_final_commit(clips: list[Clip]) -> None:
    fake = VllmServer(model="voxtral")
    with served(fake) as url:
        done = run(Plan(url, 2, 2.1, spread_s=0.1, protocol="vllm", model="voxtral", budget_s=1.0), clips)
    found = results.summarise(done)
    assert found["protocol"] == "vllm"
    assert found["calls"]["errors"] == {}
    assert fake.finals == 2
    assert fake.seconds == pytest.approx(sum(call.stream.sent for call in done.calls) / RATE, abs=0.1)
    # Two seconds of sound are four words, and the empty deltas between them are no tokens.
    assert {session["heard"] for session in found["sessions"]} <= {"word word word", "word word word word"}
    assert all(3 <= len(call.frames.tokens) <= 4 for call in done.calls if call.frames)


def test_a_vllm_server_is_known_by_its_greeting(clips: list[Clip]) -> None:
    with served(VllmServer()) as url:
        found = results.summarise(run(Plan(url, 1, 0.4, spread_s=0.0, model="voxtral"), clips))
    assert found["protocol"] == "vllm"


def test_vllms_errors_are_sentences_and_are_counted(clips: list[Clip]) -> None:
    with served(VllmServer()) as url:
        found = results.summarise(run(Plan(url, 1, 0.4, spread_s=0.0, model="other"), clips))
    assert found["calls"]["errors"] == {"The model `other` does not exist.": 1}
    assert not limits.held(found)


def test_a_server_that_asks_for_a_model_is_not_called_without_one(clips: list[Clip]) -> None:
    with served(VllmServer()) as url, pytest.raises(TargetUnreachable, match="--model"):
        run(Plan(url, 1, 1.0, spread_s=0.0), clips)


# ---- moshi.server's ----


def test_a_moshi_server_is_sent_opus_and_gives_as_much_sound_back() -> None:
    fake, tone = MoshiServer(), np.sin(np.arange(3 * RATE, dtype=np.float32) / 6)
    clips = [Clip("tone.wav", tone)]
    with served(fake, "/api/chat") as url:
        done = run(Plan(url, 1, 2.0, spread_s=0.0), clips)
    found = results.summarise(done)
    assert found["protocol"] == "moshi"
    assert found["calls"]["errors"] == {}
    assert found["sound"]["share"] == pytest.approx(1.0, abs=0.08)  # all but the last frames
    assert len(fake.heard) / 24_000 == pytest.approx(done.calls[0].stream.sent / RATE, abs=0.08)
    assert fake.heard.std() > 0.1  # and it is no silence
    frames = done.calls[0].frames
    assert frames is not None
    assert len(frames.tokens) == pytest.approx(2.0 / 0.4, abs=1)


def test_a_moshi_server_that_falls_behind_gives_less_sound_back(clips: list[Clip]) -> None:
    with served(MoshiServer(every=2), "/api/chat") as url:
        found = results.summarise(run(Plan(url, 1, 2.0, spread_s=0.0), clips))
    assert found["sound"]["share"] == pytest.approx(0.5, abs=0.08)


def test_a_second_caller_at_a_moshi_server_gets_no_handshake(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller, "GREETING_S", 0.4)
    with served(MoshiServer(), "/api/chat") as url:
        found = results.summarise(run(Plan(url, 2, 1.0, spread_s=0.1), clips))
    assert found["calls"]["refused"] == {"no_greeting": 1}
    assert found["calls"]["done"] == 1


@pytest.mark.parametrize(
    ("message", "events"),
    [
        (b"\x00", [Begun()]),
        (b"\x00" + bytes(8), [Begun()]),
        (b"\x02 hello", [Token(" hello")]),
        (b"\x05no room", [Fault("no room")]),
        (b"\x03\x01", []),
        (b"\x04{}", []),
        (b"\x06", []),
        (b"\xffwhat", []),
    ],
)
def test_a_moshi_message_means_what_its_first_byte_says(message: bytes, events: list[object]) -> None:
    assert list(Moshi().hear(message)) == events


@pytest.mark.parametrize("message", ["text", b""])
def test_a_malformed_moshi_message_is_an_input_error(message: str | bytes) -> None:
    with pytest.raises(InputError):
        Moshi().hear(message)


def test_sound_that_is_no_opus_is_no_sound_and_no_crash() -> None:
    assert list(Moshi().hear(b"\x01not an Ogg page")) == [Sound(b"")]


def test_each_packet_reaches_a_moshi_server_within_two_of_them() -> None:
    speaker, pcm = Moshi(), bytes(640)
    held = [speaker.packet(pcm) is None for _ in range(100)]
    assert not any(first and second for first, second in pairwise(held))


def test_without_its_codec_moshi_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sphn", None)
    with pytest.raises(ProfileError, match="pip install sphn"):
        tongue("moshi", "")


# ---- Any ----


def test_a_key_is_sent_where_it_was_given(clips: list[Clip]) -> None:
    keys = []

    async def server(line: ServerConnection) -> None:
        assert line.request is not None
        keys.append(line.request.headers.get("Authorization"))
        await OpenAIServer()(line)

    with served(server) as url:
        run(Plan(url, 1, 0.3, spread_s=0.0, api_key="sk-1"), clips)
        run(Plan(url, 1, 0.3, spread_s=0.0), clips)
    assert keys == ["Bearer sk-1", None]


@pytest.mark.parametrize(
    "fields",
    [
        {"audio_end_ms": 1e300},
        {"audio_end_ms": -1.0},
        {"due": 1e308, "done": -1e308},
        {"tick": -1},
        {"kv_blocks": 2**64},
    ],
)
def test_a_tick_event_that_no_call_can_have_had_is_malformed(told: Any, fields: dict[str, Any]) -> None:
    """Cut into steps of ten seconds, a call of 1e297 s kept `load` busy for ever."""
    tongue = Metronome()
    assert tongue.hear(msgspec.json.encode(told.tick(0))) == [told.tick(0)]
    event = json.loads(msgspec.json.encode(told.tick(0))) | fields
    with pytest.raises(InputError, match=next(iter(fields)).replace("due", "done")):
        tongue.hear(json.dumps(event))
