"""A load run: many calls side by side on one schedule, and everything they met.

Knows:   how calls are spread over the beat, when the run ends, where records go.
Ignores: what the numbers mean (results.py), terminals, plots.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ..clock import Clock
from ..errors import ProfileError, TargetUnreachable
from ..runtime.recorder import Recorder
from ..speech import Clip, Stream
from ..trace import FrameRecord, TickRecord
from ..wire import TickEvent
from .call import Call
from .targets import endpoint
from .ticks import TickBook

_GLANCE_S = 0.5
_RECENT = 200  # frames that the progress line looks back on


@dataclass(frozen=True, slots=True)
class Plan:
    """What to offer. Calls join one by one within `spread_s`, so that they do not speak in step."""

    url: str
    sessions: int
    duration_s: float
    seed: int = 0
    spread_s: float = 2.0
    arm: str = ""

    def __post_init__(self) -> None:
        endpoint(self.url)
        if self.sessions < 1:
            raise ProfileError("sessions", self.sessions, "use 1 or more")
        if not self.spread_s >= 0:
            raise ProfileError("spread", self.spread_s, "use 0 or more seconds")
        if not self.duration_s > self.spread_s:
            raise ProfileError(
                "duration", self.duration_s, f"use more than the {self.spread_s:g} s of joining"
            )

    def joins(self) -> list[float]:
        """When each call dials, in seconds from the start: even steps over the spread, in a seeded order."""
        order = np.random.default_rng(self.seed).permutation(self.sessions)
        return [float(place) * self.spread_s / self.sessions for place in order]


@dataclass(frozen=True, slots=True)
class Glance:
    """The run in one line, for somebody who watches."""

    elapsed_s: float
    live: int
    fresh_p50_s: float | None
    stalled: int  # live calls whose last frame was stalled
    refused: int


@dataclass(slots=True)
class Run:
    """What happened. All times are monotonic seconds of this machine."""

    plan: Plan
    start: float
    calls: list[Call]
    clips: Sequence[Clip] = ()
    end: float = 0.0
    frames: list[FrameRecord] = field(default_factory=list)
    ticks: list[TickRecord] = field(default_factory=list)
    period_s: float | None = None  # of the server's beat, once two ticks were seen
    cpu_s: float = 0.0  # CPU time of this process
    stopped: bool = False  # ended early by a signal


def run_load(
    plan: Plan,
    clips: Sequence[Clip],
    clock: Clock,
    recorder: Recorder,
    watch: Callable[[Glance], None] | None = None,
) -> Run:
    """Hold all calls of `plan` to their end; Ctrl-C ends them early.

    TargetUnreachable when no call gets through.
    """
    return asyncio.run(_run(plan, clips, clock, recorder, watch))


async def _run(
    plan: Plan,
    clips: Sequence[Clip],
    clock: Clock,
    recorder: Recorder,
    watch: Callable[[Glance], None] | None,
) -> Run:
    desk = _Desk(plan, clips, clock, recorder)
    run, cpu = desk.run, clock.cpu()
    with _interruptible() as stop:
        watching = asyncio.create_task(desk.show(watch)) if watch else None
        async with asyncio.TaskGroup() as calls:
            for call, join in zip(run.calls, plan.joins(), strict=True):
                calls.create_task(desk.hold(call, join, stop))
        if watching:
            watching.cancel()
        run.stopped = stop.is_set()
    run.end, run.cpu_s, run.period_s = clock.now(), clock.cpu() - cpu, desk.book.period_s
    desk.book.flush()
    if all(call.fate == "unreachable" for call in run.calls):
        raise TargetUnreachable(run.calls[0].why)
    return run


class _Desk:
    """Collects what the calls tell."""

    def __init__(self, plan: Plan, clips: Sequence[Clip], clock: Clock, recorder: Recorder) -> None:
        self._clock, self._recorder = clock, recorder
        self._recent: deque[FrameRecord] = deque(maxlen=_RECENT)
        self._last: dict[int, FrameRecord] = {}
        self.book = TickBook(self._tick, plan.arm)
        calls = [
            Call(number, Stream(clips, plan.seed, number), clock, self._frame, plan.arm)
            for number in range(plan.sessions)
        ]
        self.run = Run(plan, clock.now(), calls, clips)

    async def hold(self, call: Call, join: float, stop: asyncio.Event) -> None:
        run = self.run
        await self._clock.sleep_until(run.start + join)
        if stop.is_set():
            return
        await call.hold(endpoint(run.plan.url), run.start + run.plan.duration_s, stop)

    async def show(self, watch: Callable[[Glance], None]) -> None:
        while True:
            watch(self._glance())
            await self._clock.sleep_until(self._clock.now() + _GLANCE_S)

    def _frame(self, record: FrameRecord, event: TickEvent, at: float) -> None:
        self.run.frames.append(record)
        self._recent.append(record)
        self._last[record.session] = record
        self.book.add(event, record, at)

    def _tick(self, record: TickRecord, frames: Sequence[FrameRecord]) -> None:
        self.run.ticks.append(record)
        self._recorder.tick(record, frames)

    def _glance(self) -> Glance:
        fresh = [record.first - record.due for record in self._recent if record.first is not None]
        live = [call for call in self.run.calls if call.fate == "live"]
        return Glance(
            elapsed_s=self._clock.now() - self.run.start,
            live=len(live),
            fresh_p50_s=median(fresh) if fresh else None,
            stalled=sum(call.number in self._last and self._last[call.number].stalled for call in live),
            refused=sum(call.fate == "refused" for call in self.run.calls),
        )


@contextmanager
def _interruptible() -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C sets; a second one interrupts as usual."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def ask_to_stop() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, ask_to_stop)
    try:
        yield stop
    finally:
        loop.remove_signal_handler(signal.SIGINT)
