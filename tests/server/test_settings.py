"""What a client may set, and how it is told what cannot be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from metronome_cli import wire
from metronome_cli.errors import InputError, ProfileError
from metronome_cli.profile import Profile, Terms, parse_profile
from metronome_cli.server.settings import (
    LONGEST_ID,
    LONGEST_VALUE,
    MOST_INSTRUCTIONS,
    MOST_METADATA,
    Settings,
    check_in_time,
    info,
    initial,
    reply_settings,
    typed,
    unmet,
    update,
)
from metronome_cli.server.turns import DEFAULTS


def profile(mode: str = "turn", **window: Any) -> Profile:
    return parse_profile(
        "test",
        {
            "model": {"kind": "null", "mode": mode, "header": "one two"},
            "beat": {"prefill_tokens": 16},
            "window": {"window": 64, "sinks": 4, **window},
            "pool": {"blocks": 60, "block_size": 4},
        },
    )


def asked(**fields: Any) -> wire.SessionSettings:
    return msgspec.convert({"type": "realtime", **fields}, wire.SessionSettings)


def listening(**fields: Any) -> wire.SessionSettings:
    return asked(audio={"input": fields})


def after(settings: wire.SessionSettings, now: Settings | None = None) -> Settings:
    return update(now or initial(profile()), settings, profile())


def test_a_session_begins_with_openais_defaults() -> None:
    settings = initial(profile())
    assert (settings.rate, settings.most_tokens, settings.ticks, settings.resume) == (24_000, 0, False, False)
    assert settings.transcription is None
    assert settings.detection.turns == DEFAULTS
    assert (settings.detection.create_response, settings.detection.interrupt_response) == (True, True)
    assert settings.detection.shown == wire.TurnDetection(
        threshold=0.5,
        prefix_padding_ms=300,
        silence_duration_ms=500,
        create_response=True,
        interrupt_response=True,
    )


def test_a_model_that_never_rests_detects_no_turns() -> None:
    detection = initial(profile("free")).detection
    assert (detection.duplex, detection.shown, detection.turns) == (True, None, None)


def test_what_is_left_out_stays_as_it_is() -> None:
    before = after(listening(format={"type": "audio/pcm", "rate": 8_000}, transcription={"model": "any"}))
    changed = after(asked(max_output_tokens=9, metronome={"ticks": True, "sinks": 8}), before)
    assert after(asked(), changed) == changed
    assert (changed.rate, changed.most_tokens, changed.ticks, changed.terms.sinks) == (8_000, 9, True, 8)
    assert changed.transcription == wire.Transcription(model="any")


def test_null_turns_things_off() -> None:
    before = after(listening(transcription={}))
    off = after(listening(turn_detection=None, transcription=None), before)
    assert (off.transcription, off.detection.turns, off.detection.shown) == (None, None, None)
    assert not off.detection.create_response


def test_a_duplex_session_listens_for_turns_only_to_be_interrupted() -> None:
    duplex = after(listening(turn_detection={"type": "full_duplex"})).detection
    assert (duplex.duplex, duplex.turns, duplex.interrupt_response) == (True, None, False)
    interrupted = {"type": "full_duplex", "interrupt_response": True, "threshold": 0.7}
    turns = after(listening(turn_detection=interrupted)).detection.turns
    assert turns is not None
    assert turns.threshold == 0.7


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"type": "transcription"}, "unsupported_session", "session.type"),
        ({"output_modalities": ["audio"]}, "unsupported_modality", "session.output_modalities"),
        ({"tools": [{}]}, "unsupported_parameter", "session.tools"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_output_tokens": "many"}, "invalid_value", "session.max_output_tokens"),
        ({"instructions": "x" * (MOST_INSTRUCTIONS + 1)}, "invalid_value", "session.instructions"),
        ({"metronome": {"policy": "forget"}}, "invalid_value", "session.metronome.policy"),
        ({"metronome": {"policy": "unbounded"}}, "invalid_value", "session.metronome.policy"),
        ({"metronome": {"window": 0}}, "invalid_value", "session.metronome.window"),
        ({"metronome": {"window": 80}}, "invalid_value", "session.metronome.window"),
        ({"metronome": {"sinks": -1}}, "invalid_value", "session.metronome.sinks"),
        ({"metronome": {"sinks": 65}}, "invalid_value", "session.metronome.sinks"),
        ({"metronome": {"positions": "relative"}}, "invalid_value", "session.metronome.positions"),
        ({"metronome": {"policy": "recycle", "window": 17}}, "invalid_value", "session.metronome.window"),
    ],
)
def test_what_cannot_be_met_is_refused_by_name(fields: dict[str, Any], code: str, field: str) -> None:
    with pytest.raises(InputError) as caught:
        after(asked(**fields))
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("detection", "field"),
    [
        ({"type": "semantic_vad"}, "type"),
        ({"type": "server_vad", "threshold": 1.1}, "threshold"),
        ({"type": "server_vad", "silence_duration_ms": -1}, "silence_duration_ms"),
        ({"type": "full_duplex", "prefix_padding_ms": 10**9}, "prefix_padding_ms"),
    ],
)
def test_turn_detection_that_we_do_not_have_is_refused(detection: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        after(listening(turn_detection=detection))
    assert caught.value.field == f"session.audio.input.turn_detection.{field}"


def test_a_session_may_ask_for_less_than_the_profile_gives() -> None:
    terms = after(asked(metronome={"window": 32, "sinks": 2, "positions": "absolute"})).terms
    assert terms == Terms(window=32, sinks=2, positions="absolute")
    narrower = after(
        asked(metronome={"policy": "recycle"}), Settings(initial(profile()).detection, terms=terms)
    )
    assert narrower.terms == Terms(policy="recycle", window=32, sinks=2, positions="absolute")


def test_a_pool_without_bound_still_refuses_what_does_not_fit_in_it() -> None:
    growing = profile(policy="unbounded")
    with pytest.raises(InputError, match="one session of this window needs") as caught:
        update(initial(growing), asked(metronome={"policy": "window", "window": 4000}), growing)
    assert caught.value.field == "session.metronome.window"
    assert update(initial(growing), asked(metronome={"policy": "window", "window": 40}), growing).terms.window


@pytest.mark.parametrize(
    ("terms", "error", "field"),
    [
        (Terms(instructions="x"), ProfileError("session.instructions", "x", "none"), "session.instructions"),
        (Terms(instructions="x"), ProfileError("window.window", 512, "no"), "session.instructions"),
        (Terms(policy="recycle"), ProfileError("window.carry", 9, "no"), "session.metronome.policy"),
        (Terms(sinks=60), ProfileError("window.window", 64, "no"), "session.metronome.sinks"),
        (Terms(policy="window", window=9), ProfileError("pool.blocks", 4, "no"), "session.metronome.window"),
        (Terms(window=9, sinks=60), ProfileError("window.sinks", 60, "no"), "session.metronome.sinks"),
    ],
)
def test_a_refusal_names_a_field_that_was_sent(terms: Terms, error: ProfileError, field: str) -> None:
    assert unmet(error, terms).field == field


def test_other_terms_come_too_late_once_a_session_has_begun() -> None:
    before = initial(profile())
    check_in_time(before, after(asked(metronome={"ticks": True}, max_output_tokens=3)))
    for change, field in (
        ({"metronome": {"window": 32}}, "session.metronome"),
        ({"instructions": "be brief"}, "session.instructions"),
    ):
        with pytest.raises(InputError) as caught:
            check_in_time(before, after(asked(**change)))
        assert (caught.value.code, caught.value.field) == ("session_started", field)


def test_a_session_shows_what_it_stands_at() -> None:
    settings = after(asked(instructions="be brief", metronome={"window": 32}, max_output_tokens=5))
    shown = info(settings, profile(), "sess_1", "secret")
    assert (shown.id, shown.model, shown.instructions, shown.max_output_tokens) == (
        "sess_1",
        "test",
        "be brief",
        5,
    )
    assert (shown.metronome.window, shown.metronome.sinks, shown.metronome.policy) == (32, 4, "window")
    assert (shown.metronome.resume_token, shown.metronome.grace_s) == ("secret", 30.0)
    own = info(initial(profile()), profile(), "sess_1", None)
    assert (own.instructions, own.max_output_tokens, own.metronome.grace_s) == ("one two", "inf", None)


# ---- A single reply ----


def reply(**fields: Any) -> wire.ResponseSettings:
    return msgspec.convert(fields, wire.ResponseSettings)


@pytest.mark.parametrize(
    ("asks", "tokens"),
    [(None, 7), (reply(), 7), (reply(max_output_tokens=3), 3), (reply(max_output_tokens="inf"), 0)],
)
def test_a_reply_has_its_own_limit_or_the_sessions(asks: wire.ResponseSettings | None, tokens: int) -> None:
    now = replace(initial(profile()), most_tokens=7)
    assert reply_settings(asks, now, profile()) == (tokens, False)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"output_modalities": ["audio"]}, "output_modalities"),
        ({"tools": [{}]}, "tools"),
        ({"instructions": "be brief"}, "instructions"),
        ({"input": [{}]}, "input"),
        ({"conversation": "none"}, "conversation"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"metadata": {str(n): "" for n in range(MOST_METADATA + 1)}}, "metadata"),
        ({"metadata": {"k": "v" * (LONGEST_VALUE + 1)}}, "metadata"),
    ],
)
def test_what_a_single_reply_cannot_have_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        reply_settings(reply(**fields), initial(profile()), profile())
    assert caught.value.field == f"response.{field}"


def test_what_changes_nothing_for_a_single_reply_is_taken() -> None:
    taken = reply(
        output_modalities=["text"], conversation="auto", tools=[], metadata={"k": "v" * LONGEST_VALUE}
    )
    assert reply_settings(taken, initial(profile()), profile()) == (0, False)


# ---- A model that speaks ----

SPEAKER = parse_profile("speaker", {"model": {"kind": "speaker:Speaker", "output": "audio"}})


def test_a_model_that_speaks_answers_in_sound_unless_text_is_asked_for() -> None:
    now = initial(SPEAKER)
    shown = info(now, SPEAKER, "sess_1", None)
    assert shown.output_modalities == ["audio"]
    assert shown.audio.output == wire.AudioOutput(format=wire.AudioFormat(rate=24_000))
    text = update(now, asked(output_modalities=["text"]), SPEAKER)
    assert info(text, SPEAKER, "sess_1", None).output_modalities == ["text"]
    assert update(text, asked(output_modalities=["audio"]), SPEAKER).aloud
    assert not update(text, asked(instructions="Be brief."), SPEAKER).aloud
    assert reply_settings(None, now, SPEAKER) == reply_settings(reply(), now, SPEAKER) == (0, True)
    assert reply_settings(reply(output_modalities=["text"]), now, SPEAKER) == (0, False)
    assert reply_settings(reply(output_modalities=["audio"]), text, SPEAKER) == (0, True)


def test_only_sound_as_it_is_spoken_can_be_asked_for() -> None:
    kept = {"audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "marin"}}}
    assert update(initial(SPEAKER), asked(**kept), SPEAKER) == initial(SPEAKER)
    for form in ({"type": "audio/pcmu"}, {"type": "audio/pcm", "rate": 16_000}):
        with pytest.raises(InputError) as caught:
            update(initial(SPEAKER), asked(audio={"output": {"format": form}}), SPEAKER)
        assert caught.value.field == "session.audio.output.format"
    with pytest.raises(InputError, match=r'use \["audio"\] or \["text"\]'):
        update(initial(SPEAKER), asked(output_modalities=["text", "audio"]), SPEAKER)


# ---- A typed message ----


def message(previous: str | None = None, **fields: Any) -> wire.ItemCreate:
    content = [{"type": "input_text", "text": "hi"}]
    item = {"type": "message", "role": "user", "content": content, **fields}
    return msgspec.convert({"item": item, "previous_item_id": previous}, wire.ItemCreate)


def test_the_parts_of_a_typed_message_are_its_lines() -> None:
    parts = [{"type": "input_text", "text": text} for text in ("one", "two")]
    assert typed(message(content=parts, id="mine"), None) == "one\ntwo"
    assert typed(message("item_9"), "item_9") == "hi"


@pytest.mark.parametrize(
    ("event", "field"),
    [
        (message(type="function_call"), "item.type"),
        (message(role="system"), "item.role"),
        (message(content=[{"type": "input_audio"}]), "item.content[0].type"),
        (message(id=""), "item.id"),
        (message(id="x" * (LONGEST_ID + 1)), "item.id"),
        (message("item_1"), "previous_item_id"),
    ],
)
def test_any_other_item_is_refused_by_name(event: wire.ItemCreate, field: str) -> None:
    with pytest.raises(InputError) as caught:
        typed(event, "item_9")
    assert caught.value.field == field
