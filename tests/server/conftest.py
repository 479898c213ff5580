"""Servers shared by the tests of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .running import Server, outlasting


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server with the default null profile; it must outlive everything the tests do to it."""
    with outlasting(tmp_path_factory.mktemp("server")) as running:
        yield running


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
