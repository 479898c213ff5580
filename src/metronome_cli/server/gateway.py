"""The gateway process: a listening socket, uvicorn on it, the engine process behind it.

Knows:   in which order things start and end, and what ends them.
Ignores: routes, events, terminals.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
import uvloop
from starlette.applications import Starlette

from ..clock import Clock
from ..errors import MetronomeError, ProfileError
from ..profile import Profile
from .app import create_app
from .calls import Calls
from .connection import Connection
from .handover import FIRST, Handover, Sorted, mark_of
from .keeper import EngineKeeper
from .link import EngineLink
from .opening import Opening
from .others import Others

_BACKLOG = 2048
_SEND_BUFFER = 65_536  # bytes the kernel keeps for a caller that does not read: a minute of events
_RECEIVE_BUFFER = 65_536  # bytes it keeps for us while others are served: half a second of packets
_UNREAD_MS = 10_000  # how long they may lie there before the kernel ends the connection
_PONG_S = 10.0  # a caller's event loop may be busy, but not for longer
_SHUTDOWN_S = 2  # for callers that do not answer the closing handshake
_LARGEST_FRAME = 4  # times max_event_bytes: up to here an error event, beyond it the connection ends


def listen(host: str, port: int, gateways: int = 1) -> socket.socket:
    """A listening socket, taken before anything slow begins. ProfileError when it cannot be had.

    With several `gateways` the others can `join` it.
    """
    if gateways == 1:
        return _listen(host, port)
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ProfileError("server.gateways", gateways, "processes cannot share a port on this system; use 1")
    # Who shares a port is not told that another server has it: ask for it alone first.
    with _listen(host, port) as alone:
        free = alone.getsockname()[1]
    return join(host, free)


def join(host: str, port: int) -> socket.socket:
    """A listening socket beside those of the server's other gateways. ProfileError when it cannot be had."""
    return _listen(host, port, (socket.SO_REUSEPORT,))


def _listen(host: str, port: int, options: tuple[int, ...] = ()) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, ValueError) as error:  # ValueError: no name at all, like 127.0.0..1
        why = error.strerror if isinstance(error, OSError) else "no host can be called so"
        raise ProfileError("server.host", host, f"use an address of this machine ({why})") from None
    try:
        for option in (socket.SO_REUSEADDR, *options):
            listener.setsockopt(socket.SOL_SOCKET, option, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _unlistenable(host, port, error) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to call, as http://host:port."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop to run `serve` in: a packet costs it about a quarter less than asyncio's own."""
    return uvloop.new_event_loop()


class Asked:
    """What the signals ask for: SIGINT to stop; SIGTERM to leave, and a second one to stop."""

    def __init__(self) -> None:
        self.stop, self.leave = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self.stop.set)
        loop.add_signal_handler(signal.SIGTERM, self._terminate)

    def _terminate(self) -> None:
        (self.stop if self.leave.is_set() else self.leave).set()


async def serve(
    profile: Profile,
    listener: socket.socket,
    folder: Path | None,
    clock: Clock,
    on_ready: Callable[[EngineLink], None],
    keys: tuple[str, ...] = (),
) -> EngineLink:
    """Serve until SIGINT, or until SIGTERM has let the calls end, or until there will be no engine any more.

    `on_ready` is called once calls are taken. Callers need one of `keys`.
    Returns the link, for its counts. MetronomeError when the engine cannot start.
    """
    asked, several = Asked(), profile.server.gateways > 1
    async with EngineKeeper(profile, folder, clock, mark_of(FIRST) if several else "") as link:
        link.on_given_up = asked.leave.set  # its callers hear of it first, as when SIGTERM ends the server
        if several:
            others = Others(profile, listener, keys, link, clock)
            with Handover(others.cell, FIRST) as handover:
                async with others:
                    gateway = Gateway(link, clock, keys, handover, others)
                    await gateway.hold(listener, asked, lambda: on_ready(link))
        else:
            await Gateway(link, clock, keys).hold(listener, asked, lambda: on_ready(link))
    return link


class Gateway:
    """Takes calls; the first of several also waits for the `others` when it begins and when it ends."""

    def __init__(
        self,
        link: EngineLink,
        clock: Clock,
        keys: tuple[str, ...],
        handover: Handover | None = None,
        others: Others | None = None,
    ) -> None:
        profile = link.metrics.profile
        self._link = link
        self._calls = Calls(profile, link)
        app = create_app(profile, link, self._calls, clock, keys)
        self._server = _Server(_config(profile, app, handover))
        self._handover = handover
        self._others = others

    async def hold(self, listener: socket.socket, asked: Asked, on_ready: Callable[[], None]) -> None:
        """Serve until `asked` to end; `on_ready` is called once calls are taken."""
        serving = asyncio.create_task(self._server.serve([listener]))
        if self._handover:
            self._handover.receive(self._server.adopt)
        stopped, left = asyncio.create_task(asked.stop.wait()), asyncio.create_task(asked.leave.wait())
        ready = asyncio.create_task(self._ready())
        try:
            await asyncio.wait({serving, stopped, left, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                # What is there now stays: to look through it again would stop all packets for 60 ms.
                gc.collect()
                gc.freeze()
                on_ready()
                await asyncio.wait({serving, stopped, left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not stopped.done():
                draining = asyncio.create_task(self._drain())
                await asyncio.wait({draining, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, left, ready):
                task.cancel()
            self._calls.close()
            self._server.should_exit = True
            await serving

    async def _ready(self) -> None:
        await self._link.ready()
        if self._others:
            await self._others.ready()

    async def _drain(self) -> None:
        everywhere = [self._calls.drain()]
        if self._others:
            everywhere.append(self._others.leave())
        await asyncio.gather(*everywhere)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the engine process must end after the callers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def adopt(self, given: socket.socket, begun: bytes) -> None:
        """Go on with a connection that another gateway accepted and read `begun` of."""
        task = asyncio.create_task(self._adopt(given, begun))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    async def _adopt(self, given: socket.socket, begun: bytes) -> None:
        protocol = partial(cast(Any, self.config.http_protocol_class), begun=begun)
        given.setblocking(False)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol(self.config, self.server_state, {}), given
            )
        except OSError:  # its caller is gone already
            given.close()


def _config(profile: Profile, app: Starlette, handover: Handover | None) -> uvicorn.Config:
    limits = profile.server
    http = Opening if handover is None else partial(Sorted, handover=handover)
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        http=cast(type[asyncio.Protocol], http),
        # Answers a refused upgrade with a whole HTTP response, and reads no faster than we take.
        ws=Connection,
        ws_max_size=_LARGEST_FRAME * limits.max_event_bytes,
        ws_ping_interval=limits.reaper_s,
        ws_ping_timeout=_PONG_S,
        ws_per_message_deflate=False,  # base64 of sound hardly shrinks, and a bomb would
        timeout_graceful_shutdown=_SHUTDOWN_S,
    )


def _unlistenable(host: str, port: int, error: OSError) -> MetronomeError:
    if error.errno == errno.EADDRINUSE:
        cure = "another program listens there; use another port, or 0 for any free one"
        return ProfileError("server.port", port, cure)
    if error.errno == errno.EACCES:
        return ProfileError("server.port", port, "not allowed here; use 1024 or more, or 0 for any free one")
    return ProfileError("server.host", host, f"use an address of this machine ({error.strerror})")
