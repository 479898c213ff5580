"""One life of the engine process: started, and ended for certain.

Knows:   the process, where it is to be met, and in which order it is stopped.
Ignores: what is said to it (engine_socket.py), and what happens after its death (keeper.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from . import messages

_STOP_GRACE_S = 5.0  # a model deep in a tick is not interrupted before that


class EngineLife:
    """A running engine process."""

    async def begin(
        self, profile: dict[str, Any], folder: Path | None, opened: int, must_record: bool = True
    ) -> str:
        """Start it; where it is to be met.

        It numbers its sessions from `opened` + 1 and records in `folder`.
        """
        self._cell = Path(tempfile.mkdtemp(prefix="metronome-"))  # mode 0700: nobody else may speak here
        try:
            address = f"ipc://{self._cell}/engine"
            setup = messages.Setup(address, profile, str(folder) if folder else None, opened, must_record)
            self._process = await _start(setup)
        except BaseException:
            self.close()
            raise
        return address

    async def end(self) -> str:
        """Wait until the process has ended; how it did, in words."""
        return cause(await self._process.wait())

    async def stop(self, told: bool) -> None:
        """End the process: by word, if it was `told` to stop, then by signal, then by force."""
        steps = [self._process.terminate, self._process.kill]
        if told:
            steps.insert(0, lambda: None)
        for step in steps:
            if self._process.returncode is None:
                step()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _STOP_GRACE_S)
                return

    def kill(self) -> None:
        """End a process that heeds nothing any more; `end` tells when it is over."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def is_traced(self) -> bool:
        """Whether a debugger holds the process: it is as silent as it should be. Linux only, else False."""
        try:
            return traced(Path(f"/proc/{self._process.pid}/status").read_text())
        except OSError:
            return False

    def close(self) -> None:
        """Give back its place. The process has ended."""
        shutil.rmtree(self._cell, ignore_errors=True)


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


def traced(status: str) -> bool:
    """Whether /proc/PID/status names a tracer."""
    return any(line.split()[1:] != ["0"] for line in status.splitlines() if line.startswith("TracerPid:"))


def cause(code: int) -> str:
    """An exit status in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
