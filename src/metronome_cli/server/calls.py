"""The calls of one gateway: let in, lost from sight for a while, taken up again, let go.

Knows:   which calls live, which of them have no connection and for how long that may last, how all are ended.
Ignores: what is said in a call, the engine's sessions, processes.
"""

from __future__ import annotations

import asyncio
import hmac

from starlette.websockets import WebSocket

from .. import wire
from ..profile import Profile
from .link import EngineLink
from .realtime import Call

_LAST_EVENTS_S = 2.5  # for the last event of calls that are ended


class Calls:
    """Holds every call that was let in until it is over."""

    def __init__(self, profile: Profile, link: EngineLink) -> None:
        self._grace_s = profile.server.grace_s
        self._drain_s = profile.server.drain_s
        self._link = link
        self._live: set[Call] = set()
        self._connected: set[Call] = set()
        self._graces: dict[Call, asyncio.Task[None]] = {}
        self._none_left = asyncio.Event()
        self._none_left.set()

    async def serve(self, call: Call, socket: WebSocket, again: list[bytes] | None = None) -> None:
        """Hold a call that was let in over this connection; a caller who comes back hears `again` first."""
        self._live.add(call)
        self._connected.add(call)
        self._none_left.clear()
        if grace := self._graces.pop(call, None):
            grace.cancel()
        self._link.metrics.detached = len(self._graces)
        try:
            await call.hold(socket, again or [])
        finally:
            self._lost(call)

    async def take_up(self, token: str, after: str | None, socket: WebSocket) -> bool:
        """Go on with a call after its event `after`; False when it is over, or the events are not kept."""
        call = next((call for call in self._live if _same(call.token, token)), None)
        if call is None or call.again(after) is None:
            return False
        while call in self._connected:  # its caller may know before us that a connection is dead
            call.let_go(wire.CLOSE_REPLACED)
            await call.parted.wait()
        again = call.again(after)
        if again is None:
            return False
        await self.serve(call, socket, again)
        return True

    async def drain(self) -> None:
        """Let no more calls in, give those that live time to end, then end them."""
        self._link.draining = True
        await self._until_none_left(self._drain_s)
        for call in tuple(self._live):
            why = f"the server is going down and waited {self._drain_s:g} s for calls to end; call again"
            call.hang_up("server_draining", why)
        await self._until_none_left(_LAST_EVENTS_S)

    def close(self) -> None:
        """The server is over: nobody is let in or waited for any more."""
        self._link.draining = True
        for call in self._graces:
            call.ended.set()

    def _lost(self, call: Call) -> None:
        """A connection is gone, and its call with it unless the caller may come back."""
        self._connected.discard(call)
        if call.ended.is_set() or call.token is None or self._link.draining:
            self._end(call)
        else:
            self._graces[call] = asyncio.create_task(self._grace(call))
            self._link.metrics.detached = len(self._graces)

    async def _grace(self, call: Call) -> None:
        """Keep a call without a connection until it is ended or nobody came in time."""
        ended = asyncio.create_task(call.ended.wait())
        try:
            await asyncio.wait({ended}, timeout=self._grace_s)
        finally:
            ended.cancel()
        del self._graces[call]
        self._link.metrics.detached = len(self._graces)
        self._end(call)

    def _end(self, call: Call) -> None:
        self._live.discard(call)
        self._link.close(call.session)
        call.over()
        if not self._live:
            self._none_left.set()

    async def _until_none_left(self, seconds: float) -> None:
        waiting = asyncio.create_task(self._none_left.wait())
        await asyncio.wait({waiting}, timeout=seconds)
        waiting.cancel()


def _same(mine: str | None, theirs: str) -> bool:
    return mine is not None and hmac.compare_digest(mine.encode(), theirs.encode())
