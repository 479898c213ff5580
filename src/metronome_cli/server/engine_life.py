"""One life of the engine process: started, spoken to over zmq, and ended for certain.

Knows:   the process, its socket, and in which order it is stopped.
Ignores: what is said, who it concerns, and what happens after its death (link.py).
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from . import messages

_GATHER_S = 0.002  # that audio waits for other calls' audio
_STOP_GRACE_S = 5.0  # a model deep in a tick is not interrupted before that

_log = logging.getLogger(__name__)


class EngineLife:
    """A running engine process. `heed` is called with each of its messages."""

    def __init__(self, heed: Callable[[messages.ToGateway], None]) -> None:
        self._heed = heed
        self._loop = asyncio.get_running_loop()
        self._outgoing: list[bytes] = []
        self._later: asyncio.Handle | None = None  # when they leave,
        self._soon: asyncio.Handle | None = None  # or, with something urgent among them, much earlier

    async def begin(
        self, profile: dict[str, Any], folder: Path | None, opened: int, must_record: bool = True
    ) -> None:
        """Start it. It numbers its sessions from `opened` + 1 and records in `folder`."""
        self._cell = Path(tempfile.mkdtemp(prefix="metronome-"))  # mode 0700: nobody else may speak here
        try:
            address = f"ipc://{self._cell}/engine"
            setup = messages.Setup(address, profile, str(folder) if folder else None, opened, must_record)
            self._process = await _start(setup)
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
        self.post(messages.Hello(messages.PROTOCOL))

    def post(self, message: messages.ToEngine) -> None:
        """Say something; nobody hears it when the process is dead. Audio waits a moment for more of it."""
        self._outgoing.append(messages.pack(message))
        if isinstance(message, messages.Audio):
            self._later = self._later or self._loop.call_later(_GATHER_S, self._send)
        else:
            self._soon = self._soon or self._loop.call_soon(self._send)

    async def end(self) -> str:
        """Wait until the process has ended; how it did, in words."""
        return _cause(await self._process.wait())

    async def stop(self, listening: bool) -> None:
        """End the process: by word (if it is `listening`), then by signal, then by force."""
        steps = [self._process.terminate, self._process.kill]
        if listening:  # a model that loads is not
            steps.insert(0, lambda: self.post(messages.Stop()))
        for step in steps:
            if self._process.returncode is None:
                step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_GRACE_S)
                return

    def close(self) -> None:
        """Give back the socket and its place. The process has ended."""
        self._call_off()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._cell, ignore_errors=True)

    def _send(self) -> None:
        """Let everything go that was said, as the parts of one message: each message wakes two threads."""
        self._call_off()
        parts, self._outgoing = self._outgoing, []
        self._socket.send_multipart(parts, zmq.NOBLOCK)
        # zmq tells of a message once, and a send may be what it tells it to: look for ourselves.
        self._drain()

    def _call_off(self) -> None:
        for handle in (self._soon, self._later):
            if handle:
                handle.cancel()
        self._soon = self._later = None

    def _drain(self) -> None:
        """Pass on every message that has come."""
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._heed(messages.to_gateway(data))
            except Exception:  # whatever it is, the other callers' messages must go on
                _log.exception("a message of the engine could not be passed on")


async def _start(setup: messages.Setup) -> asyncio.subprocess.Process:
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


def _cause(code: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
