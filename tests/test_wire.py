from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli import wire
from metronome_cli.errors import NOTHING, InputError

CLIENT: list[wire.ClientEvent] = [
    wire.SessionUpdate(
        event_id="a",
        session=wire.SessionSettings(
            audio=wire.AudioSettings(input=wire.AudioInput(format=wire.AudioFormat(rate=8_000))),
            output_modalities=["text"],
            metronome=wire.MetronomeSettings(ticks=True),
        ),
    ),
    wire.AudioAppend(audio=b"\x00\x01\xff\x7f"),
    wire.AudioCommit(event_id="c"),
    wire.ItemCreate(item=wire.Item.message("hello")),
    wire.ResponseCancel(),
]


@pytest.mark.parametrize("event", CLIENT)
def test_a_client_event_survives_the_wire(event: wire.ClientEvent) -> None:
    assert wire.decode_client_event(wire.encode(event)) == event
    assert wire.decode_client_event(wire.encode(event).decode()) == event


def test_client_events_are_written_in_openais_form() -> None:
    """Types are written out though they are defaults here: other servers ask for them."""
    assert [json.loads(wire.encode(event)) for event in CLIENT] == [
        {
            "type": "session.update",
            "event_id": "a",
            "session": {
                "type": "realtime",
                "audio": {"input": {"format": {"type": "audio/pcm", "rate": 8_000}}},
                "output_modalities": ["text"],
                "metronome": {"ticks": True},
            },
        },
        {"type": "input_audio_buffer.append", "audio": "AAH/fw=="},
        {"type": "input_audio_buffer.commit", "event_id": "c"},
        {
            "type": "conversation.item.create",
            "item": {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "hello"}],
            },
        },
        {"type": "response.cancel"},
    ]


def test_what_openais_session_holds_beside_our_keys_is_no_error() -> None:
    session = {"type": "realtime", "instructions": "be kind", "audio": {"output": {"voice": "marin"}}}
    event = wire.decode_client_event(json.dumps({"type": "session.update", "session": session}))
    assert isinstance(event, wire.SessionUpdate)
    assert event.session.audio is not None
    assert event.session.audio.input is None


def session(**fields: Any) -> str:
    return json.dumps({"type": "session.update", "session": fields})


@pytest.mark.parametrize(
    ("text", "code", "field", "value"),
    [
        ("", "invalid_json", "event", ""),
        ("nonsense", "invalid_json", "event", "nonsense"),
        ("[" * 100_000, "invalid_json", "event", "[" * 60),
        ("3", "invalid_json", "event", "3"),
        ("{}", "missing_parameter", "type", NOTHING),
        ('{"type": "dance"}', "unknown_event", "type", "dance"),
        ('{"type": 3}', "unknown_event", "type", 3),
        ('{"type": null}', "unknown_event", "type", None),
        ('{"type": "session.update"}', "missing_parameter", "session", NOTHING),
        ('{"type": "input_audio_buffer.append", "audio": "&"}', "invalid_base64", "audio", "&"),
        (session(type=7), "invalid_value", "session.type", 7),
        (session(output_modalities="text"), "invalid_value", "session.output_modalities", "text"),
        (session(audio={"input": 1}), "invalid_value", "session.audio.input", 1),
        (session(metronome={"ticks": "yes"}), "invalid_value", "session.metronome.ticks", "yes"),
        (session(metronome={"tocks": 1}), "unknown_parameter", "session.metronome.tocks", 1),
        (
            '{"type": "conversation.item.create", "item": {"content": [{"type": "a"}, {"text": "b"}]}}',
            "missing_parameter",
            "item.content[1].type",
            NOTHING,
        ),
    ],
)
def test_a_malformed_event_is_explained(text: str, code: str, field: str, value: object) -> None:
    with pytest.raises(InputError) as caught:
        wire.decode_client_event(text)
    error = caught.value
    assert (error.code, error.field, error.value) == (code, field, value)
    assert error.cure


def test_the_event_id_of_a_malformed_event_is_found_where_there_is_one() -> None:
    assert wire.event_id_of('{"type": "dance", "event_id": "e1"}') == "e1"
    assert wire.event_id_of('{"event_id": 7}') is None
    assert wire.event_id_of("{") is None
    assert wire.event_id_of('["event_id"]') is None
    assert wire.event_id_of("") is None


def test_a_number_that_no_double_holds_is_json_and_is_named() -> None:
    text = '{"type": "response.create", "event_id": "e1", "response": {"max_output_tokens": 1e400}}'
    assert wire.event_id_of(text) == "e1"
    with pytest.raises(InputError, match=r"response\.max_output_tokens = inf: number out of range") as caught:
        wire.decode_client_event(text)
    assert caught.value.code == "invalid_value"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from([json.loads(wire.encode(event))["type"] for event in CLIENT])
KEYS = st.sampled_from(["session", "audio", "item", "event_id", "input", "format", "metronome", "content"])


def fault(text: str | bytes) -> InputError | None:
    """Why `text` cannot be taken; None when it can. Any other exception is a failure."""
    try:
        wire.decode_client_event(text)
    except InputError as error:
        return error
    return None


@given(st.text() | st.binary() | JSON.map(json.dumps))
def test_whatever_comes_is_an_event_or_an_explained_error(text: str | bytes) -> None:
    error = fault(text)
    assert error is None or len(str(error)) < 1000


@given(KINDS, st.dictionaries(KEYS, JSON, max_size=3))
def test_whatever_an_event_holds_it_is_taken_or_explained(kind: str, fields: dict[str, object]) -> None:
    error = fault(json.dumps({**fields, "type": kind}))
    assert error is None or len(str(error)) < 1000


def test_a_server_event_that_we_do_not_know_is_left_out() -> None:
    assert wire.decode_server_event('{"type": "rate_limits.updated", "event_id": "e"}') is None


@pytest.mark.parametrize("text", ["{", "[]", '{"type": "response.output_text.delta"}', '{"event_id": "e"}'])
def test_a_malformed_server_event_is_an_error(text: str) -> None:
    with pytest.raises(InputError, match="event = "):
        wire.decode_server_event(text)


def test_a_server_event_survives_the_wire() -> None:
    event = wire.TextDelta(event_id="e", response_id="r", item_id="i", delta="ünïcode")
    assert wire.decode_server_event(wire.encode(event)) == event
