"""Rubbish over many connections at once, each event of it judged, with a call beside that must not notice.

Knows:   how what was sent and what came back are matched, and what must hold at the end.
Ignores: how rubbish is made (mutate.py) and what is right to say to it (oracle.py).

Behind every event goes a fence: a cancel of a reply that nobody knows, which is answered by one error with
the fence's own id. What comes between two fences is the answer to the event between them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from metronome_cli import wire
from metronome_cli.clock import SystemClock

from . import garbage, mutate, oracle, rogue
from .judged import after_the_storm, broken
from .vanish import facts, growth_of
from .watched import Watched, watched
from .witness import Beside, Seen

PROFILE = Path(__file__).with_name("fuzz.toml")
AT_A_TIME = 24
ON_A_CONNECTION = 500  # events
AHEAD = 16  # events sent before their answers are read
ALONE_S = 15.0
SAMPLE_S = 0.5
JUDGED = 20_000  # events: fewer cannot tell of a leak
SHOWN = 20  # faults
GROWTH_KIB = 8  # per 1,000 events: more counts as a leak
PATIENCE_S = 30.0


@dataclass
class Tally:
    """What came of the events so far."""

    events: int = 0
    refused: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)


class Fuzzed:
    """One connection, its texts and their answers."""

    def __init__(self, line: ClientConnection, tally: Tally, number: int) -> None:
        self._line = line
        self._tally = tally
        self._number = number
        self._sent: set[str] = set()
        self._session = ""

    async def begin(self) -> None:
        created = wire.decode_server_event(await self._line.recv())
        assert isinstance(created, wire.SessionCreated)
        self._session = created.session.id.removeprefix("sess_")

    async def send(self, texts: Sequence[str], first: int) -> None:
        """A handful of events with their fences, and the judgement of each."""
        for number, text in enumerate(texts, first):
            await self._line.send(text)
            await self._line.send(_fence(number))
        for number, text in enumerate(texts, first):
            errors = await self._until_fence(number)
            faults = oracle.judge(text, errors, self._sent)
            self._tally.events += 1
            self._tally.refused += bool(errors)
            self._tally.codes.update(error.code for error in errors)
            self._tally.faults += [f"connection {self._number}, event {number}: {fault}; sent {text[:300]!r}"
                                   for fault in faults]  # fmt: skip
            if event_id := oracle.expected(text).event_id:
                self._sent.add(event_id)

    async def _until_fence(self, number: int) -> list[wire.ErrorDetail]:
        errors: list[wire.ErrorDetail] = []
        while True:
            async with asyncio.timeout(PATIENCE_S):
                event = wire.decode_server_event(await self._line.recv())
            assert event is not None, "an event of an unknown type"
            if event.event_id.split("_")[1] != self._session:
                self._tally.faults.append(f"connection {self._number}: somebody else's {event}")
            if isinstance(event, wire.ErrorEvent):
                if event.error.event_id == f"fence {number}":
                    return errors
                errors.append(event.error)


def _fence(number: int) -> str:
    return json.dumps({"type": "response.cancel", "event_id": f"fence {number}", "response_id": "nobody"})


async def connection(server: Watched, tally: Tally, number: int, texts: list[str]) -> None:
    """All events of one connection."""
    try:
        async with connect(server.address, compression=None, proxy=None, max_size=None) as line:
            fuzzed = Fuzzed(line, tally, number)
            await fuzzed.begin()
            for first in range(0, len(texts), AHEAD):
                await fuzzed.send(texts[first : first + AHEAD], first)
    except (ConnectionClosed, OSError, TimeoutError, AssertionError) as error:
        tally.faults.append(f"connection {number} ended after {tally.events} events of all: {error!r}")


async def storm(server: Watched, tally: Tally, seed: int, numbers: Sequence[int], events: int) -> None:
    """All connections, AT_A_TIME of them at a time."""
    waiting, loop = iter(numbers), asyncio.get_running_loop()

    async def place() -> None:
        for number in waiting:
            texts = await loop.run_in_executor(makers, mutate.texts, seed, number, events)
            await connection(server, tally, number, texts)

    async def sample() -> None:
        while True:
            tally.samples.append(facts(server) | {"events": tally.events})
            await asyncio.sleep(SAMPLE_S)

    sampling = asyncio.create_task(sample())
    # Not in this process: hypothesis watches the garbage collector, which ends a process that is just then
    # reading JSON as deep as Python goes.
    with ProcessPoolExecutor(1, get_context("spawn")) as makers:
        await asyncio.gather(*(place() for _ in range(AT_A_TIME)))
    sampling.cancel()


async def fuzz(events: int, seed: int, alone_s: float = ALONE_S, replay: int | None = None) -> dict[str, Any]:
    """The whole run, or connection `replay` of it; its `faults` are empty when all held."""
    on_each = min(ON_A_CONNECTION, max(1, events // mutate.MADE_UP_EVERY))
    numbers = range(-(-events // on_each)) if replay is None else [replay]
    clock, tally = SystemClock(), Tally()
    with watched(PROFILE) as server:
        alone = await _witnessed(server, asyncio.sleep(alone_s))
        if events >= JUDGED:
            await storm(server, Tally(), seed + 1, range(AT_A_TIME), on_each // 5)  # warm-up
        before, start = facts(server), clock.now()
        took: list[float] = []
        others: dict[str, Any] = {}

        async def work() -> None:
            await storm(server, tally, seed, numbers, on_each)
            took.append(clock.now() - start)
            others["http"] = await garbage.requests(server, seed, tally.events // 100)
            others["frames"] = await garbage.frames(server, seed, tally.events // 300)
            others["gateway"] = await asyncio.to_thread(rogue.speak, server, seed, tally.events // 10)

        beside = await _witnessed(server, work())
        left_s = await asyncio.to_thread(server.until_live, 0, PATIENCE_S)
        results = {
            "events": tally.events,
            "connections": len(numbers),
            "took_s": round(took[0], 1),
            "events_per_s": round(tally.events / took[0]),
            "refused": tally.refused,
            "codes": dict(tally.codes.most_common()),
            "others": others,
            "free_after_s": round(left_s, 3),
            "capacity_after": server.capacity(),
            "engine_restarts": server.metric("engine_restarts_total"),
            "samples": tally.samples[:: max(1, len(tally.samples) // 50)],
            "before": before,
            "after": facts(server),
            "growth": {} if replay is not None else _growth(tally),
            "log": server.log(),
            "witness_alone": asdict(alone),
            "witness_beside": asdict(beside),
            "wrong": len(tally.faults),
            "first_wrong": tally.faults[:SHOWN],
            "replay": f"python -m evals.chaos.run fuzz --events {events} --seed {seed} --replay CONNECTION",
        }
    return results | {"faults": faults(results)}


def _growth(tally: Tally) -> dict[str, dict[str, float] | None]:
    """Of both processes, per 1,000 events. What many calls at a time take comes once: in the first half."""
    later = tally.samples[len(tally.samples) // 2 :] if tally.events >= JUDGED else []
    return {name: growth_of(later, "events", name) for name in ("gateway_kib", "engine_kib")}


async def _witnessed(server: Watched, work: Any) -> Seen:
    beside = await Beside.start(server.address, asks=True)
    try:
        await work
    finally:
        seen = await beside.close()
    return seen


def faults(results: dict[str, Any]) -> list[str]:
    """What did not hold, in words."""
    witness, alone = results["witness_beside"], results["witness_alone"]
    both = min(len(alone["replies"]), len(witness["replies"]))
    checks = {
        "an event was answered wrongly (see first_wrong)": not results["wrong"],
        "something else was answered wrongly (see others)": not any(
            other["faults"] for other in results["others"].values()
        ),
        "the witness was answered otherwise than alone": both > 0
        and witness["replies"][:both] == alone["replies"][:both],
    }
    return broken(checks | after_the_storm(results, GROWTH_KIB))
