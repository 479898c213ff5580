"""Events on their way to one caller, over one connection or several.

Knows:   the order of events, how many may wait, and which are kept to be sent again.
Ignores: what the events say, and who asks for them.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.websockets import WebSocket

from .. import wire
from ..clock import Clock
from ..frame import SessionId
from .metrics import Metrics

MAX_OUTGOING = 1024  # events that a caller may leave unread, beyond what the network holds,
MAX_OUTGOING_BYTES = 4_194_304  # and their bytes: a minute of speech
PATIENCE_S = 2.0  # how long it may be more: what comes in one go is no reason to call its reader slow,
_BURST = 4  # unless it is so many times as much
RESUMED = "_resumed"  # ends the id of the one event that is not counted
_HANG_UP_S = 2.0  # how long a caller's last event may take to leave


class Outbox:
    """Bounded in both directions: a caller that does not read costs no memory, nor does one that is away.

    Events are numbered from 1 by the order in which they are put.
    """

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self.ending = False
        self.number = 0  # of the last event
        self._metrics = metrics
        self._clock = clock
        self._waiting: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._there = False  # a connection takes what is put
        self._most, self._most_bytes = MAX_OUTGOING, MAX_OUTGOING_BYTES
        self._waiting_bytes = 0
        self._full_since: float | None = None  # more waits than may
        self._writer: asyncio.Task[None] | None = None
        self._close_code: int | None = None
        self._keep_bytes = 0
        self._kept: deque[bytes] = deque()  # the last events, up to `number`
        self._kept_bytes = 0

    def keep(self, most_bytes: int) -> None:
        """From now on keep the last events, so many bytes of them; 0 keeps none."""
        self._keep_bytes = most_bytes
        self._trim()

    def put(self, event: wire.ServerEvent) -> bool:
        """Send `event` in its turn; False when too many have waited for too long."""
        if self.ending:
            return True
        self.number += 1
        data = wire.encode(event)
        if self._keep_bytes:
            self._kept.append(data)
            self._kept_bytes += len(data)
            self._trim()
        if not self._there and self._keep_bytes:
            return True  # it is sent again when somebody is there
        if self._is_read_too_slowly(len(data)):
            return False
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._more.set()
        return True

    def _is_read_too_slowly(self, size: int) -> bool:
        """Whether what waits, with an event of `size` bytes more, is too much."""
        events, size = len(self._waiting) + 1, self._waiting_bytes + size
        if events == 1 or (events <= self._most and size <= self._most_bytes):
            self._full_since = None
            return False
        now = self._clock.now()
        if self._full_since is None:
            self._full_since = now
        burst = events <= _BURST * self._most and size <= _BURST * self._most_bytes
        return not burst or now - self._full_since > PATIENCE_S

    def hang_up(self, last: wire.ErrorEvent | None, code: int) -> None:
        """Send `last` instead of all that waits, and close the connection with `code`: the end."""
        if self.ending:
            return
        self.ending = True
        self._leave(wire.encode(last) if last else None, code)

    def let_go(self, code: int) -> None:
        """Close this connection with `code`; another may take its place."""
        if not self.ending:
            self._leave(None, code)

    def since(self, number: int) -> list[bytes] | None:
        """The events after `number`, as they were sent first; None when they are not kept any more."""
        missing = self.number - number
        if not 0 <= missing <= len(self._kept):
            return None
        return list(self._kept)[len(self._kept) - missing :]

    def begin(self, first: list[bytes]) -> None:
        """A connection is there; it is to get `first`, and from now on all that is put."""
        self._there = True
        if not self.ending:
            self._close_code = None
        self._waiting.extendleft(reversed(first))
        bytes_first = sum(map(len, first))
        self._waiting_bytes += bytes_first
        self._most, self._most_bytes = MAX_OUTGOING + len(first), MAX_OUTGOING_BYTES + bytes_first
        self._more.set()

    async def run(self, socket: WebSocket) -> None:
        """Write all that waits and all that is put, until the connection is to be closed."""
        self._writer = asyncio.current_task()
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                data = self._waiting.popleft()
                self._waiting_bytes -= len(data)
                self._metrics.bytes_out += len(data)
                await socket.send_text(data.decode())
            if self._close_code is not None:
                await socket.close(self._close_code)
                return

    def end(self) -> None:
        """The connection is gone."""
        self._there, self._writer = False, None
        self._forget()

    def _leave(self, last: bytes | None, code: int) -> None:
        self._forget()
        if last:
            self._waiting.append(last)
            self._waiting_bytes = len(last)
        self._close_code = code
        self._more.set()
        if self._writer:  # a caller who does not read does not take his last event either
            asyncio.get_running_loop().call_later(_HANG_UP_S, self._writer.cancel)

    def _forget(self) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0

    def _trim(self) -> None:
        while self._kept_bytes > self._keep_bytes:
            self._kept_bytes -= len(self._kept.popleft())


def number_of(event_id: str, session: SessionId) -> int | None:
    """Which of a session's events an id names; a connection that took it up goes by the one before."""
    head, _, number = event_id.removesuffix(RESUMED).rpartition("_")
    return int(number) if head == f"event_{session}" and number.isdecimal() and len(number) < 20 else None
