"""Rubbish to send: seeded mutations of recorded events, and events that hypothesis makes up.

Knows:   JSON and how it can be broken; shapes of client events.
Ignores: connections, and what a server should say to any of it (oracle.py).

One seed and connection always give the same texts.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

RECORDED = [
    [json.loads(text) for text in json.loads(line)]
    for line in Path(__file__).with_name("recorded.jsonl").read_text("utf-8").splitlines()
]
MADE_UP_EVERY = 16  # connections: one in so many speaks what hypothesis makes up
LONGEST = 90_000  # characters; a server that takes 65,536 bytes refuses some of them

TYPES = (
    "session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear",
    "conversation.item.create", "response.create", "response.cancel",
)  # fmt: skip
STRANGE_TYPES = ("session.created", "error", "conversation.item.truncate", "metronome.tick", "", "type")


def texts(seed: int, connection: int, events: int) -> list[str]:
    """What one connection sends, in order."""
    if connection % MADE_UP_EVERY == MADE_UP_EVERY - 1:
        return made_up(f"{seed} {connection}", events)
    draw = random.Random(f"mutate {seed} {connection}")
    said: list[str] = []
    while len(said) < events:
        for event in draw.choice(RECORDED):
            said += _sent(event, draw, f"e{connection}_{len(said)}")
            if draw.random() < 0.03 and len(said) > 1:
                said[-1], said[-2] = said[-2], said[-1]  # out of order
    return said[:events]


def _sent(event: dict[str, Any], draw: random.Random, event_id: str) -> Iterator[str]:
    """A recorded event as it is, broken, twice or not at all."""
    event = copy.deepcopy(event)
    if draw.random() < 0.8:
        event = {"event_id": event_id, **event}
    kind = draw.random()
    if kind < 0.25:
        text = json.dumps(event)
    elif kind < 0.7:
        text = in_the_tree(event, draw)
    else:
        text = in_the_text(json.dumps(event, ensure_ascii=draw.random() < 0.5), draw)
    for _ in range(draw.choices((0, 1, 2), (2, 95, 3))[0]):
        yield text[:LONGEST]


# ---- Mutations of the tree ---------------------------------------------------------------------

# Texts that json.dumps would not write: each stands in a tree as a string and is put in afterwards.
_RAW = {
    "@nan@": "NaN", "@inf@": "-Infinity", "@huge@": "1e400", "@tiny@": "1e-400", "@digits@": "9" * 400,
    "@minus@": "-0", "@deep@": "[" * 3000 + "]" * 3000, "@deeper@": '{"a":' * 900 + "1" + "}" * 900,
    "@half@": '"\\ud83e"', "@zero@": '"\\u0000"', "@plus@": "+1", "@hex@": "0x10", "@bare@": "undefined",
}  # fmt: skip

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7.5, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 1e308, -1e308, "", " ",
    "null", "inf", "realtime", "text", "audio/pcm", "server_vad", "window", "\u0000", "\u202e\ufeff",
    "🦙" * 50, "a" * 300, "a" * 70_000, "AAAA", "AAA=", "////", "%%%", [], [None], ["text"], [[]], {},
    {"": ""}, {"type": "x"}, {"type": None}, *_RAW,
)  # fmt: skip

Keyed = tuple[Any, Any]  # a container, and a key or index in it


def _places(tree: Any) -> Iterator[Keyed]:
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def _replace(where: Keyed, draw: random.Random) -> None:
    where[0][where[1]] = copy.deepcopy(draw.choice(VALUES))


def _remove(where: Keyed, draw: random.Random) -> None:
    del where[0][where[1]]


def _rename(where: Keyed, draw: random.Random) -> None:
    if isinstance(where[0], dict):
        value = where[0].pop(where[1])
        where[0][draw.choice((str(where[1]).upper(), str(where[1]) + "s", "", "🦙"))] = value


def _add(where: Keyed, draw: random.Random) -> None:
    if isinstance(where[0], dict):
        key = draw.choice(("unknown", "type", "event_id", "session", "id", "\u0000", "x" * 500))
        where[0][key] = copy.deepcopy(draw.choice(VALUES))


def _wrap(where: Keyed, draw: random.Random) -> None:
    inside = where[0][where[1]]
    where[0][where[1]] = draw.choice(([inside], {"value": inside}, str(inside), [inside] * 50))


def in_the_tree(event: dict[str, Any], draw: random.Random) -> str:
    """One or two changes of values, keys or structure."""
    for _ in range(draw.choice((1, 1, 2))):
        if places := list(_places(event)):
            draw.choice((_replace, _replace, _replace, _remove, _rename, _add, _wrap))(
                draw.choice(places), draw
            )
    text = json.dumps(event)
    for name, raw in _RAW.items():
        text = text.replace(f'"{name}"', raw)
    return text


# ---- Mutations of the text ---------------------------------------------------------------------


def _truncate(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _flip(text: str, draw: random.Random) -> str:
    """Some bits; what is no UTF-8 any more is replaced, since a text frame could not carry it."""
    data = bytearray(text.encode())
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return data.decode("utf-8", "replace")


def _delete(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text))
    return text[:at] + text[at + draw.randint(1, 8) :]


def _insert(text: str, draw: random.Random) -> str:
    at = draw.randrange(len(text))
    return (
        text[:at]
        + draw.choice(('"', "{", "}", "[", ",", ":", "\\", "\u0000", "🦙", "1", "\n", "//"))
        + text[at:]
    )


def _repeat(text: str, draw: random.Random) -> str:
    start = draw.randrange(len(text))
    end = start + draw.randint(1, 40)
    return text[:end] + text[start:]


def _twice_the_key(text: str, draw: random.Random) -> str:
    key, value = draw.choice(("type", "event_id", "audio", "session")), json.dumps(draw.choice(VALUES[:30]))
    return "{" + f'"{key}": {value}, ' + text[1:]


def _nothing_like_it(text: str, draw: random.Random) -> str:
    deep = draw.choice(("[", "{", '{"":')) * 5000
    return draw.choice(("", " ", "null", "7", '"type"', "[]", deep, text * 2, f"[{text}]", "\ufeff" + text))


_TEXTUAL: tuple[Callable[[str, random.Random], str], ...] = (
    _truncate, _flip, _delete, _insert, _repeat, _twice_the_key, _nothing_like_it,
)  # fmt: skip


def in_the_text(text: str, draw: random.Random) -> str:
    """One change of the characters."""
    return draw.choice(_TEXTUAL)(text, draw)


# ---- Made up -----------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of these fields, each as meant or as anything."""
    return st.fixed_dictionaries({}, optional={name: value | ANYTHING for name, value in fields.items()})


