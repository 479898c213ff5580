"""Callers that connect, speak and vanish, many at a time: what is left of them afterwards.

Knows:   which caller goes which way (seeded), how many at a time, and what must be as before.
Ignores: how each way is done (ways.py), how the server is started (watched.py).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from websockets.exceptions import InvalidStatus

from metronome_cli.clock import SystemClock
from metronome_cli.profile import load_profile
from metronome_cli.stats import theil_sen

from .judged import after_the_storm, broken
from .watched import Watched, watched
from .ways import WAYS, Vanisher, Way
from .witness import Beside, Seen

PROFILE = Path(__file__).with_name("vanish.toml")
QUIET_S = 20.0
AT_A_TIME = 40
A_ROUND = 100  # clients
ENOUGH = 8  # samples
GROWTH_KIB = 4096  # per 1,000 clients: more counts as a leak
SLACK_S = 3.0  # beyond the grace, for the last of them to be noticed


@dataclass
class Crowd:
    """What became of the clients so far."""

    done: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    surprises: list[str] = field(default_factory=list)
    samples: list[dict[str, float]] = field(default_factory=list)
    free_after_s: list[float] = field(
        default_factory=list
    )  # from the last client of a round to the last call


def way_of(seed: int, number: int) -> tuple[Way, random.Random]:
    """How client `number` goes, and its own randomness."""
    draw = random.Random(f"vanish {seed} {number}")
    return draw.choices(list(WAYS), list(WAYS.values()))[0], draw


async def one(server: Watched, crowd: Crowd, seed: int, number: int) -> None:
    """Client `number`, from its call to its disappearance."""
    way, draw = way_of(seed, number)
    try:
        await way(Vanisher(server.address, draw))
    except InvalidStatus:
        crowd.refused += 1
    except Exception as error:
        crowd.surprises.append(f"client {number}, {way.__name__}: {error!r}")
    crowd.done += 1
    crowd.ways[way.__name__] += 1


async def all_of(server: Watched, crowd: Crowd, seed: int, numbers: range, at_a_time: int) -> None:
    """Let `numbers` come and go, so many at a time."""
    waiting = iter(numbers)

    async def place() -> None:
        for number in waiting:
            await one(server, crowd, seed, number)

    await asyncio.gather(*(place() for _ in range(at_a_time)))


async def rounds(server: Watched, crowd: Crowd, seed: int, numbers: range) -> None:
    """A round of clients after another. Between them all calls end: only then is memory comparable."""
    grace_s = load_profile(str(PROFILE)).server.grace_s + SLACK_S
    for first in range(0, len(numbers), A_ROUND):
        await all_of(server, crowd, seed, numbers[first : first + A_ROUND], AT_A_TIME)
        crowd.free_after_s.append(await asyncio.to_thread(server.until_live, 1, grace_s))
        crowd.samples.append(facts(server) | {"clients": crowd.done})


def facts(server: Watched) -> dict[str, float]:
    """Memory and open files of both processes, now."""
    found: dict[str, float] = {f"{name}_kib": size for name, size in server.rss_kib().items()}
    return found | {f"{name}_files": count for name, count in server.files().items()}


async def vanish(clients: int, warm_up: int, seed: int, quiet_s: float = QUIET_S) -> dict[str, Any]:
    """The whole run; its `faults` are empty when all held."""
    profile = load_profile(str(PROFILE))
    grace_s = profile.server.grace_s + SLACK_S
    clock, crowd = SystemClock(), Crowd()
    with watched(PROFILE) as server:
        quiet = await witnessed(server, asyncio.sleep(quiet_s))
        await all_of(server, crowd, seed, range(warm_up), AT_A_TIME)
        await asyncio.to_thread(server.until_live, 0, grace_s)
        crowd.samples.append(facts(server) | {"clients": warm_up})
        start = clock.now()
        beside = await witnessed(server, rounds(server, crowd, seed, range(warm_up, warm_up + clients)))
        took_s = clock.now() - start
        left = await asyncio.to_thread(server.until_live, 0, SLACK_S)
        await asyncio.sleep(2 * profile.beat.frame_s)  # a beat after the last call has ended
        after = facts(server)  # while no request of ours is being answered
        results = {
            "clients": clients,
            "warm_up": warm_up,
            "at_a_time": AT_A_TIME,
            "took_s": round(took_s, 1),
            "ways": dict(crowd.ways),
            "refused": crowd.refused,
            "surprises": crowd.surprises,
            "free_after_s": round(max(crowd.free_after_s), 3),
            "witness_gone_after_s": round(left, 3),
            "capacity_after": server.capacity(),
            "calls": server.metric("calls_total"),
            "engine_restarts": server.metric("engine_restarts_total"),
            "skipped_beats": server.metric("skipped_beats_total"),
            "samples": crowd.samples,
            "before": crowd.samples[0],
            "after": after,
            "growth": {
                name: growth_of(crowd.samples, "clients", name) for name in ("gateway_kib", "engine_kib")
            },
            "log": server.log(),
            "witness_quiet": asdict(quiet),
            "witness_beside": asdict(beside),
        }
    return results | {"faults": faults(results)}


async def witnessed(server: Watched, work: Any) -> Seen:
    """What a well-behaved call sees while `work` is done."""
    beside = await Beside.start(server.address, asks=False)
    try:
        await work
    finally:
        seen = await beside.close()
    return seen


def growth_of(samples: list[dict[str, float]], per: str, name: str) -> dict[str, float] | None:
    """How `name` grows per 1,000 of `per`: Theil-Sen's slope, its 95 % interval; None of too few samples."""
    slope = theil_sen([one[per] for one in samples], [one[name] for one in samples])
    if slope is None or len(samples) < ENOUGH:
        return None
    return {end: round(getattr(slope, end) * 1000, 1) for end in ("estimate", "low", "high")}


def faults(results: dict[str, Any]) -> list[str]:
    """What did not hold, in words."""
    checks = {
        "a client met something unforeseen": not results["surprises"],
        "calls were not free in time": max(results["free_after_s"], results["witness_gone_after_s"]) < 1e9,
        "file descriptors are left": all(
            results["after"][name] <= results["before"][name] for name in ("gateway_files", "engine_files")
        ),
    }
    return broken(checks | after_the_storm(results, GROWTH_KIB))
