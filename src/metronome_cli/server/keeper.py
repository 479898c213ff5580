"""The first gateway's link: it starts the engine process, and starts it again when it dies.

Knows:   the engine's lives one after another, where each records, and who else is to be told of them.
Ignores: what is said on the link (link.py), how a process is run (engine_life.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, Self

import zmq

from ..clock import Clock
from ..errors import MetronomeError
from ..profile import Profile
from . import messages
from .engine_life import EngineLife
from .link import EngineLink
from .restarts import Restarts

_LAST_WORDS_S = 1.0  # how long a dead engine's last message may take to arrive

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """Who is told of the engine's lives and deaths, as the link itself is."""

    @property
    def highest(self) -> int:
        """The highest session number that it has heard of,"""
        ...

    @property
    def unheard(self) -> int:
        """and how many may have been given of which it never heard."""
        ...

    def begins(self, address: str) -> None: ...
    def ended(self, how: str, code: str, final: bool) -> None: ...
    def given_up(self) -> None: ...


class EngineKeeper(EngineLink):
    """An EngineLink that keeps an engine process alive.

    `ready` raises MetronomeError, with its exit code, when the model never will be.
    """

    def __init__(self, profile: Profile, folder: Path | None, clock: Clock, mark: str = "") -> None:
        super().__init__(profile, clock, mark)
        self.follower: Follower | None = None
        self.on_given_up: Callable[[], None] = lambda: None  # somebody who ends a server that came up
        self.address = ""  # of the latest life
        self._folder = folder
        self._restarts = Restarts(profile.server.restarts)
        self._stopping = False
        self._ready_at = 0.0
        self._lived_s = 0.0  # the latest life that is over, from when it was ready,
        self._served_before = 0  # beats of the lives before it,
        self._pause_s: float | None = None  # and how long after it another one is tried; None: never

    async def __aenter__(self) -> Self:
        await self._begin(self._folder, must_record=True)
        return await super().__aenter__()

    async def __aexit__(self, *_: object) -> None:
        self._stopping = True
        await self._cease()
        listening = self._engine_state == "ok"  # a model that loads is not
        self.send(messages.Stop())
        await self._life.stop(told=listening)
        self._hang_up()
        self._life.close()

    def begins(self, address: str) -> None:
        super().begins(address)
        self.address = address
        if self.follower:
            self.follower.begins(address)

    def look(self) -> None:
        super().look()
        silence = self._silence
        if (silence.is_busy or silence.is_hung) and self._life.is_traced():
            silence.heard()  # its time begins anew when the debugger lets it go, maybe deep in a tick
        elif silence.is_hung:
            self.metrics.engine_hangs += 1
            doing = " while it loaded its model" if silence.loads else ""
            how = f"the engine process said nothing for {silence.mute_s:.1f} s{doing} and was ended"
            # Callers first: a process that waits for a device may take long to die, even by force.
            self.ended(how, "engine_hung")
            self._life.kill()

    def ended(self, how: str, code: str = "engine_dead", final: bool = False) -> None:
        # What it was silent at the end is no part of its life: one that hangs at once never was.
        self._lived_s = served_s = 0.0
        if self._engine_state == "ok":
            self._lived_s = self._clock.now() - self._ready_at - self._silence.beatless_s
            served_s = (self.metrics.served - self._served_before) * self._profile.beat.frame_s
        # One that was never ready would fail in the same way again.
        self._pause_s = self._restarts.pause_s(self._lived_s, served_s) if self._came_up() else None
        final = final or self._pause_s is None
        super().ended(how, code, final)
        if not self._ready.done():
            self._ready.set_exception(MetronomeError(f"{how} before it was ready; see its last words above"))
        elif self._came_up():
            until = "" if final else " and new ones refused until it is back"
            _log.error(f"%s: calls are closed{until}", how)  # no argument: the log shows one of those alike
        if self.follower:
            self.follower.ended(how, code, final)
        if final:
            self.given_up()

    def given_up(self) -> None:
        super().given_up()
        if self.follower:
            self.follower.given_up()
        if self._came_up():
            _log.error("the engine process is not started again: %s. The server ends", self._restarts)
            self.on_given_up()

    def _works(self) -> list[Coroutine[Any, Any, None]]:
        return [*super()._works(), self._supervise()]

    def _is_ready(self, told: messages.Ready) -> None:
        if self._ready.done():
            times = self.deaths
            _log.warning("the engine process is back after %d death(s); calls are taken again", times)
        super()._is_ready(told)
        self._ready_at, self._served_before = self._clock.now(), self.metrics.served

    def _has_failed(self, text: str, exit_code: int) -> None:
        error = MetronomeError(text)
        error.exit_code = exit_code
        if not self._ready.done():
            self._ready.set_exception(error)
        else:
            _log.error("the engine process could not be started again: %s", text)

    async def _supervise(self) -> None:
        """Tell everybody when the engine process ends without being asked to, and start it again."""
        while True:
            how = f"the engine process ended with {await self._life.end()}"
            if self._stopping:
                return
            if not self._over:  # else it hung, and all that is to be told was told
                if self._engine_state != "ok":
                    await asyncio.wait({self._ready}, timeout=_LAST_WORDS_S)
                self.ended(how)
            if self._pause_s is None:
                return
            if not await self._revived(self._pause_s):
                self.given_up()
                return

    def _came_up(self) -> bool:
        """Whether it was ever ready."""
        return self._ready.done() and self._ready.exception() is None

    async def _revived(self, pause_s: float | None) -> bool:
        """Start it again, in as many tries as are allowed; False when all failed."""
        while pause_s is not None:
            # Long enough for the follower to hear of all session numbers: none is to be used twice.
            await self._clock.sleep_until(self._clock.now() + pause_s)
            if await self._begin_again():
                return True
            pause_s = self._restarts.pause_s(0.0)
        return False

    async def _begin_again(self) -> bool:
        """Start the engine process anew; False when the system has no room for it now."""
        before = self._life
        try:
            await self._begin(self._next_folder(), must_record=False)
        except (OSError, zmq.ZMQError) as error:  # no memory, no files left, no place for a socket
            _log.error("the engine process could not be started again: %s", error)
            return False
        before.close()
        return True

    async def _begin(self, folder: Path | None, must_record: bool) -> None:
        life = EngineLife()
        address = await life.begin(self._profile.model_dump(), folder, self._numbered(), must_record)
        try:
            self.begins(address)
        except BaseException:
            await life.stop(told=False)
            life.close()
            raise
        self._life = life

    def _numbered(self) -> int:
        """The highest session number that may have been given."""
        others = (self.follower.highest, self.follower.unheard) if self.follower else (0, 0)
        return max(self.highest, others[0]) + self.unheard + others[1]

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
