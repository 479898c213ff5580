"""The process that owns the model: started, loaded, and left behind without a trace.

Knows:   its Setup, the socket that it binds, and how it says that there will be no engine.
Ignores: what is said over the socket (host.py), gateways.

Run as a module it reads a Setup from standard input; server/engine_life.py starts it so.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import zmq

from ..clock import Clock, SystemClock
from ..engine.progress import watched
from ..errors import FieldError, MetronomeError
from ..frame import TickEngine
from ..profile import Profile
from ..runtime.recorder import Recorder
from . import messages
from .host import Host
from .lifeline import watch
from .loading import Bar, Signs
from .logs import set_up_logging

_LINGER_MS = 1000  # for last words
_HELLO_MS = 10_000  # a gateway that started us and says nothing for so long is gone

_log = logging.getLogger(__name__)


def main() -> None:
    """Load the model and serve until told to stop."""
    set_up_logging("metronome engine")
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=messages.Setup)
    profile = Profile.model_validate(setup.profile)
    watch(sys.stdin.fileno(), SystemClock(), partial(_end_by_force, setup.address))
    with _swept(setup.address), zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.set_hwm(0)
        socket.linger = _LINGER_MS
        socket.bind(setup.address)
        clock = SystemClock()
        signs = Signs(socket, clock)
        try:
            engine, recorder = _build(profile, setup, clock, signs)
        except MetronomeError as error:
            _report(socket, error, [gateway for gateway, *_ in signs.taken])
            sys.exit(error.exit_code)
        # What is there now stays. A garbage collector that looked through it again would stop the beat for
        # half a second: so many objects come with a model's libraries.
        gc.collect()
        gc.freeze()
        # Not before: a model that loads is ended at once, since nothing of it is to be kept.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with closing(recorder):
            host = Host(profile, engine, socket, recorder, clock, setup.opened)
            for gateway, *parts in signs.taken:
                host.heed(gateway, parts)
            host.run(sys.stdin.fileno())


@contextmanager
def _swept(address: str) -> Iterator[None]:
    """Leave no socket and no empty folder behind, in place of a gateway that was killed."""
    try:
        yield
    finally:
        _sweep(address)


def _sweep(address: str) -> None:
    path = Path(address.removeprefix("ipc://"))
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.parent.rmdir()


def _end_by_force(address: str) -> None:
    """For a process that had time to end by itself, and is loading a model still, or stuck in a tick."""
    _sweep(address)
    os.kill(os.getpid(), signal.SIGKILL)


def _build(
    profile: Profile, setup: messages.Setup, clock: Clock, signs: Signs
) -> tuple[TickEngine, Recorder]:
    from ..models.factory import build

    bar = Bar(sys.stderr, clock)

    def told(done: int, total: int) -> None:
        bar.show(done, total)
        signs.give()

    with watched(told):
        engine = build(profile)
    return engine, _recorder(setup, clock)


def _recorder(setup: messages.Setup, clock: Clock) -> Recorder:
    """Where nothing can be written, a recorder that writes nothing, or FieldError when `must_record`."""
    try:
        return Recorder(Path(setup.folder) if setup.folder else None, clock)
    except FieldError as error:
        if setup.must_record:
            raise
        _log.error("nothing is recorded: %s", error)
        return Recorder(None, clock, f"nothing was recorded: {error}")


def _report(socket: zmq.Socket[bytes], error: MetronomeError, gateways: list[bytes]) -> None:
    """Tell the gateway that started us, and others that said hello, why there will be no engine.

    `gateways` said it while the model was loaded.
    """
    while socket.poll(0 if gateways else _HELLO_MS):
        gateways.append(socket.recv_multipart()[0])
    failed = messages.pack(messages.Failed(str(error), error.exit_code))
    for gateway in dict.fromkeys(gateways):
        socket.send_multipart([gateway, failed])


if __name__ == "__main__":
    main()
