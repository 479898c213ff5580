"""One life of an engine process, from its first word to its certain end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metronome_cli.profile import load_profile
from metronome_cli.server import messages
from metronome_cli.server.engine_life import EngineLife, traced
from metronome_cli.server.engine_socket import EngineSocket

from .running import PATIENCE_S, gone, write_profile


class Said:
    """Remembers what the engine said."""

    def __init__(self) -> None:
        self.all: list[messages.ToGateway] = []
        self.more = asyncio.Event()

    def heed(self, message: messages.ToGateway) -> None:
        self.all.append(message)
        self.more.set()

    async def until(self, kind: type[messages.ToGateway]) -> messages.ToGateway:
        """The first message of that kind."""
        while not (found := [message for message in self.all if isinstance(message, kind)]):
            self.more.clear()
            await self.more.wait()
        return found[0]


Play = Callable[[EngineLife, EngineSocket, Said], Awaitable[None]]


def scene(play: Play, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `play` with an engine that is ready; nothing of it is left afterwards."""
    (folder / "cells").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "cells"))
    monkeypatch.setattr("tempfile.tempdir", None)  # it is looked up once

    async def whole() -> None:
        life, said = EngineLife(), Said()
        line = EngineSocket(said.heed)
        profile = load_profile(str(write_profile(folder, frame_s=0.05)))
        line.connect(await life.begin(profile.model_dump(), None, 41))
        async with asyncio.timeout(PATIENCE_S):
            await said.until(messages.Ready)
            await play(life, line, said)
        line.close()
        life.close()
        assert gone(life._process.pid)
        assert list((folder / "cells").iterdir()) == []

    asyncio.run(whole())


def test_an_engine_that_is_told_to_stop_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(life: EngineLife, line: EngineSocket, said: Said) -> None:
        line.post(messages.Open(1))
        assert await said.until(messages.Opened) == messages.Opened(1, 42)  # numbered on from 41
        line.post(messages.Stop())
        await life.stop(told=True)
        assert await life.end() == "exit code 0"

    scene(play, tmp_path, monkeypatch)


def test_a_killed_engine_is_said_to_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(life: EngineLife, line: EngineSocket, said: Said) -> None:
        os.kill(life._process.pid, signal.SIGKILL)
        assert await life.end() == "signal SIGKILL"
        await life.stop(told=True)  # no error, and no waiting

    scene(play, tmp_path, monkeypatch)


def test_a_process_is_traced_where_the_system_names_its_tracer() -> None:
    status = "Name:\tpython\nState:\tt (tracing stop)\nTracerPid:\t{}\nUid:\t0\t0\n"
    assert traced(status.format(4711))
    assert not traced(status.format(0))
    assert not traced("")


def test_a_message_that_cannot_be_passed_on_does_not_keep_back_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(life: EngineLife, line: EngineSocket, said: Said) -> None:
        def stumble(message: messages.ToGateway) -> None:
            said.heed(message)
            if isinstance(message, messages.Opened):
                raise RuntimeError("a hole in the gateway")

        line._heed = stumble
        line.post(messages.Open(1))
        line.post(messages.Open(2))
        while len([message for message in said.all if isinstance(message, messages.Opened)]) < 2:
            said.more.clear()
            await said.more.wait()
        await life.stop(told=False)

    scene(play, tmp_path, monkeypatch)
    assert caplog.text.count("a hole in the gateway") >= 2
