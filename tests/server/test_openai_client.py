"""OpenAI's own client and types against a real server: what they say is taken, what we say they know."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pydantic
import pytest
from openai import AsyncOpenAI
from openai.types.realtime import RealtimeClientEvent

from metronome_cli import wire
from metronome_cli.models.assets import locate
from metronome_cli.speech import read_clips

from . import ga
from .running import PATIENCE_S, WHOLE, Server, outlasting

QUESTION = read_clips(locate("questions"))[0]
SPEECH = (QUESTION.samples * 32767).astype("<i2").tobytes() + bytes(32_000)  # and a second of silence
PACKETS = [base64.b64encode(SPEECH[at : at + 3200]).decode() for at in range(0, len(SPEECH), 3200)]


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers when it is asked to."""
    with outlasting(
        tmp_path_factory.mktemp("openai"), mode="turn", frame_s=0.05, max_pending_s=20
    ) as running:
        yield running


# ---- What a client says ----

SAID: list[dict[str, Any]] = [
    {
        "type": "session.update",
        "session": {
            "type": "realtime",
            "model": "gpt-realtime",
            "output_modalities": ["text"],
            "instructions": "Be brief.",
            "max_output_tokens": "inf",
            "tool_choice": "auto",
            "tools": [],
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24_000},
                    "noise_reduction": {"type": "near_field"},
                    "transcription": {"model": "whisper-1", "language": "en"},
                    "turn_detection": {
                        "type": "server_vad",
                        "threshold": 0.4,
                        "prefix_padding_ms": 200,
                        "silence_duration_ms": 400,
                        "create_response": True,
                        "interrupt_response": False,
                    },
                },
                "output": {"voice": "marin", "speed": 1.0},
            },
        },
    },
    {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}},
    {"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(96)).decode()},
    {"type": "input_audio_buffer.commit"},
    {"type": "input_audio_buffer.clear"},
    {
        "type": "conversation.item.create",
        "item": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
    },
    {
        "type": "conversation.item.create",
        "previous_item_id": "item_1",
        "item": {
            "id": "mine",
            "object": "realtime.item",
            "status": "completed",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
        },
    },
    {"type": "response.create"},
    {
        "type": "response.create",
        "response": {
            "conversation": "auto",
            "output_modalities": ["text"],
            "max_output_tokens": 20,
            "metadata": {"topic": "time"},
        },
    },
    {"type": "response.cancel"},
    {"type": "response.cancel", "response_id": "resp_1"},
]


@pytest.mark.parametrize("said", SAID, ids=lambda said: str(said["type"]))
def test_what_openais_types_let_a_client_say_is_taken_whole(said: dict[str, Any]) -> None:
    theirs: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(RealtimeClientEvent)
    event = theirs.validate_json(json.dumps({"event_id": "mine", **said}), strict=True)
    ours = wire.decode_client_event(event.to_json(exclude_unset=True))
    assert ours.event_id == "mine"
    assert json.loads(wire.encode(ours)).items() >= {"type": said["type"], "event_id": "mine"}.items()
    # What we write ourselves is theirs too.
    again = theirs.validate_json(wire.encode(ours), strict=True)
    assert again.type == said["type"]
    assert wire.decode_client_event(again.to_json(exclude_unset=True)) == ours


# ---- What the server says ----


def test_the_check_of_all_calls_finds_a_fault_in_an_event() -> None:
    """Every test that holds a call checks its events with it; a check that finds nothing is worth nothing."""
    part = wire.Part(text="")
    item = wire.Item(id="i", role="assistant", status="in_progress", content=[])
    reply = wire.Response(id="r", status="in_progress", output=[], output_modalities=["text"])
    good: list[wire.ServerEvent] = [
        wire.ResponseCreated(event_id="1", response=reply),
        wire.OutputItemAdded(event_id="2", response_id="r", item=item),
        wire.ItemAdded(event_id="3", item=item, previous_item_id=None),
        wire.ContentPartAdded(event_id="4", response_id="r", item_id="i", part=part),
        wire.TextDelta(event_id="5", response_id="r", item_id="i", delta="a"),
        wire.TextDone(event_id="6", response_id="r", item_id="i", text="a"),
    ]
    ga.check(good)
    faults: list[tuple[int, dict[str, Any]]] = [
        (0, {"response": msgspec.structs.replace(reply, status="begun")}),
        (2, {"item": msgspec.structs.replace(item, id="j")}),
        (2, {"previous_item_id": "h"}),
        (4, {"response_id": "other"}),
        (4, {"item_id": "other"}),
        (4, {"event_id": "4"}),
        (5, {"text": "b"}),
    ]
    for place, change in faults:
        bad = [
            msgspec.structs.replace(event, **change) if n == place else event for n, event in enumerate(good)
        ]
        with pytest.raises((AssertionError, pydantic.ValidationError)):
            ga.check(bad)
    for gone in range(len(good) - 1):
        with pytest.raises((AssertionError, IndexError)):
            ga.check([event for n, event in enumerate(good) if n != gone])


def test_every_event_that_we_can_say_is_one_of_openais_or_named_after_us() -> None:
    ours = {str(kind.__struct_config__.tag) for kind in get_args(wire.ServerEvent)}
    assert {name for name in ours - set(ga.THEIRS) if not name.startswith("metronome.")} == set()


# ---- The client itself ----


async def ends(call: Any, kind: str) -> list[Any]:
    """Events up to the first of that kind, as the client's own types."""
    events = []
    async with asyncio.timeout(PATIENCE_S):
        async for event in call:
            events.append(event)
            assert event.type != "error", event
            if event.type == kind:
                break
    return events


def client(server: Server) -> AsyncOpenAI:
    return AsyncOpenAI(
        api_key="x", base_url=f"{server.url}/v1", websocket_base_url=server.address.removesuffix("/realtime")
    )


def test_the_official_client_holds_a_typed_call(turns: Server) -> None:
    async def scene() -> None:
        async with client(turns).realtime.connect(model="null") as call:
            await call.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            text = {"type": "input_text", "text": "hello"}
            item = {"type": "message", "role": "user", "content": [text]}
            for _ in range(2):
                await call.conversation.item.create(item=item)  # type: ignore[arg-type]
                await call.response.create()
                events = await ends(call, "response.done")
                assert events[-1].response.status == "completed"
                assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == WHOLE
            await call.response.create()
            await ends(call, "response.created")
            await call.response.cancel()
            done = (await ends(call, "response.done"))[-1].response
            assert (done.status, done.status_details.reason) == ("cancelled", "client_cancelled")

    asyncio.run(scene())


@pytest.mark.parametrize("detects", [True, False])
def test_the_official_client_holds_a_spoken_call(turns: Server, detects: bool) -> None:
    async def scene() -> None:
        async with client(turns).realtime.connect(model="null") as call:
            heard: Any = {
                "format": {"type": "audio/pcm", "rate": 16_000},
                "turn_detection": {"type": "server_vad"} if detects else None,
                "transcription": {"model": "whisper-1"},
            }
            await call.session.update(session={"type": "realtime", "audio": {"input": heard}})
            await ends(call, "session.updated")
            for packet in PACKETS:
                await call.input_audio_buffer.append(audio=packet)
            if not detects:
                await call.input_audio_buffer.commit()
                await call.response.create()
            events = await ends(call, "response.done")
            kinds = [event.type for event in events]
            assert ("input_audio_buffer.speech_started" in kinds) is detects
            assert "input_audio_buffer.committed" in kinds
            assert events[-1].response.output[0].content[0].text == WHOLE

    asyncio.run(scene())
