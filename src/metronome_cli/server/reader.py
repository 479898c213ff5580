"""One caller's events as they come, over one connection or several, and no faster than the caller may send.

Knows:   how events reach us, how large one may be, how many may come in a second.
Ignores: what an event sets in motion.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from starlette.websockets import WebSocket

from .. import wire
from ..clock import Clock
from ..errors import InputError
from ..profile import ServerSection
from .access import EventRate
from .connection import listening
from .metrics import Metrics


class Listener(Protocol):
    """Whom the events are for."""

    def take(self, event: wire.ClientEvent) -> None:
        """An event; InputError when it cannot be met."""
        ...

    def refuse(self, error: InputError, event_id: str | None) -> None:
        """What came was no event, or `take` would not have it; its id, if it has one."""
        ...


class Reader:
    """Gives every event to a listener.

    It knows one only while it reads: the listener holds it, and circles wait for the garbage collector.
    """

    def __init__(self, limits: ServerSection, clock: Clock, metrics: Metrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._rate = EventRate(limits.max_events_per_s, clock.now())
        self._slow_until = 0.0  # no more events are taken from a caller who sends too many
        self._waiting = False  # an event for that moment, and what comes meanwhile comes after it
        self._most_bytes = limits.max_event_bytes

    async def read(self, socket: WebSocket, listener: Listener) -> int | None:
        """Read until the connection ends; its close code."""
        self._waiting = False  # what waited on an earlier connection was lost with it
        with listening(socket, partial(self._at_once, listener)):
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                self._waiting = True
                # Until then the network holds the rest back, and nothing is lost.
                await self._clock.sleep_until(self._slow_until)
                self._waiting = False
                others = len(message.get("bytes") or ())
                self._heard(listener, message.get("text"), others, self._clock.now())
        code: int | None = message.get("code")
        return code

    def _at_once(self, listener: Listener, text: str) -> bool:
        """Take an event as it comes; False when its caller is to be slowed down, or another comes first."""
        now = self._clock.now()
        if self._waiting or now < self._slow_until:
            return False
        self._heard(listener, text, 0, now)
        return True

    def _heard(self, listener: Listener, text: str | None, others: int, now: float) -> None:
        """An event has come, or a frame of `others` bytes that are no text."""
        self._metrics.bytes_in += len(text or "") + others
        self._slow_until = now + self._rate.take(now)
        try:
            listener.take(self._event(text))
        except InputError as error:
            listener.refuse(error, wire.event_id_of(text or ""))

    def _event(self, text: str | None) -> wire.ClientEvent:
        if text is None:
            raise InputError("binary_frame", "frame", "binary", "send JSON in text frames, audio as base64")
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._most_bytes:
            cure = f"send at most {self._most_bytes} bytes per event"
            raise InputError("event_too_large", "event", f"{size} bytes", cure)
        return wire.decode_client_event(text)
