"""A `metronome serve` that is watched from outside: memory, open files, what it says of itself.

Knows:   how it is started and ended, /proc, /metrics and /capacity, its standard error.
Ignores: what is done to it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from metronome_cli.clock import SystemClock
from metronome_cli.wire import REALTIME_PATH

_PATIENCE_S = 20.0
_LOOK_S = 0.05


class Watched:
    """A server that listens; `folder` is where it keeps its sockets and its log."""

    def __init__(self, process: subprocess.Popen[str], url: str, folder: Path) -> None:
        self.process = process
        self.url = url
        self.folder = folder

    @property
    def address(self) -> str:
        """Where calls are made."""
        return self.url.replace("http", "ws") + REALTIME_PATH

    @property
    def engine(self) -> int:
        """Process number of the engine process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def rss_kib(self) -> dict[str, int]:
        """Resident memory of both processes."""
        return {"gateway": _rss_kib(self.process.pid), "engine": _rss_kib(self.engine)}

    def files(self) -> dict[str, int]:
        """Open file descriptors of both processes."""
        return {
            name: len(os.listdir(f"/proc/{pid}/fd"))
            for name, pid in (("gateway", self.process.pid), ("engine", self.engine))
        }

    def capacity(self) -> dict[str, Any]:
        """The body of /capacity."""
        body: dict[str, Any] = json.loads(self._page("/capacity"))
        return body

    def metric(self, name: str, **labels: str) -> float:
        """One sample of /metrics; all of its labels are added up that `labels` leaves open."""
        families = text_string_to_metric_families(self._page("/metrics"))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"metronome_{name}" and labels.items() <= sample.labels.items()
        )

    def until_live(self, calls: int, patience_s: float) -> float:
        """Seconds until no more than `calls` are live; infinite when that takes more than `patience_s`."""
        clock = SystemClock()
        start = clock.now()
        while self.capacity()["live"] > calls:
            if clock.now() - start > patience_s:
                return float("inf")
            clock.wait_until(clock.now() + _LOOK_S)
        return clock.now() - start

    def log(self) -> list[str]:
        """The lines of its standard error so far."""
        return (self.folder / "stderr").read_text("utf-8", "replace").splitlines()

    def _page(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=_PATIENCE_S) as answer:  # noqa: S310
            return str(answer.read().decode())


@contextmanager
def watched(profile: Path) -> Iterator[Watched]:
    """`metronome serve` on a free port for the time of a block."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        with (folder / "stderr").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "metronome_cli", "serve", "--profile", str(profile)),
                    *("--port", "0", "--json", "--no-record", "--no-live"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "TMPDIR": name},
            )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "stderr").read_text()
            yield Watched(process, json.loads(line)["url"], folder)
        finally:
            process.terminate()
            try:
                process.wait(_PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _rss_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])
