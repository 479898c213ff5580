"""What the first gateway and another one say to each other: JSON, a line a message.

Knows:   every message, and how a line is read.
Ignores: what it sets in motion, and the engine (messages.py).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from .metrics import Counts


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


# ---- What the first one says -------------------------------------------------------------------


class Setup(_Message, frozen=True):
    """First of all."""

    number: int
    cell: str  # a folder, for handover.py
    profile: dict[str, Any]
    host: str
    port: int
    keys: list[str]


class Begins(_Message, frozen=True):
    """An engine process will be met at this zmq address."""

    address: str


class Ended(_Message, frozen=True):
    """It is over, in this way; `code` is what its callers are told; `final`: it is not started again."""

    how: str
    code: str
    final: bool


class GivenUp(_Message, frozen=True):
    """It is not started again."""


# ---- What the other one says -------------------------------------------------------------------


class Up(_Message, frozen=True):
    """It takes calls."""


class Counted(_Message, frozen=True):
    """What was counted so far, and which session numbers were given."""

    counts: Counts
    highest: int
    unheard: int


News = Setup | Begins | Ended | GivenUp
Reports = Up | Counted

LONGEST = 16_777_216  # bytes of a line: a profile's header may be long, and a server's keys many

_news: msgspec.json.Decoder[News] = msgspec.json.Decoder(News)
_reports: msgspec.json.Decoder[Reports] = msgspec.json.Decoder(Reports)


def line(message: News | Reports) -> bytes:
    """`message` as a line."""
    return msgspec.json.encode(message) + b"\n"


async def next_news(reader: asyncio.StreamReader) -> News | None:
    """What the first gateway says next; None when it is gone."""
    data = await _next_line(reader)
    return _news.decode(data) if data else None


async def next_report(reader: asyncio.StreamReader) -> Reports | None:
    """What another gateway says next; None when it is gone."""
    data = await _next_line(reader)
    return _reports.decode(data) if data else None


async def _next_line(reader: asyncio.StreamReader) -> bytes:
    """A whole line; nothing when the other end is gone, maybe in the middle of one."""
    try:
        return await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""
