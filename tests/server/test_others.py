"""Whether another gateway that died is started again, by what it did while it lived."""

from __future__ import annotations

import asyncio
import socket

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.profile import parse_profile
from metronome_cli.server import news, restarts
from metronome_cli.server.keeper import EngineKeeper
from metronome_cli.server.metrics import Counts
from metronome_cli.server.others import Others

LIVES = 4


@pytest.mark.parametrize(("beats", "lives"), [(4, 2), (5, LIVES)])
def test_a_short_life_is_a_failure_unless_its_calls_were_served(
    monkeypatch: pytest.MonkeyPatch, beats: int, lives: int
) -> None:
    monkeypatch.setattr(restarts, "_FIRST_PAUSE_S", 0.0)
    server = {"gateways": 2, "restarts": 1}
    profile = parse_profile("null", {"model": {"kind": "null"}, "beat": {"frame_s": 2.0}, "server": server})

    async def scene() -> int:
        clock, lived = VirtualClock(100.0), list[int]()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            others = Others(profile, listener, (), EngineKeeper(profile, None, clock), clock)

        async def live(number: int) -> str:
            lived.append(number)
            others._heed(number, news.Up())
            others._heed(number, news.Counted(Counts(served=beats), 0, 0))
            if len(lived) == LIVES:
                others._leaving.set()
            return "signal SIGKILL"

        monkeypatch.setattr(others, "_live", live)
        await others._keep(2)
        others.cell.rmdir()
        return len(lived)

    assert asyncio.run(scene()) == lives
