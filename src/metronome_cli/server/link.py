"""The gateway's end of the line to the engine process, over as many of its lives as it takes.

Knows:   which caller holds which session, when the engine is ready, dead, or to be started again.
Ignores: WebSockets, client events, models, and how a process is run (engine_life.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import zmq

from ..clock import Clock
from ..errors import MetronomeError
from ..frame import Refused, SessionId
from ..profile import Profile
from . import messages
from .engine_life import EngineLife
from .metrics import Metrics
from .upbeat import Upbeat

_HEARTBEATS = 4  # per reaper period: one may be late without harm
_LAST_WORDS_S = 1.0  # how long a dead engine's last message may take to arrive
_ANSWER_S = 10.0  # an engine that does not answer for so long is refused for
_STEADY_S = 60.0  # an engine that dies sooner after it was ready is counted as one that never was
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0  # before a dead engine is started again; doubled each time

_log = logging.getLogger(__name__)


class Caller(Protocol):
    """Whoever holds a session in the gateway."""

    def opened(self, session: SessionId) -> None:
        """The session is there; nothing was said about it before."""
        ...

    def heed(self, message: messages.ToCaller) -> None:
        """The engine says something about the session."""
        ...


class EngineLink:
    """Starts the engine process, talks to it, and starts it again when it dies. Use it as `async with`."""

    def __init__(self, profile: Profile, folder: Path | None, clock: Clock) -> None:
        self.metrics = Metrics(profile)
        self.upbeat = Upbeat(profile.beat.frame_s, clock)
        self.began = int(clock.wall())
        self.on_beat: Callable[[messages.Beat], None] | None = None  # somebody who watches
        self.draining = False  # no new calls: the server is about to end
        self.deaths = 0
        self._engine_state: Literal["starting", "ok", "restarting", "engine_dead"] = "starting"
        self._profile = profile
        self._folder = folder
        self._clock = clock
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._life = EngineLife(self._take)
        self._callers: dict[SessionId, Caller] = {}
        self._requests: dict[int, tuple[Caller, asyncio.Future[SessionId | Refused]]] = {}
        self._asked = 0
        self._opened = 0  # the highest session number so far
        self._stopping = False
        self._ready_at = 0.0

    @property
    def state(self) -> str:
        """ok, or why no call is let in: starting, restarting, engine_dead, draining."""
        return "draining" if self.draining and self._engine_state == "ok" else self._engine_state

    async def __aenter__(self) -> EngineLink:
        await self._life.begin(self._profile.model_dump(), self._folder, self._opened)
        works = (self._supervise(), self._live(), self.upbeat.run())
        self._tasks = [asyncio.create_task(work) for work in works]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._life.stop(listening=self._engine_state == "ok")
        self._life.close()

    async def ready(self) -> None:
        """Return once the model is loaded. MetronomeError, with its exit code, when it never will."""
        await asyncio.shield(self._ready)

    async def open(self, caller: Caller) -> SessionId | Refused:
        """Ask the engine for a session. The caller hears of it before anything is said about it."""
        answer = await self._ask(caller) if self.state == "ok" else Refused(self.state)
        if isinstance(answer, Refused):
            self.metrics.refused[answer.reason] += 1
        return answer

    def send(self, message: messages.ToEngine) -> None:
        """Say something about an open session; lost when the engine is dead, as its caller is told."""
        if self._engine_state == "ok":
            self._life.post(message)

    def close(self, session: SessionId) -> None:
        """The caller is gone; its blocks go back at once."""
        if self._callers.pop(session, None):
            self.metrics.closed += 1
            self.send(messages.Close(session))

    async def _ask(self, caller: Caller) -> SessionId | Refused:
        self._asked += 1
        answer: asyncio.Future[SessionId | Refused] = asyncio.get_running_loop().create_future()
        self._requests[self._asked] = caller, answer
        self._life.post(messages.Open(self._asked))
        try:
            return await asyncio.wait_for(answer, _ANSWER_S)
        except TimeoutError:  # should it be let in after all, `_let_in` finds nobody waiting
            return Refused("engine_busy", _ANSWER_S)

    async def _live(self) -> None:
        due = self._clock.now()
        while True:
            self.send(messages.Heartbeat())
            due += self._profile.server.reaper_s / _HEARTBEATS
            await self._clock.sleep_until(due)

    # ---- Death and a new life ----

    async def _supervise(self) -> None:
        """Tell everybody when the engine process ends without being asked to, and start it again."""
        failures = 0  # lives in a row that were over at once
        while True:
            how = f"the engine process ended with {await self._life.end()}"
            if self._stopping:
                return
            was_ready = self._engine_state == "ok"
            steady = was_ready and self._clock.now() - self._ready_at >= _STEADY_S
            failures = 0 if steady else failures + 1
            if not was_ready:
                await asyncio.wait({self._ready}, timeout=_LAST_WORDS_S)
            self._mourn(how)
            while self._live_again(failures):
                pause_s = min(_FIRST_PAUSE_S * 2 ** max(0, failures - 1), _LONGEST_PAUSE_S)
                await self._clock.sleep_until(self._clock.now() + pause_s)
                if await self._begin_again():
                    break
                failures += 1
            else:
                self._engine_state = "engine_dead"
                return

    def _live_again(self, failures: int) -> bool:
        """Whether it is worth another try: it was ready once, and did not die at once too often since."""
        came_up = self._ready.done() and self._ready.exception() is None
        return came_up and failures <= self._profile.server.restarts > 0

    async def _begin_again(self) -> bool:
        """Start the engine process anew; False when the system has no room for it now."""
        life = EngineLife(self._take)
        try:
            await life.begin(self._profile.model_dump(), self._next_folder(), self._opened, must_record=False)
        except (OSError, zmq.ZMQError) as error:  # no memory, no files left, no place for a socket
            _log.error("the engine process could not be started again: %s", error)
            return False
        self._life.close()
        self._life = life
        return True

    def _next_folder(self) -> Path | None:
        """Where the next life records; None where that cannot be: a full disk must not end the server."""
        folder = self._folder and self._folder / f"restart-{self.deaths}"
        try:
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            _log.error("nothing is recorded: %s", error)
            return None
        return folder

    def _mourn(self, how: str) -> None:
        """All calls are over, and those that asked to come in are refused."""
        self.deaths += 1
        self.upbeat.stop()
        self._engine_state = "restarting"
        if not self._ready.done():
            self._ready.set_exception(MetronomeError(f"{how} before it was ready; see its last words above"))
        elif self._ready.exception() is None:
            _log.error("%s: calls are closed and new ones refused until it is back", how)
        for _, answer in self._requests.values():
            if not answer.done():
                answer.set_result(Refused("engine_dead"))
        self._opened += len(self._requests)  # each may have been given a number that we never heard of
        self._requests.clear()
        for session, caller in tuple(self._callers.items()):
            caller.heed(messages.Ended(session, "engine_dead", how))

    # ---- What the engine says ----

    def _take(self, message: messages.ToGateway) -> None:
        match message:
            case messages.Ready():
                self._is_ready()
            case messages.Failed(text, exit_code):
                self._has_failed(text, exit_code)
            case messages.Opened(request, session):
                self._let_in(request, session)
            case messages.TurnedAway(request, reason, retry_after_s):
                self._turn_away(request, Refused(reason, retry_after_s))
            case messages.Beat():
                self.metrics.beat(message)
                self.upbeat.beat(message.tick.due)
                if self.on_beat:
                    self.on_beat(message)
            case _:
                if caller := self._callers.get(message.session):
                    caller.heed(message)

    def _is_ready(self) -> None:
        self._engine_state = "ok"
        self._ready_at = self._clock.now()
        if not self._ready.done():
            self._ready.set_result(None)
            return
        self.metrics.engine_restarted()
        _log.warning("the engine process is back after %d death(s); calls are taken again", self.deaths)

    def _has_failed(self, text: str, exit_code: int) -> None:
        error = MetronomeError(text)
        error.exit_code = exit_code
        if not self._ready.done():
            self._ready.set_exception(error)
        else:
            _log.error("the engine process could not be started again: %s", text)

    def _turn_away(self, request: int, why: Refused) -> None:
        asked = self._requests.pop(request, None)
        if asked and not asked[1].done():
            asked[1].set_result(why)

    def _let_in(self, request: int, session: SessionId) -> None:
        asked = self._requests.pop(request, None)
        if asked is None:
            return  # the last words of an engine that is dead
        caller, answer = asked
        self._opened = max(self._opened, session)
        self.metrics.opened += 1
        self._callers[session] = caller
        if answer.done():  # nobody waits for it any more
            self.close(session)
            return
        caller.opened(session)
        answer.set_result(session)
