"""Real servers and callers for the tests: `metronome serve` as a process, WebSockets on 127.0.0.1."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from metronome_cli import wire
from metronome_cli.models.null import REPLY

from . import ga

WHOLE = "".join(REPLY)  # of the null model
PATIENCE_S = 20.0  # a bound, so that a broken server fails a test instead of hanging it
Event = TypeVar("Event", bound=wire.ServerEvent)

PROFILE = """
[model]
kind = "{kind}"
thinker = "{thinker}"
mode = "{mode}"
header = "one two three"

[beat]
frame_s = {frame_s}
tau = {tau}
prefill_tokens = 16

[window]
policy = "{policy}"
window = 64

[pool]
blocks = {blocks}
block_size = 4

[admission]
max_sessions = {max_sessions}

[server]
max_event_bytes = {max_event_bytes}
max_pending_s = {max_pending_s}
reaper_s = {reaper_s}
idle_s = {idle_s}
{more}
"""
DEFAULTS: dict[str, Any] = {
    "kind": "null",
    "thinker": "none",
    "mode": "free",
    "frame_s": 0.1,
    "tau": 2,
    "policy": "window",
    "blocks": 400,
    "max_sessions": 8,
    "max_event_bytes": 200_000,
    "max_pending_s": 5.0,
    "reaper_s": 1.0,
    "idle_s": 60.0,
    "more": "",  # further lines of [server]
}


def write_profile(folder: Path, **values: Any) -> Path:
    """A profile, of a null model if nothing else is said; `values` replace DEFAULTS."""
    path = folder / "null.toml"
    path.write_text(PROFILE.format(**DEFAULTS | values))
    return path


@dataclass
class Server:
    """`metronome serve` on a free port, ready for calls."""

    process: subprocess.Popen[str]
    url: str
    folder: Path

    @classmethod
    def start(
        cls, folder: Path, env: Mapping[str, str] | None = None, options: Sequence[str] = (), **values: Any
    ) -> Server:
        profile = write_profile(folder, **values)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "metronome_cli", "serve", "--profile", str(profile)),
                *("--port", "0", "--json", "--out", str(folder / "runs"), *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        ready = json.loads(line)
        return cls(process, ready["url"], Path(ready["run"]))

    @property
    def address(self) -> str:
        return self.url.replace("http", "ws") + wire.REALTIME_PATH

    @property
    def engine(self) -> int:
        """Process number of the engine process."""
        (number,) = self._children("engine_process")
        return number

    @property
    def others(self) -> list[int]:
        """Process numbers of the gateways beside the first one."""
        return self._children("gateway_process")

    def _children(self, module: str) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children if module in Path(f"/proc/{child}/cmdline").read_text()]

    def health(self) -> tuple[int, dict[str, Any]]:
        try:
            address = self.url + wire.HEALTH_PATH
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and standard error; ending twice is no error."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@contextmanager
def outlasting(folder: Path, **values: Any) -> Iterator[Server]:
    """A server that must outlive all that is done to it, and end with nothing said but that it was ready."""
    running = Server.start(folder, **values)
    yield running
    try:
        code, said = running.stop()
        assert (code, said.count("\n")) == (0, 1), said
    finally:
        running.kill()


@dataclass
class Caller:
    """One call: says events, and remembers every event that came."""

    line: ClientConnection
    seen: list[wire.ServerEvent] = field(default_factory=list)

    async def say(self, event: wire.ClientEvent | str | bytes) -> None:
        """A client event, or any text or binary frame as it stands."""
        await self.line.send(event if isinstance(event, str | bytes) else wire.encode(event).decode())

    async def hear(self) -> wire.ServerEvent:
        async with asyncio.timeout(PATIENCE_S):
            event = wire.decode_server_event(await self.line.recv())
        assert event is not None
        self.seen.append(event)
        return event

    async def until(self, kind: type[Event]) -> Event:
        """The next event of that kind."""
        while not isinstance(event := await self.hear(), kind):
            pass
        return event

    async def error(self) -> wire.ErrorDetail:
        return (await self.until(wire.ErrorEvent)).error

    async def updated(self, **settings: Any) -> wire.SessionUpdated:
        """Change the session's settings and wait until they hold."""
        await self.say(json.dumps({"type": "session.update", "session": {"type": "realtime", **settings}}))
        return await self.until(wire.SessionUpdated)

    async def duplex(self) -> None:
        """Ask to be answered whenever the model sees fit."""
        await self.updated(audio={"input": {"turn_detection": {"type": "full_duplex"}}})

    async def ticking(self, rate: int = 16_000) -> None:
        """Ask for tick events."""
        form = {"input": {"format": {"type": "audio/pcm", "rate": rate}}}
        await self.updated(audio=form, metronome={"ticks": True})

    async def hung_up(self) -> int | None:
        """Wait for the end of the connection; its close code."""
        try:
            while True:
                await self.hear()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


@asynccontextmanager
async def call(server: Server, **options: Any) -> AsyncIterator[Caller]:
    """A call that was let in. Whatever it was for, what the server said in it must hang together."""
    # Some callers leave events unread, and cannot see the server's answer to their goodbye then.
    options = {"close_timeout": 0.5, **options}
    async with connect(server.address, compression=None, proxy=None, **options) as line:
        caller = Caller(line)
        assert isinstance(await caller.hear(), wire.SessionCreated)
        yield caller
    ga.check(caller.seen)


def gone(process: int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def ask(
    caller: Caller, text: str = "are you there", *, response: wire.ResponseSettings | None = None
) -> None:
    """Type a message and ask for a reply."""
    await caller.say(wire.ItemCreate(item=wire.Item.message(text)))
    await caller.say(wire.ResponseCreate(response=response))


async def answered(caller: Caller) -> wire.Response:
    """The next reply, once it is over."""
    return (await caller.until(wire.ResponseDone)).response


def text_of(response: wire.Response) -> str:
    return "".join(part.text or "" for item in response.output for part in item.content)
