"""What must hold of the events of any call: OpenAI's own types take them, and they hang together.

`check` is for the events of one connection from its first one on, wherever it was broken off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import pydantic
from openai.types.realtime import RealtimeServerEvent

from metronome_cli import wire

# In OpenAI's own server a session has these too, though its type says nothing of them; the last is ours.
OF_A_SESSION = {"id", "object", "metronome"}
OURS = (wire.TickEvent, wire.SessionResumed)
OF_A_REPLY = {
    wire.ResponseCreated: "created ",
    wire.OutputItemAdded: "item ",
    wire.ItemAdded: "added ",
    wire.ContentPartAdded: "part ",
    wire.TextDelta: "delta ",
    wire.TextDone: "text ",
    wire.TranscriptDelta: "says ",
    wire.AudioDelta: "sounds ",
    wire.AudioDone: "sound ",
    wire.TranscriptDone: "transcript ",
    wire.ContentPartDone: "part-done ",
    wire.OutputItemDone: "item-done ",
    wire.ItemDone: "added-done ",
    wire.ResponseDone: "done ",
}
_END, _ENDED = "part-done item-done added-done ", "(part-done (item-done (added-done )?)?)?"
_TEXT, _SOUND = "(delta )*", "(says |sounds )*"
WHOLE_REPLY = (
    f"created (item added part ({_TEXT}text|{_SOUND}sound transcript) {_END})?done ",
    f"created ((item (added (part ({_TEXT}(text {_ENDED})?|{_SOUND}(sound (transcript {_ENDED})?)?))?)?)?)?",
)

_union = get_args(RealtimeServerEvent)[0]
# One by one: all of them at once take a hundred times as long.
THEIRS: dict[str, type[pydantic.BaseModel]] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(_union)
}


def check(events: Sequence[wire.ServerEvent]) -> None:
    """AssertionError, with the events, when something does not hold."""
    standard = [event for event in events if not isinstance(event, OURS)]
    for event in standard:
        assert_valid(event)
    ids = [event.event_id for event in events]
    assert len(set(ids)) == len(ids), "an event_id was used twice"
    assert_announced(standard)
    assert_items(standard)
    for reply in by_reply(standard):
        assert_reply(reply)


# ---- Types ----


def assert_valid(event: wire.ServerEvent) -> None:
    """OpenAI's type of that name takes the event, and knows every field of it."""
    said = json.loads(wire.encode(event))
    if "session" in said:
        _as_a_stranger_asks(said["session"]["audio"]["input"])
    assert said["type"] in THEIRS
    taken = THEIRS[said["type"]].model_validate_json(json.dumps(said), strict=True)
    unknown = set(_unknown(taken)) - {f"session.{name}" for name in OF_A_SESSION}
    assert not unknown, f"{said['type']} has {unknown}"


def _as_a_stranger_asks(listening: dict[str, Any]) -> None:
    """Only who asked for it is shown a rate or a turn detection that OpenAI does not have."""
    listening["format"]["rate"] = 24_000
    if listening["turn_detection"] and listening["turn_detection"]["type"] == "full_duplex":
        listening["turn_detection"] = None


def _unknown(value: object, path: str = "") -> Iterator[str]:
    """Fields that a type let through without knowing them."""
    if isinstance(value, pydantic.BaseModel):
        yield from (f"{path}{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}{name}.")
    elif isinstance(value, list):
        for item in value:
            yield from _unknown(item, path)


# ---- Ids ----


def assert_announced(events: Iterable[wire.ServerEvent]) -> None:
    """No id comes up before the event that introduces it."""
    items: set[str | None] = {None}
    replies: set[str] = set()
    for event in events:
        match event:
            case wire.SpeechStarted(item_id=item) | wire.AudioCommitted(item_id=item):
                items.add(item)
            case wire.ItemAdded() | wire.OutputItemAdded():
                items.add(event.item.id)
            case wire.ResponseCreated():
                assert event.response.id not in replies
                replies.add(event.response.id)
        if hasattr(event, "response_id"):
            assert event.response_id in replies, event
        if hasattr(event, "item_id"):
            assert event.item_id in items, event


