"""A load run: many calls side by side on one schedule, and everything they met.

Knows:   when each line dials, dials anew and hangs up, when the run ends, where records go.
Ignores: what the numbers mean (results.py), terminals, plots.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ..clock import Clock
from ..errors import TargetUnreachable
from ..runtime.recorder import Recorder
from ..speech import GAP_S, Clip, Stream
from ..trace import FrameRecord, TickRecord
from ..wire import TickEvent
from .arrivals import redial_wait
from .call import Call
from .caller import Target, hold
from .over import LastWords, Over
from .plan import Plan
from .spoken import Spoken
from .spurts import spurts
from .targets import endpoint
from .ticks import TickBook

__all__ = ["Glance", "Plan", "Run", "run_load"]

SPREAD_S = 2.0  # in which calls join a server that does not tell its frame
_GLANCE_S = 0.5
# How long a line waits before it dials anew. A server needs a moment to see that a caller vanished; one that
# turned a caller away or cut it off is not to be asked again at once.
_REDIAL_S = {"done": 0.0, "vanished": 0.1}
_REDIAL_FAILED_S = 1.0
_LEAST_S = 0.2  # a call that would end sooner says nothing and is not made
_RECENT = 200  # frames that the progress line looks back on
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Doomed = Callable[["Run", float], str | None]  # why a run cannot come out well any more, at a time; or None


@dataclass(frozen=True, slots=True)
class Glance:
    """The run in one line, for somebody who watches."""

    elapsed_s: float
    live: int
    fresh_p50_s: float | None
    stalled: int  # live calls whose last frame was stalled
    refused: int  # calls, those that will be dialled again included


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
    period_s: float | None = None  # of the server's beat, once two ticks were seen or it told
    cpu_s: float = 0.0  # CPU time of this process
    stopped: bool = False  # ended early by a signal
    doomed: str = ""  # ended early because it could not come out well any more, and why
    over: Over | None = None  # from when on nobody dialled any more: the server had ended


def run_load(
    plan: Plan,
    clips: Sequence[Clip],
    clock: Clock,
    recorder: Recorder,
    watch: Callable[[Glance], None] | None = None,
    doomed: Doomed | None = None,
) -> Run:
    """Hold all calls of `plan` to their end; Ctrl-C, SIGTERM, or a reason from `doomed`, ends them early.

    TargetUnreachable when no call gets through.
    """
    desk = _Desk(plan, clips, clock, recorder)
    return asyncio.run(desk.hold(watch, doomed))


class _Desk:
    """Lets the lines dial, and collects what their calls tell."""

    def __init__(self, plan: Plan, clips: Sequence[Clip], clock: Clock, recorder: Recorder) -> None:
        self._plan, self._clock, self._recorder = plan, clock, recorder
        self._speech = clips if plan.talk_s is None else spurts(clips, plan.talk_s)
        self._gap_s = GAP_S if plan.silence_s is None else (plan.silence_s, plan.silence_s)
        address = endpoint(plan.url, plan.protocol)
        self._target = Target(address, plan.protocol, plan.model, plan.api_key, plan.replies)
        self._recent: deque[FrameRecord] = deque(maxlen=_RECENT)
        self._last: dict[int, FrameRecord] = {}
        self._book = TickBook(self._tick, plan.arm)
        self._stop = asyncio.Event()
        self._nobody_there = asyncio.Event()  # nothing is dialled any more; calls that live go on
        self._last_words = LastWords()
        self._run = Run(plan, clock.now(), [], clips)

    async def hold(self, watch: Callable[[Glance], None] | None, doomed: Doomed | None) -> Run:
        run, cpu = self._run, self._clock.cpu()
        with _interruptible(self._stop) as interrupted:
            watching = asyncio.create_task(self._look(watch, doomed))
            async with asyncio.TaskGroup() as lines:
                await self._dial_all(lines)
            watching.cancel()
            run.stopped = interrupted.is_set()
        run.end, run.cpu_s, run.period_s = self._clock.now(), self._clock.cpu() - cpu, self._period()
        self._book.flush()
        if run.calls and all(call.fate == "unreachable" for call in run.calls):
            raise run.calls[0].failure or TargetUnreachable(run.calls[0].why)
        return run

    # ---- Lines ----

    async def _dial_all(self, lines: asyncio.TaskGroup) -> None:
        """Start every line at its hour. The first that dials tells how long a frame is."""
        joins = self._plan.joins(SPREAD_S)
        if self._plan.spread_s is None and self._plan.rate_hz is None and len(joins) > 1:
            call = self._next_call()
            lines.create_task(self._hold_line(0.0, call))
            await self._unless_stopped(call.begun.wait())
            joins = self._plan.joins(call.server_frame_s or SPREAD_S)
            joins.remove(min(joins))
        for join in joins:
            lines.create_task(self._hold_line(join))

    async def _hold_line(self, join: float, call: Call | None = None) -> None:
        """One line: a call, and another one when it is over and lines are to be kept busy."""
        run, plan = self._run, self._plan
        until = run.start + plan.duration_s
        await self._unless_stopped(self._clock.sleep_until(min(run.start + join, until)))
        while self._clock.now() < until and not self._dials_no_more:
            call = call or self._next_call()
            await self._hold(call, until)
            again = self._clock.now() + _REDIAL_S.get(call.fate, _REDIAL_FAILED_S)
            if plan.call_length is None or not plan.redial or again > until - _LEAST_S:
                return
            await self._unless_stopped(self._clock.sleep_until(again))
            call = None

    async def _hold(self, call: Call, until: float) -> None:
        """Dial a call until it is let in, has been refused often enough, or has no time left."""
        call.dialled = self._clock.now()
        while True:
            before = len(call.refusals)
            await hold(call, self._target, self._clock, until, self._stop)
            self._heed(call)
            if len(call.refusals) == before or before >= self._plan.redials or self._nobody_there.is_set():
                break
            wait_s = redial_wait(self._plan.seed, call.number, before + 1, call.refusals[-1].retry_after_s)
            again = self._clock.now() + wait_s
            if again > until - _LEAST_S or self._stop.is_set():
                call.out_of_time = not self._stop.is_set()
                break
            call.fate = "waiting"
            await self._unless_stopped(self._clock.sleep_until(again))
            if self._nobody_there.is_set():
                break
        if call.fate == "waiting" and call.refusals:  # the run was ended before it was let in
            call.fate = "refused"

    @property
    def _dials_no_more(self) -> bool:
        return self._stop.is_set() or self._nobody_there.is_set()

    def _heed(self, call: Call) -> None:
        over = self._last_words.heed(call, self._run.calls, self._clock.now())
        if over and not self._run.over:
            self._run.over = over
            self._nobody_there.set()

    def _next_call(self) -> Call:
        number, plan = len(self._run.calls), self._plan
        stream = Stream(self._speech, plan.seed, number, self._gap_s)
        call = Call(number, stream, self._frame, plan.manner(number))
        call.spoken = Spoken(number) if number < plan.keep_speech else None
        self._run.calls.append(call)
        return call

    async def _unless_stopped(self, wait: Coroutine[Any, Any, object]) -> None:
        """Wait for `wait`, or until nothing is to be dialled any more."""
        works = (wait, self._stop.wait(), self._nobody_there.wait())
        tasks = [asyncio.create_task(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    # ---- What they tell ----

    async def _look(self, watch: Callable[[Glance], None] | None, doomed: Doomed | None) -> None:
        while True:
            if watch:
                watch(self._glance())
            self._run.period_s = self._period()
            if doomed and (why := doomed(self._run, self._clock.now())):
                self._run.doomed = why
                self._stop.set()
            await self._clock.sleep_until(self._clock.now() + _GLANCE_S)

    def _period(self) -> float | None:
        told = (call.server_frame_s for call in self._run.calls if call.server_frame_s)
        return self._book.period_s or next(told, None)

    def _frame(self, record: FrameRecord, event: TickEvent, at: float) -> None:
        self._run.frames.append(record)
        self._recent.append(record)
        self._last[record.session] = record
        self._book.add(event, record, at, self._run.calls[record.session].bounded)

    def _tick(self, record: TickRecord, frames: Sequence[FrameRecord]) -> None:
        self._run.ticks.append(record)
        self._recorder.tick(record, frames)

    def _glance(self) -> Glance:
        fresh = [record.first - record.due for record in self._recent if record.first is not None]
        live = [call for call in self._run.calls if call.fate == "live"]
        return Glance(
            elapsed_s=self._clock.now() - self._run.start,
            live=len(live),
            fresh_p50_s=median(fresh) if fresh else None,
            stalled=sum(call.number in self._last and self._last[call.number].stalled for call in live),
            refused=sum(
                call.fate == "refused" or (call.fate == "waiting" and bool(call.refusals))
                for call in self._run.calls
            ),
        )


@contextmanager
def _interruptible(stop: asyncio.Event) -> Iterator[asyncio.Event]:
    """The first of _ENDS sets `stop`, and the event this gives; a second does what it did before."""
    loop, interrupted = asyncio.get_running_loop(), asyncio.Event()
    before = {end: signal.getsignal(end) for end in _ENDS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]  # nohup: a closed terminal is not to end the run

    def ask_to_stop() -> None:
        interrupted.set()
        stop.set()
        give_back()

    def give_back() -> None:
        for end, handler in before.items():
            if loop.remove_signal_handler(end):
                signal.signal(end, handler)

    for end in before:
        loop.add_signal_handler(end, ask_to_stop)
    try:
        yield interrupted
    finally:
        give_back()
