"""A server of our own for the time of a block, as a process of its own.

Knows:   how `metronome serve` is started, how it says where it listens, and how it is ended for certain.
Ignores: what is asked of it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from ..errors import MetronomeError

_START_S = 180.0  # weights are read from a cold disk in well under this
_END_S = 10.0
_SHOWN = 4000  # last bytes of its standard error that are shown when it fails


@contextmanager
def serving(options: Sequence[str]) -> Iterator[str]:
    """The URL of `metronome serve OPTIONS` on a free port. When the block ends, so do all its processes."""
    command = [sys.executable, "-m", "metronome_cli", "serve", "--port", "0", "--json", *options]
    with tempfile.TemporaryFile() as log:
        # A session of its own: Ctrl-C reaches us alone, and everything it started can be ended together.
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            # A key that is meant for other servers would keep ourselves out of this one.
            env={name: value for name, value in os.environ.items() if name != "METRONOME_API_KEY"},
        )
        try:
            yield _address(server, log)
        finally:
            _end(server)


def _address(server: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """The URL that the server prints when it is ready; its own message and exit code when it fails."""
    said = server.stdout
    ready = said is not None and bool(select.select([said], [], [], _START_S)[0])
    line = said.readline() if said is not None and ready else b""
    if line:
        return str(json.loads(line)["url"])
    if not ready:
        raise MetronomeError(f"the server was not ready within {_START_S:g} s:\n{_tail(log)}")
    error = MetronomeError(f"the server did not start:\n{_tail(log)}")
    error.exit_code = server.wait()
    raise error


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(_END_S)
    # Whatever it left behind, the engine process above all, goes with it.
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if server.stdout:
        server.stdout.close()


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _SHOWN))
    return log.read().decode("utf-8", "replace").strip()
