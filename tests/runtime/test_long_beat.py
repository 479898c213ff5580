"""An hour of the beat in virtual time, with the null model and with ticks that overrun."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.frame import Failed, Frame, Prefilled, Said, Stalled, TickEvent
from metronome_cli.models.null import NullModel
from metronome_cli.profile import parse_profile
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.runtime.beat import Beat
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Session, Sessions
from metronome_cli.runtime.ticker import Ticker
from metronome_cli.speech import RATE
from metronome_cli.trace import FrameRecord, TickRecord

PERIOD_S, START_S, HOUR_S = 0.08, 12.5, 3600.0
CALLS, TAU = 2, 1
PACKET = np.zeros(round(PERIOD_S * RATE), np.float32)


class Busy(NullModel):
    """The null model, each of whose ticks takes the next of `lengths_s`."""

    def __init__(self, clock: VirtualClock, lengths_s: Iterator[float]) -> None:
        super().__init__(
            parse_profile(
                "null",
                {
                    "model": {"kind": "null", "mode": "free"},
                    "beat": {"frame_s": PERIOD_S, "tau": TAU},
                    "admission": {"max_sessions": CALLS},
                },
            )
        )
        self._clock = clock
        self._lengths_s = lengths_s

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        yield from super().tick(frames)
        self._clock.advance(next(self._lengths_s))


class Quiet:
    """Nobody listens; frames are counted."""

    def __init__(self) -> None:
        self.frames: list[FrameRecord] = []

    def prefilled(self, event: Prefilled) -> None:
        pass

    def lost(self, frame: Stalled, utterances: int) -> None:
        pass

    def said(self, word: Said) -> None:
        pass

    def failed(self, call: Failed) -> None:
        raise AssertionError(call.why)

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None:
        self.frames.append(frame)

    def breathe(self) -> None:
        pass


def beat_for(seconds: float, lengths_s: Iterator[float]) -> tuple[list[TickRecord], list[FrameRecord]]:
    """Every tick and frame of CALLS paced calls, each tick waking a little late."""
    clock, listener = VirtualClock(START_S), Quiet()
    engine = Busy(clock, lengths_s)
    sessions = Sessions(engine, FixedCap(CALLS), max_pending_s=30.0, seed=0)
    beat = Beat(engine, sessions, listener, Recorder(None, clock), clock)
    ticker, late = Ticker(PERIOD_S, START_S + PERIOD_S), random.Random(0)
    calls = [sessions.open(clock.now()) for _ in range(CALLS)]
    ticks: list[TickRecord] = []
    while clock.now() < START_S + seconds:
        clock.wait_until(ticker.next_due)
        clock.advance(late.uniform(0.0, 0.003))
        tick = ticker.take(clock.now())
        assert tick is not None
        for call in calls:
            assert isinstance(call, Session)
            call.hear(PACKET, clock.now())
        ticks.append(beat.run(tick))
    return ticks, listener.frames


def endless(lengths_s: Sequence[float]) -> Iterator[float]:
    draw = random.Random(1)
    while True:
        yield draw.choice(lengths_s)


@pytest.fixture(scope="module")
def calm_hour() -> tuple[list[TickRecord], list[FrameRecord]]:
    """Every tick takes most of its period, and none more."""
    return beat_for(HOUR_S, endless([0.02, 0.06, 0.075]))


def test_after_an_hour_every_beat_is_due_where_it_was_at_first(
    calm_hour: tuple[list[TickRecord], list[FrameRecord]],
) -> None:
    ticks, _ = calm_hour
    assert [tick.tick for tick in ticks] == list(range(45_000))
    assert max(abs(tick.due - (START_S + (tick.tick + 1) * PERIOD_S)) for tick in ticks) < 1e-6
    assert sum(tick.skipped for tick in ticks) == 0
    assert max(tick.start - tick.due for tick in ticks) < 0.0031  # late by its own waking, never by the sum


def test_in_an_hour_every_due_frame_of_every_call_brings_its_tokens(
    calm_hour: tuple[list[TickRecord], list[FrameRecord]],
) -> None:
    ticks, frames = calm_hour
    assert len(frames) == CALLS * len(ticks)
    assert all(frame.tokens_out == TAU and not frame.stalled for frame in frames)
    assert (
        len({tick.kv_leased for tick in ticks[-10_000:]}) <= 2 * CALLS + 1
    )  # full windows, blocks come and go
    assert max(tick.kv_leased for tick in ticks) <= max(tick.kv_reserved for tick in ticks)


def test_beats_that_an_overrun_swallows_are_counted_and_no_later_one_moves() -> None:
    ticks, _ = beat_for(60.0, endless([0.05, 0.05, 0.05, 0.12, 0.3]))
    assert sum(tick.skipped for tick in ticks) > 100
    assert ticks[-1].tick + 1 == len(ticks) + sum(tick.skipped for tick in ticks)
    for before, tick in itertools.pairwise(ticks):
        assert tick.due == pytest.approx(START_S + (tick.tick + 1) * PERIOD_S, abs=1e-6)
        assert tick.tick == before.tick + 1 + tick.skipped
        # Only what had passed was left out: the tick took the latest beat that was due.
        assert tick.due <= tick.start < tick.due + PERIOD_S
        assert not tick.skipped or before.done > before.due + PERIOD_S