def assert_items(events: Iterable[wire.ServerEvent]) -> None:
    """Each item is added once, after the last one, and done once, after it was added."""
    last: str | None = None
    places: dict[str | None, str | None] = {}
    done = set()
    for event in events:
        match event:
            case wire.AudioCommitted(item_id=item):
                expected = places.get(item, last)
                assert event.previous_item_id == expected, event
            case wire.ItemAdded(item=item):
                assert item.id not in places, event
                assert event.previous_item_id == last, event
                places[item.id], last = last, item.id
            case wire.ItemDone(item=item):
                assert event.previous_item_id == places[item.id], event
                assert item.id not in done, event
                assert item.status in ("completed", "incomplete")
                done.add(item.id)


# ---- Replies ----


def by_reply(events: Iterable[wire.ServerEvent]) -> list[list[wire.ServerEvent]]:
    """The events of each reply. They are never mixed: one is in progress at a time."""
    replies: list[list[wire.ServerEvent]] = []
    for event in events:
        if isinstance(event, wire.ResponseCreated):
            assert not replies or isinstance(replies[-1][-1], wire.ResponseDone), "two replies at once"
            replies.append([event])
        elif type(event) in OF_A_REPLY and not _of_the_caller(event):
            replies[-1].append(event)
    return replies


def _of_the_caller(event: wire.ServerEvent) -> bool:
    return isinstance(event, wire.ItemAdded | wire.ItemDone) and event.item.role == "user"


def assert_reply(reply: Sequence[wire.ServerEvent]) -> None:
    """One reply's events come in OpenAI's order, are about the same things and tell the same text."""
    order = "".join(OF_A_REPLY[type(event)] for event in reply)
    over = isinstance(reply[-1], wire.ResponseDone)
    assert re.fullmatch(WHOLE_REPLY[0 if over else 1], order), order
    assert isinstance(reply[0], wire.ResponseCreated)
    assert (reply[0].response.status, reply[0].response.output) == ("in_progress", [])
    modality = reply[0].response.output_modalities
    text = "".join(event.delta for event in reply if isinstance(event, wire.TextDelta | wire.TranscriptDelta))
    names = {getattr(event, "response_id", reply[0].response.id) for event in reply}
    items = {item for event in reply if (item := _item_of(event))}
    assert len(names) == 1
    assert len(items) <= 1
    for event in reply[1:]:
        match event:
            case wire.TextDelta():
                assert modality == ["text"]
            case wire.TextDone():
                assert event.text == text
            case wire.TranscriptDelta() | wire.AudioDelta() | wire.AudioDone():
                assert modality == ["audio"]
            case wire.TranscriptDone():
                assert event.transcript == text
            case wire.ContentPartAdded(part=part):
                assert (part.type, _words(part)) == (modality[0], "")
            case wire.ContentPartDone(part=part):
                assert (part.type, _words(part)) == (modality[0], text)
            case wire.ResponseDone(response=response):
                assert response.id == reply[0].response.id
                assert response.status in ("completed", "cancelled", "incomplete", "failed")
                assert response.output_modalities == modality
                parts = [part for item in response.output for part in item.content]
                said = [(part.type, _words(part)) for part in parts]
                assert said == [(f"output_{modality[0]}", text)] * len(items)


def _words(part: wire.Part | wire.ContentPart) -> str | None:
    """Sound has a transcript and no text, text the other way round."""
    sound = part.type.endswith("audio")
    assert (part.text if sound else part.transcript) is None
    return part.transcript if sound else part.text


def _item_of(event: wire.ServerEvent) -> str | None:
    item = getattr(event, "item", None)
    found: str | None = item.id if item else getattr(event, "item_id", None)
    return found
