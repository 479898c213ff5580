"""The gateways beside the first one, as it sees them: started, told, added up, started again, ended.

Knows:   their processes and the line to each, what each has counted, when all of them are up or gone.
Ignores: calls, the engine's messages, and how the kernel shares out connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Self

from ..clock import Clock
from ..errors import MetronomeError
from ..profile import Profile
from . import news
from .engine_life import cause
from .handover import FIRST
from .keeper import EngineKeeper
from .restarts import Restarts

_END_S = 10.0  # that a gateway may take to end once it is to stop

_log = logging.getLogger(__name__)


class Others:
    """Keeps a server's other gateways alive. It is the keeper's Follower. Use it as `async with`."""

    def __init__(
        self,
        profile: Profile,
        listener: socket.socket,
        keys: tuple[str, ...],
        link: EngineKeeper,
        clock: Clock,
    ) -> None:
        self.cell = Path(tempfile.mkdtemp(prefix="metronome-"))  # mode 0700
        self.highest = 0
        self._profile = profile
        self._address = listener.getsockname()[:2]
        self._keys = keys
        self._link = link
        self._clock = clock
        self._numbers = range(FIRST + 1, profile.server.gateways + 1)
        loop = asyncio.get_running_loop()
        self._up: dict[int, asyncio.Future[None]] = {number: loop.create_future() for number in self._numbers}
        self._up_at: dict[int, float] = {}
        self._unheard: dict[int, int] = {}
        self._lives: dict[int, _Life] = {}
        self._latest: news.News = news.Begins(link.address)  # of the engine
        self._leaving = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._link.follower = self
        self._tasks = {asyncio.create_task(self._keep(number)) for number in self._numbers}
        return self

    async def __aexit__(self, *_: object) -> None:
        self._leaving.set()
        for life in self._lives.values():
            life.stop()
        await asyncio.wait(self._tasks, timeout=_END_S)
        for life in self._lives.values():
            life.signal(signal.SIGKILL)
        await asyncio.wait(self._tasks)
        self._link.follower = None
        shutil.rmtree(self.cell, ignore_errors=True)

    async def ready(self) -> None:
        """Return once all take calls. MetronomeError when one of them never will."""
        await asyncio.gather(*map(asyncio.shield, self._up.values()))

    async def leave(self) -> None:
        """Have them let their calls end, and return once all are gone, or one of them does not go."""
        self._leaving.set()
        for life in self._lives.values():
            life.signal(signal.SIGTERM)
        await asyncio.wait(self._tasks, timeout=self._profile.server.drain_s + _END_S)

    # ---- The engine's lives ----

    @property
    def unheard(self) -> int:
        return sum(self._unheard.values())

    def begins(self, address: str) -> None:
        self._tell(news.Begins(address))

    def ended(self, how: str, code: str, final: bool) -> None:
        self._tell(news.Ended(how, code, final))

    def given_up(self) -> None:
        self._tell(news.GivenUp())

    def _tell(self, message: news.News) -> None:
        self._latest = message
        for life in self._lives.values():
            life.say(message)

    # ---- Their own ----

    async def _keep(self, number: int) -> None:
        """One life of a gateway after another, until it is to end or is not worth another try."""
        restarts = Restarts(self._profile.server.restarts)
        while not self._leaving.is_set():
            self._up_at.pop(number, None)
            how = await self._live(number)
            if self._leaving.is_set():
                return
            beats = self._link.metrics.gateway_lost(number).served
            if not self._up[number].done():
                why = f"gateway {number} ended with {how} before it was ready; see its last words above"
                self._up[number].set_exception(MetronomeError(why))
                return
            _log.error("gateway %d ended with %s, and its calls with it", number, how)
            now = self._clock.now()
            served_s = beats * self._profile.beat.frame_s
            pause_s = restarts.pause_s(now - self._up_at.get(number, now), served_s)
            if pause_s is None:
                _log.error("gateway %d is not started again: %s; the other gateways go on", number, restarts)
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), pause_s)

    async def _live(self, number: int) -> str:
        """One life of a gateway; how it ended."""
        try:
            life = await _Life.begin()
        except OSError as error:  # no memory, no files left
            return str(error)
        self._lives[number] = life
        life.say(self._setup(number))
        life.say(self._latest)
        if self._leaving.is_set():  # said before this one was there to hear it
            life.stop()
        while report := await life.report():
            self._heed(number, report)
        del self._lives[number]
        return await life.end()

    def _heed(self, number: int, report: news.Reports) -> None:
        match report:
            case news.Up():
                self._up_at[number] = self._clock.now()
                if not self._up[number].done():
                    self._up[number].set_result(None)
            case news.Counted(counts, highest, unheard):
                self._link.metrics.elsewhere[number] = counts
                self.highest = max(self.highest, highest)
                self._unheard[number] = unheard

    def _setup(self, number: int) -> news.Setup:
        host, port = self._address
        return news.Setup(number, str(self.cell), self._profile.model_dump(), host, port, list(self._keys))


class _Life:
    """One life of another gateway."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls) -> Self:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "metronome_cli.server.gateway_process"),
                    stdin=theirs.fileno(),  # both ways; its end tells the other that we are gone
                    stdout=2,
                    start_new_session=True,  # Ctrl-C is for the first gateway
                )
        except BaseException:
            ours.close()
            raise
        return cls(process, *await asyncio.open_connection(sock=ours, limit=news.LONGEST))

    def say(self, message: news.News) -> None:
        """Tell it; nobody hears it when it is dead."""
        self._writer.write(news.line(message))

    async def report(self) -> news.Reports | None:
        """What it says next; None when it is gone."""
        return await news.next_report(self._reader)

    def stop(self) -> None:
        """Tell it to end at once; what it says until then is still heard."""
        with contextlib.suppress(OSError, RuntimeError):  # it is dead
            self._writer.write_eof()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def end(self) -> str:
        """Wait until the process has ended; how it did, in words."""
        self._writer.close()
        return cause(await self._process.wait())
