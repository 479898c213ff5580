"""Servers shared by the tests of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .running import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with the default null profile; it must outlive everything the tests do to it."""
    running = Server.start(tmp_path_factory.mktemp("server"))
    yield running
    try:
        code, said = running.stop()
        assert (code, said.count("\n")) == (0, 1), said
    finally:
        running.kill()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server of this test's own."""
    started: list[Server] = []

    def begin(**values: Any) -> Server:
        started.append(Server.start(tmp_path, **values))
        return started[-1]

    yield begin
    for running in started:
        running.kill()