_count = st.integers(-1, 2**33)
_detection = _some(
    type=st.sampled_from(("server_vad", "full_duplex")), threshold=st.floats(-1, 2), prefix_padding_ms=_count,
    silence_duration_ms=_count, create_response=st.booleans(), interrupt_response=st.booleans(),
)  # fmt: skip
_listening = _some(
    format=_some(type=st.just("audio/pcm"), rate=st.sampled_from((24_000, 16_000, 8_000))),
    turn_detection=_detection,
    transcription=_some(model=st.text(max_size=9)),
)
_metronome = _some(
    ticks=st.booleans(), resume=st.booleans(), policy=st.sampled_from(("window", "unbounded", "recycle")),
    window=_count, sinks=_count, positions=st.sampled_from(("absolute", "anchored")),
)  # fmt: skip
_session = _some(
    type=st.just("realtime"), audio=_some(input=_listening), output_modalities=st.just(["text"]),
    instructions=st.text(max_size=30), max_output_tokens=_count, tools=st.lists(ANYTHING, max_size=2),
    metronome=_metronome,
)  # fmt: skip
_part = _some(type=st.sampled_from(("input_text", "input_audio")), text=st.text(max_size=20))
_item = _some(
    type=st.just("message"), role=st.sampled_from(("user", "system")), content=st.lists(_part, max_size=3),
    id=st.text(max_size=8),
)  # fmt: skip
_response = _some(
    max_output_tokens=_count, output_modalities=st.just(["text"]), conversation=st.just("auto"),
    metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=20), input=st.lists(ANYTHING),
)  # fmt: skip
_FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "session.update": {"session": _session},
    "input_audio_buffer.append": {"audio": st.sampled_from(("", "AAAAAAAA", "AAAA", "AAA", "?"))},
    "conversation.item.create": {"item": _item, "previous_item_id": st.none() | st.text(max_size=8)},
    "response.create": {"response": _response},
    "response.cancel": {"response_id": st.text(max_size=8)},
}


@st.composite
def events(draw: st.DrawFn) -> str:
    """One client event as JSON, more or less as it should be."""
    kind = draw(st.sampled_from(TYPES + STRANGE_TYPES))
    fields = {name: value | ANYTHING for name, value in _FIELDS.get(kind, {}).items()}
    event = draw(st.fixed_dictionaries(fields, optional={"event_id": st.text(max_size=8), "more": ANYTHING}))
    return json.dumps({"type": kind, **event}, ensure_ascii=draw(st.booleans()))


def made_up(seed: str, count: int) -> list[str]:
    """So many texts of hypothesis' own."""
    found: list[str] = []
    while len(found) < count:  # it may stop early, and then goes on from another seed

        @seeded(f"{seed} {len(found)}")
        @settings(
            max_examples=count - len(found),
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(events())
        def take(text: str) -> None:
            found.append(text[:LONGEST])

        take()
    return found[:count]
