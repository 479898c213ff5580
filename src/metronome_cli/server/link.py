"""The gateway's end of the line to the engine process.

Knows:   how the engine process is started, watched and stopped, and which caller holds which session.
Ignores: WebSockets, client events, models.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Literal, Protocol

import msgspec
import zmq

from ..clock import Clock
from ..errors import MetronomeError
from ..frame import Refused, SessionId
from ..profile import Profile
from . import messages

_HEARTBEATS = 4  # per reaper period: one may be late without harm
_LAST_WORDS_S = 1.0  # how long a dead engine's last message may take to arrive
_STOP_GRACE_S = 5.0  # a model deep in a tick is not interrupted before that

_log = logging.getLogger(__name__)


class Caller(Protocol):
    """Whoever holds a session in the gateway."""

    def opened(self, session: SessionId) -> None:
        """The session is there; nothing was said about it before."""
        ...

    def heed(self, message: messages.ToCaller) -> None:
        """The engine says something about the session."""
        ...


_ANSWER_S = 10.0  # an engine that does not answer for so long is refused for


class EngineLink:
    """Starts the engine process, talks to it, and knows when it is gone. Use it as `async with`."""

    def __init__(self, profile: Profile, folder: Path | None, clock: Clock) -> None:
        self.state: Literal["starting", "ok", "engine_dead"] = "starting"
        self.calls = 0  # opened so far
        self.refused: Counter[str] = Counter()  # by reason
        self._profile = profile
        self._folder = folder
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._callers: dict[SessionId, Caller] = {}
        self._requests: dict[int, tuple[Caller, asyncio.Future[SessionId | Refused]]] = {}
        self._asked = 0
        self._drain_due = False
        self._stopping = False

    async def __aenter__(self) -> EngineLink:
        self._cell = Path(tempfile.mkdtemp(prefix="metronome-"))  # mode 0700: nobody else may speak here
        try:
            address = f"ipc://{self._cell}/engine"
            self._process = await self._start(address)
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.DEALER)
            # What may be on the way is bounded per session (see messages.py), so that one caller's
            # flood cannot take the room of another's audio.
            self._socket.set_hwm(0)
            self._socket.linger = 0
            self._socket.connect(address)
        except BaseException:
            shutil.rmtree(self._cell, ignore_errors=True)
            raise
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._post(messages.Hello(messages.PROTOCOL))
        self._tasks = [asyncio.create_task(work) for work in (self._watch(), self._live())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._cell, ignore_errors=True)

    async def ready(self) -> None:
        """Return once the model is loaded. MetronomeError, with its exit code, when it never will."""
        await asyncio.shield(self._ready)

    async def open(self, caller: Caller) -> SessionId | Refused:
        """Ask the engine for a session. The caller hears of it before anything is said about it."""
        answer = await self._ask(caller) if self.state == "ok" else Refused(self.state)
        if isinstance(answer, Refused):
            self.refused[answer.reason] += 1
        return answer

    def send(self, message: messages.ToEngine) -> None:
        """Say something about an open session; lost when the engine is dead, as its caller is told."""
        if self.state == "ok":
            self._post(message)

    def close(self, session: SessionId) -> None:
        """The caller is gone; its blocks go back at once."""
        if self._callers.pop(session, None):
            self.send(messages.Close(session))

    async def _ask(self, caller: Caller) -> SessionId | Refused:
        self._asked += 1
        answer: asyncio.Future[SessionId | Refused] = self._loop.create_future()
        self._requests[self._asked] = caller, answer
        self._post(messages.Open(self._asked))
        try:
            return await asyncio.wait_for(answer, _ANSWER_S)
        except TimeoutError:  # should it be let in after all, `_let_in` finds nobody waiting
            return Refused("engine_busy", _ANSWER_S)

    def _post(self, message: messages.ToEngine) -> None:
        self._socket.send(messages.pack(message), zmq.NOBLOCK)
        # zmq tells of a message once, and a send may be what it tells it to: look for ourselves.
        if not self._drain_due:
            self._drain_due = True
            self._loop.call_soon(self._drain)

    async def _start(self, address: str) -> asyncio.subprocess.Process:
        setup = messages.Setup(
            address, self._profile.model_dump(), str(self._folder) if self._folder else None
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "metronome_cli.server.engine_process"),
            stdin=asyncio.subprocess.PIPE,  # stays open: its end tells the engine that we are gone
            stdout=2,  # our own standard output is the answer, not a model's chatter
            start_new_session=True,  # Ctrl-C is for the gateway, which ends the engine in order
            # Threads that spin while they wait take the cores from the gateway and the callers beside
            # them: on two busy cores that made a tick five times as long.
            env={"GOMP_SPINCOUNT": "1000", **os.environ},
        )
        assert process.stdin is not None  # noqa: S101
        process.stdin.write(msgspec.json.encode(setup) + b"\n")
        return process

    async def _stop(self) -> None:
        """End the engine process: by word, then by signal, then by force."""
        steps = [self._process.terminate, self._process.kill]
        if self.state == "ok":  # a model that loads does not listen yet
            steps.insert(0, lambda: self._post(messages.Stop()))
        for step in steps:
            if self._process.returncode is None:
                step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_GRACE_S)
                return

    def _drain(self) -> None:
        """Pass on every message that has come."""
        self._drain_due = False
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(messages.to_gateway(data))
            except Exception:  # whatever it is, the other callers' messages must go on
                _log.exception("a message of the engine could not be passed on")

    async def _live(self) -> None:
        due = self._clock.now()
        while True:
            self.send(messages.Heartbeat())
            due += self._profile.server.reaper_s / _HEARTBEATS
            await self._clock.sleep_until(due)

    async def _watch(self) -> None:
        """Tell everybody when the engine process ends without being asked to."""
        code = await self._process.wait()
        if self._stopping:
            return
        how = f"the engine process ended with {_cause(code)}"
        if self.state == "starting":
            await asyncio.wait({self._ready}, timeout=_LAST_WORDS_S)
        else:
            _log.error("%s: calls are closed and new ones refused", how)
        self.state = "engine_dead"
        if not self._ready.done():
            self._ready.set_exception(MetronomeError(f"{how} before it was ready; see its last words above"))
        for _, answer in self._requests.values():
            if not answer.done():
                answer.set_result(Refused("engine_dead"))
        for session, caller in tuple(self._callers.items()):
            caller.heed(messages.Ended(session, "engine_dead", how))

    def _take(self, message: messages.ToGateway) -> None:
        match message:
            case messages.Ready():
                self.state = "ok"
                self._ready.set_result(None)
            case messages.Failed(text, exit_code):
                error = MetronomeError(text)
                error.exit_code = exit_code
                self._ready.set_exception(error)
            case messages.Opened(request, session):
                self._let_in(session, *self._requests.pop(request))
            case messages.TurnedAway(request, reason, retry_after_s):
                _, answer = self._requests.pop(request)
                if not answer.done():
                    answer.set_result(Refused(reason, retry_after_s))
            case _:
                if caller := self._callers.get(message.session):
                    caller.heed(message)

    def _let_in(
        self, session: SessionId, caller: Caller, answer: asyncio.Future[SessionId | Refused]
    ) -> None:
        self.calls += 1
        self._callers[session] = caller
        if answer.done():  # nobody waits for it any more
            self.close(session)
            return
        caller.opened(session)
        answer.set_result(session)


def _cause(code: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
