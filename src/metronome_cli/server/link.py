"""The gateway's end of the line to the engine process, over as many of its lives as it takes.

Knows:   which caller holds which session, and whether the engine is ready or dead.
Ignores: WebSockets, client events, models, and who starts the process, how and how often (keeper.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Protocol, Self

from ..clock import Clock
from ..frame import Refused, SessionId
from ..profile import Profile
from . import messages
from .engine_socket import EngineSocket
from .metrics import Metrics
from .silence import LOOK_S, Silence
from .upbeat import Upbeat

_HEARTBEATS = 4  # per reaper period: one may be late without harm
_ANSWER_S = 10.0  # that a caller who asks to come in is kept waiting

_log = logging.getLogger(__name__)


class Caller(Protocol):
    """Whoever holds a session in the gateway."""

    def opened(self, session: SessionId) -> None:
        """The session is there; nothing was said about it before."""
        ...

    def heed(self, message: messages.ToCaller) -> None:
        """The engine says something about the session."""
        ...

    def warn(self, code: str, why: str) -> None:
        """Something is wrong that its caller should know; the call goes on."""
        ...


class EngineLink:
    """Talks to the engine process, whose lives and deaths it is told of. Use it as `async with`."""

    def __init__(self, profile: Profile, clock: Clock, mark: str = "") -> None:
        self.metrics = Metrics(profile)
        self.upbeat = Upbeat(profile.beat.frame_s, clock)
        self.began = int(clock.wall())
        self.mark = mark  # begins the tokens of calls held here: who is given one knows whose it is
        self.on_beat: Callable[[messages.Beat], None] | None = None  # somebody who watches
        self.draining = False  # no new calls: the server is about to end
        self.deaths = 0
        self.highest = 0  # session number so far,
        self.unheard = 0  # and how many may have been given of which we never heard
        self._silence = Silence(profile)
        self._warned = False  # callers know of this silence
        self._engine_state: Literal["starting", "ok", "restarting", "engine_dead"] = "starting"
        self._profile = profile
        self._clock = clock
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line: EngineSocket | None = None
        self._over = True  # no life of the engine is known that has not ended
        self._callers: dict[SessionId, Caller] = {}
        self._requests: dict[int, tuple[Caller, asyncio.Future[SessionId | Refused]]] = {}
        self._asked = 0

    @property
    def state(self) -> str:
        """ok, or why no call is let in: starting, restarting, engine_dead, draining, engine_busy."""
        if self._engine_state != "ok":
            return self._engine_state
        if self.draining:
            return "draining"
        return "engine_busy" if self._silence.is_busy else "ok"

    @property
    def silent_s(self) -> float:
        """Seconds without a beat, once they are so many that the engine is busy; before that 0."""
        return self._silence.beatless_s if self._silence.is_busy else 0.0

    @property
    def free(self) -> int:
        """Calls that would be let in now."""
        return self.metrics.free if self.state == "ok" else 0

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(work) for work in self._works()]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._cease()
        self._hang_up()

    def begins(self, address: str) -> None:
        """An engine process was started and will be met there."""
        self._hang_up()
        line = EngineSocket(self._take)
        line.connect(address)
        self._line, self._over = line, False
        self._silence.load(self._clock.now())

    def ended(self, how: str, code: str = "engine_dead", final: bool = False) -> None:
        """The engine process is over: so are all calls, and those that asked to come in are refused.

        `code`, engine_dead or engine_hung, and `how` are what callers are told. `final`: it is not started
        again, and the server ends.
        """
        self.deaths += 1
        self._over = True
        self._silence.stop()
        self._warned = False
        self.upbeat.stop()
        self._engine_state = "engine_dead" if final else "restarting"
        goes_on = "it is not started again: this server ends" if final else "it is started again: call anew"
        for _, answer in self._requests.values():
            if not answer.done():
                answer.set_result(self._no())
        self.unheard += len(self._requests)
        self._requests.clear()
        for session, caller in tuple(self._callers.items()):
            caller.heed(messages.Ended(session, code, f"{how}; {goes_on}"))

    def given_up(self) -> None:
        """There will be no engine any more, and so no server."""
        self._engine_state = "engine_dead"

    async def ready(self) -> None:
        """Return once the model is loaded."""
        await asyncio.shield(self._ready)

    async def open(self, caller: Caller) -> SessionId | Refused:
        """Ask the engine for a session. The caller hears of it before anything is said about it."""
        answer = await self._ask(caller) if self.state == "ok" else self._no()
        if isinstance(answer, Refused):
            self.metrics.refused[answer.reason] += 1
        return answer

    def send(self, message: messages.ToEngine) -> None:
        """Say something about an open session; lost when the engine is dead, as its caller is told."""
        if self._engine_state == "ok" and self._line:
            self._line.post(message)

    def close(self, session: SessionId) -> None:
        """The caller is gone; its blocks go back at once."""
        if self._callers.pop(session, None):
            self.metrics.closed += 1
            self.send(messages.Close(session))

    def _no(self) -> Refused:
        """Why no call is let in; nobody is asked to come again once there will be no engine any more."""
        return Refused(self.state, None) if self.state == "engine_dead" else Refused(self.state)

    async def _ask(self, caller: Caller) -> SessionId | Refused:
        self._asked += 1
        answer: asyncio.Future[SessionId | Refused] = asyncio.get_running_loop().create_future()
        self._requests[self._asked] = caller, answer
        self.send(messages.Open(self._asked))
        try:
            return await asyncio.wait_for(answer, _ANSWER_S)
        except TimeoutError:  # should it be let in after all, `_let_in` finds nobody waiting
            return Refused("engine_busy", _ANSWER_S)

    def _works(self) -> list[Coroutine[Any, Any, None]]:
        """What goes on as long as the link is there."""
        return [self._live(), self._watch(), self.upbeat.run()]

    async def _cease(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _hang_up(self) -> None:
        if self._line:
            self._line.close()
            self._line = None

    async def _live(self) -> None:
        due = self._clock.now()
        while True:
            self.send(messages.Heartbeat())
            due += self._profile.server.reaper_s / _HEARTBEATS
            await self._clock.sleep_until(due)

    async def _watch(self) -> None:
        while True:
            self.look()
            await self._clock.sleep_until(self._clock.now() + LOOK_S)

    def look(self) -> None:
        """See how long the engine has been silent, and tell the callers when it is too long."""
        silence = self._silence
        silence.look(self._clock.now())
        if not silence.is_busy:
            if self._warned:
                self._warned = False
                _log.warning("the engine's silence is over")
        elif not self._warned:
            self._warned = True
            self.metrics.engine_busy += 1
            _log.warning("no beat for %.1f s: %d calls are told", silence.beatless_s, len(self._callers))
            why = (
                f"the engine has told of no beat for {silence.beatless_s:.1f} s: until it does, nothing is "
                f"heard or answered; once it has said nothing for {silence.hang_s:g} s, the call is over"
            )
            for caller in tuple(self._callers.values()):
                caller.warn("engine_busy", why)

    # ---- What the engine says ----

    def _take(self, message: messages.ToGateway) -> None:
        if self._over and not isinstance(message, messages.Failed):
            return  # what was still on its way when the engine died
        self._silence.heard()
        match message:
            case messages.Ready():
                self._is_ready(message)
            case messages.Loading():
                pass  # that it was heard is all
            case messages.Failed(text, exit_code):
                self._has_failed(text, exit_code)
            case messages.Opened(request, session):
                self._let_in(request, session)
            case messages.TurnedAway(request, reason, retry_after_s):
                self._turn_away(request, Refused(reason, retry_after_s))
            case messages.Beat():
                self._silence.begin(self._clock.now())
                self.metrics.beat(message)
                self.upbeat.beat(message.tick.due)
                if self.on_beat:
                    self.on_beat(message)
            case _:
                if caller := self._callers.get(message.session):
                    caller.heed(message)

    def _is_ready(self, told: messages.Ready) -> None:
        self._engine_state = "ok"
        self._silence.begin(self._clock.now())
        self.metrics.engine_ready(told)
        if not self._ready.done():
            self._ready.set_result(None)
        else:
            self.metrics.engine_restarts += 1

    def _has_failed(self, text: str, exit_code: int) -> None:
        """Who started the process says so, and hears of its death in a moment."""

    def _turn_away(self, request: int, why: Refused) -> None:
        asked = self._requests.pop(request, None)
        if asked and not asked[1].done():
            asked[1].set_result(why)

    def _let_in(self, request: int, session: SessionId) -> None:
        asked = self._requests.pop(request, None)
        if asked is None:
            return  # the last words of an engine that is dead
        caller, answer = asked
        self.highest = max(self.highest, session)
        self.metrics.opened += 1
        self._callers[session] = caller
        if answer.done():  # nobody waits for it any more
            self.close(session)
            return
        caller.opened(session)
        answer.set_result(session)
