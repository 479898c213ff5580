"""The gateway process: a listening socket, uvicorn on it, the engine process behind it.

Knows:   in which order things start and end, and what ends them.
Ignores: routes, events, terminals.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
import uvloop
from starlette.applications import Starlette

from ..clock import Clock
from ..errors import MetronomeError, ProfileError
from ..profile import Profile
from .app import create_app
from .calls import Calls
from .connection import Connection
from .link import EngineLink
from .opening import Opening

_BACKLOG = 2048
_SEND_BUFFER = 65_536  # bytes the kernel keeps for a caller that does not read: a minute of events
_RECEIVE_BUFFER = 65_536  # bytes it keeps for us while others are served: half a second of packets
_UNREAD_MS = 10_000  # how long they may lie there before the kernel ends the connection
_PONG_S = 10.0  # a caller's event loop may be busy, but not for longer
_SHUTDOWN_S = 2  # for callers that do not answer the closing handshake
_LARGEST_FRAME = 4  # times max_event_bytes: up to here an error event, beyond it the connection ends


def listen(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything slow begins. ProfileError when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ProfileError(
            "server.host", host, f"use an address of this machine ({error.strerror})"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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


async def serve(
    profile: Profile,
    listener: socket.socket,
    folder: Path | None,
    clock: Clock,
    on_ready: Callable[[EngineLink], None],
    keys: tuple[str, ...] = (),
) -> EngineLink:
    """Serve until SIGINT, or until SIGTERM has let the calls end; `on_ready` is called once calls are taken.

    Callers need one of `keys`. Returns the link, for its counts. MetronomeError when the engine cannot start.
    """
    stop, leave = asyncio.Event(), asyncio.Event()
    _on_signals(stop, leave)
    async with EngineLink(profile, folder, clock) as link:
        calls = Calls(profile, link)
        server = _Server(_config(profile, create_app(profile, link, calls, clock, keys)))
        serving = asyncio.create_task(server.serve([listener]))
        stopped, left = asyncio.create_task(stop.wait()), asyncio.create_task(leave.wait())
        ready = asyncio.create_task(link.ready())
        try:
            await asyncio.wait({serving, stopped, left, ready}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                on_ready(link)
                await asyncio.wait({serving, stopped, left}, return_when=asyncio.FIRST_COMPLETED)
            if left.done() and not stopped.done():
                draining = asyncio.create_task(calls.drain())
                await asyncio.wait({draining, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (stopped, left, ready):
                task.cancel()
            server.should_exit = True
            await serving
    return link


def _on_signals(stop: asyncio.Event, leave: asyncio.Event) -> None:
    """SIGINT stops; SIGTERM asks to leave, and a second one stops."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, stop.set)

    def terminate() -> None:
        (stop if leave.is_set() else leave).set()

    loop.add_signal_handler(signal.SIGTERM, terminate)


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the engine process must end after the callers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _config(profile: Profile, app: Starlette) -> uvicorn.Config:
    limits = profile.server
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        http=Opening,
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
