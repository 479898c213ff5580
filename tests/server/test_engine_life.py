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
from metronome_cli.server.engine_life import EngineLife

from .running import PATIENCE_S, gone, write_profile


class Life(EngineLife):
    """Remembers what the engine said."""

    def __init__(self) -> None:
        self.said: list[messages.ToGateway] = []
        self.more = asyncio.Event()
        super().__init__(self._remember)

    def _remember(self, message: messages.ToGateway) -> None:
        self.said.append(message)
        self.more.set()

    async def until(self, kind: type[messages.ToGateway]) -> messages.ToGateway:
        """The first message of that kind."""
        while not (found := [message for message in self.said if isinstance(message, kind)]):
            self.more.clear()
            await self.more.wait()
        return found[0]


def scene(play: Callable[[Life], Awaitable[None]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `play` with an engine that is ready; nothing of it is left afterwards."""
    (folder / "cells").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "cells"))
    monkeypatch.setattr("tempfile.tempdir", None)  # it is looked up once

    async def whole() -> None:
        life = Life()
        profile = load_profile(str(write_profile(folder, frame_s=0.05)))
        await life.begin(profile.model_dump(), None, 41)
        async with asyncio.timeout(PATIENCE_S):
            await life.until(messages.Ready)
            await play(life)
        life.close()
        assert gone(life._process.pid)
        assert list((folder / "cells").iterdir()) == []

    asyncio.run(whole())


def test_an_engine_that_is_told_to_stop_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(life: Life) -> None:
        life.post(messages.Open(1))
        assert await life.until(messages.Opened) == messages.Opened(1, 42)  # numbered on from 41
        await life.stop(listening=True)
        assert await life.end() == "exit code 0"

    scene(play, tmp_path, monkeypatch)


def test_a_killed_engine_is_said_to_be_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(life: Life) -> None:
        os.kill(life._process.pid, signal.SIGKILL)
        assert await life.end() == "signal SIGKILL"
        await life.stop(listening=True)  # no error, and no waiting

    scene(play, tmp_path, monkeypatch)


def test_a_message_that_cannot_be_passed_on_does_not_keep_back_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(life: Life) -> None:
        def stumble(message: messages.ToGateway) -> None:
            life._remember(message)
            if isinstance(message, messages.Opened):
                raise RuntimeError("a hole in the gateway")

        life._heed = stumble
        life.post(messages.Open(1))
        life.post(messages.Open(2))
        while len([said for said in life.said if isinstance(said, messages.Opened)]) < 2:
            life.more.clear()
            await life.more.wait()
        await life.stop(listening=True)

    scene(play, tmp_path, monkeypatch)
    assert caplog.text.count("a hole in the gateway") >= 2
