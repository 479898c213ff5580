"""Another gateway on the first one's port, in a process of its own.

Knows:   its Setup, what the first gateway tells it, and what it reports.
Ignores: who starts the engine and other gateways (keeper.py, others.py), calls.

Run as a module it reads a Setup from its standard input, which is a socket to the first gateway: when that
ends, so do we.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import sys
from functools import partial
from pathlib import Path

from ..clock import Clock, SystemClock
from ..errors import MetronomeError
from ..profile import Profile
from . import gateway, news
from .gateway import Asked
from .handover import Handover, mark_of
from .link import EngineLink
from .logs import set_up_logging

_REPORT_S = 0.25  # between two reports, at most; one more comes with every beat

_log = logging.getLogger(__name__)


def main() -> None:
    """Serve as the gateway that the first one wants us to be."""
    try:
        with asyncio.Runner(loop_factory=gateway.new_loop) as runner:
            runner.run(_serve())
    except MetronomeError as error:
        _log.error("%s", error)
        sys.exit(error.exit_code)


async def _serve() -> None:
    """Take calls until told to stop, by a signal or by the end of the first gateway."""
    asked = Asked()
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=0), limit=news.LONGEST)
    setup = await news.next_news(reader)
    if not isinstance(setup, news.Setup):
        return  # the first gateway ended at once
    set_up_logging(f"metronome gateway {setup.number}")
    profile, clock = Profile.model_validate(setup.profile), SystemClock()
    async with EngineLink(profile, clock, mark_of(setup.number)) as link:
        works = (_follow(reader, setup, link, asked), _report(writer, link, clock))
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await _take_calls(setup, link, clock, asked, writer)
        finally:
            for task in tasks:
                task.cancel()
        writer.write(_counted(link))
    writer.close()


async def _take_calls(
    setup: news.Setup, link: EngineLink, clock: Clock, asked: Asked, writer: asyncio.StreamWriter
) -> None:
    ready, stopped, left = (
        asyncio.create_task(work) for work in (link.ready(), asked.stop.wait(), asked.leave.wait())
    )
    await asyncio.wait({ready, stopped, left}, return_when=asyncio.FIRST_COMPLETED)
    for task in (stopped, left):
        task.cancel()
    if not ready.done():
        ready.cancel()
        return
    with (
        gateway.join(setup.host, setup.port) as listener,
        Handover(Path(setup.cell), setup.number) as handover,
    ):
        up = partial(writer.write, news.line(news.Up()))
        taking = gateway.Gateway(link, clock, tuple(setup.keys), handover)
        await taking.hold(listener, asked, up)


async def _follow(reader: asyncio.StreamReader, setup: news.Setup, link: EngineLink, asked: Asked) -> None:
    """Heed what the first gateway says, and stop when it says so or is gone."""
    try:
        while message := await news.next_news(reader):
            match message:
                case news.Begins(address):
                    link.begins(address)
                case news.Ended(how, code, final):
                    link.ended(how, code, final)
                case news.GivenUp():
                    link.given_up()
        # It may have been killed: what it has left behind is ours to sweep.
        shutil.rmtree(setup.cell, ignore_errors=True)
    finally:
        asked.stop.set()


async def _report(writer: asyncio.StreamWriter, link: EngineLink, clock: Clock) -> None:
    """Say what was counted: after every beat, which begins a count anew, and now and then."""
    link.on_beat = lambda _: writer.write(_counted(link))
    due = clock.now()
    while True:
        writer.write(_counted(link))
        due += _REPORT_S
        await clock.sleep_until(due)


def _counted(link: EngineLink) -> bytes:
    return news.line(news.Counted(link.metrics.own, link.highest, link.unheard))


if __name__ == "__main__":
    main()
