"""A new call is decided on by what the last ticks told; refusing it costs nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.frame import (
    Failed,
    Frame,
    KvUsage,
    Prefilled,
    Refused,
    Said,
    SessionId,
    Stalled,
    TickEvent,
)
from metronome_cli.models.null import NullModel
from metronome_cli.profile import Profile, parse_profile
from metronome_cli.runtime.admission import Admission, Cap, FixedCap, Measured, Target
from metronome_cli.runtime.admission.aimd import Aimd
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.runtime.admission.forecast import Forecast
from metronome_cli.runtime.admission.gradient import Gradient
from metronome_cli.runtime.beat import Beat
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Session, Sessions
from metronome_cli.runtime.ticker import Tick
from metronome_cli.trace import FrameRecord, TickRecord

FRAME_S = 1.0
KINDS = ("fixed", "aimd", "gradient", "forecast")
REASONS = {"max_sessions", "ramp", "latency", "memory", "pool_full"}


def profile(admit: str = "fixed", policy: str = "window", blocks: int = 60, **admission: object) -> Profile:
    return parse_profile(
        "tested",
        {
            "model": {"kind": "null", "mode": "free", "header": "one two three"},
            "beat": {"frame_s": FRAME_S, "tau": 2, "prefill_tokens": 8},
            "window": {"policy": policy, "window": 16},
            "pool": {"blocks": blocks, "block_size": 4},
            "admission": {"admit": admit, "max_sessions": 12, "window_ticks": 5, "horizon_s": 8.0}
            | admission,
        },
    )


class Slow(NullModel):
    """A null model that takes `token_s` for each token it says."""

    def __init__(self, profile: Profile, clock: VirtualClock) -> None:
        super().__init__(profile)
        self.token_s = 0.0
        self._clock = clock

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        for event in super().tick(frames):
            if isinstance(event, Said):
                self._clock.advance(self.token_s)
            yield event


class Stage:
    """A beat over calls that one admission decides on. It is the beat's Listener."""

    def __init__(self, profile: Profile, admission: Admission | None = None) -> None:
        self.clock = VirtualClock()
        self.model = Slow(profile, self.clock)
        self.calls = Sessions(self.model, admission or chosen(profile), max_pending_s=60.0, seed=0)
        self.joins_meanwhile = False
        self._beat = Beat(self.model, self.calls, self, Recorder(None, self.clock), self.clock)
        self._ticks = 0

    def prefilled(self, frame: Prefilled) -> None:
        pass

    def lost(self, frame: Stalled, utterances: int) -> None:
        pass

    def said(self, word: Said) -> None:
        pass

    def failed(self, call: Failed) -> None:
        pass

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None:
        pass

    def breathe(self) -> None:
        if self.joins_meanwhile:
            self.joins_meanwhile = False
            self.calls.open(self.clock.now())

    def tick(self) -> TickRecord:
        self._ticks += 1
        due = max(self._ticks * FRAME_S, self.clock.now())
        self.clock.wait_until(due)
        return self._beat.run(Tick(self._ticks, due))

    def open(self) -> Session:
        session = self.calls.open(self.clock.now())
        assert isinstance(session, Session)
        return session


class Witness(FixedCap):
    """Notes what it is told, and moves its cap all the same."""

    def __init__(self) -> None:
        super().__init__(12)
        self.seen: list[Measured] = []

    def observe(self, seen: Measured) -> None:
        self.seen.append(seen)
        self.cap = Cap(11, "latency")


# ---- What a tick tells ----


def test_a_tick_tells_the_admission_what_it_measured_and_the_trace_its_answer() -> None:
    witness = Witness()
    stage = Stage(profile(), witness)
    stage.open(), stage.open()
    stage.model.token_s, stage.joins_meanwhile = 0.1, True
    record = stage.tick()
    stage.tick()
    before = {session.id: stage.model.blocks(session.id) for session in stage.calls}
    stage.open()
    stage.tick()
    began, _, later = witness.seen
    assert began.due == 1.0
    assert began.done == pytest.approx(1.4)
    assert began.fresh_s == pytest.approx(0.4)
    assert (began.served, began.live, began.stalled) == (2, 3, 0)
    assert (began.older, began.grown) == (0, 0)  # nobody was served before
    assert (later.served, later.live, later.older) == (4, 4, 3)
    assert later.grown == sum(stage.model.blocks(session) for session in before) - sum(before.values()) > 0
    assert later.pool == stage.model.usage()
    assert (
        (record.cap, record.cap_reason) == (11, "latency") == (stage.calls.cap.calls, stage.calls.cap.reason)
    )


def test_a_stall_is_told_and_so_is_a_pool_without_room() -> None:
    witness = Witness()
    stage = Stage(profile(policy="unbounded", blocks=3), witness)
    stage.open()
    for _ in range(6):
        stage.tick()
    assert [seen.stalled for seen in witness.seen] == [0, 0, 0, 0, 1, 1]
    assert [seen.pool.room for seen in witness.seen] == [None, None, 0, 0, 0, 0]


def test_a_tick_without_calls_or_tokens_has_no_latency() -> None:
    witness = Witness()
    stage = Stage(profile(), witness)
    stage.tick()
    (idle,) = witness.seen
    assert (idle.served, idle.fresh_s, idle.latency_s(0.5)) == (0, None, None)


USAGE = KvUsage(0, 0, 100, 10)


def measured(
    fresh_s: float | None, served: int = 4, stalled: int = 0, took_s: float = 0.0, due: float = 0.0
) -> Measured:
    return Measured(due, due + took_s, served, served, fresh_s, stalled, served, 0, USAGE)


def test_latency_is_that_of_the_last_token_and_a_stalled_frame_has_none_ever() -> None:
    assert measured(0.3).latency_s(0.5) == 0.3
    assert measured(0.3, stalled=1).latency_s(0.5) == math.inf
    assert measured(None).latency_s(0.5) is measured(math.nan).latency_s(0.5) is None
    assert measured(None, took_s=0.6).latency_s(0.5) == 0.6  # whoever spoke would have been late
    assert measured(None, took_s=0.6, served=0).latency_s(0.5) is None


@given(st.lists(st.floats(0, 10), min_size=1, max_size=60), st.integers(50, 99))
def test_a_percentile_is_the_least_value_that_so_many_do_not_pass(values: list[float], percent: int) -> None:
    target = Target(1.0, percent, window_ticks=len(values))
    found = target.of(values)
    assert found == float(np.percentile(values, percent, method="inverted_cdf"))
    late = sum(value > 1.0 for value in values)
    assert (late > target.misses) == (found > 1.0)


# ---- Which one a profile gets ----


@pytest.mark.parametrize(
    ("admit", "kind"), list(zip(KINDS, (FixedCap, Aimd, Gradient, Forecast), strict=True))
)
def test_a_profile_names_its_admission(admit: str, kind: type) -> None:
    assert type(chosen(profile(admit))) is kind


@pytest.mark.parametrize("admit", KINDS[1:])
def test_the_target_is_a_share_of_the_frame(admit: str) -> None:
    kept, missed = (chosen(profile(admit, target_share=0.5)) for _ in range(2))
    for due in range(6):
        kept.observe(measured(0.4, served=6, due=due))
        missed.observe(measured(0.6, served=6, due=due))
    assert kept.decide(6) is None
    assert missed.decide(6) == Refused("latency")


@pytest.mark.parametrize(
    ("field", "value"),
    [("admit", "hope"), ("target_share", 1.5), ("percentile", 100), ("window_ticks", 0), ("horizon_s", 0)],
)
def test_a_profile_that_asks_for_what_is_not_there_is_told_so(field: str, value: object) -> None:
    with pytest.raises(ProfileError, match=rf"admission\.{field} = "):
        parse_profile("tested", {"admission": {field: value}})


# ---- Opening calls ----

ACTIONS = st.lists(
    st.sampled_from(["open", "open", "open", "close", "tick", "slower", "faster"]), max_size=80
)


@settings(deadline=None)
@given(st.sampled_from(KINDS), st.sampled_from(["window", "unbounded", "recycle"]), ACTIONS)
def test_no_order_of_arrivals_passes_the_cap_and_no_refusal_leaves_a_trace(
    admit: str, policy: str, actions: list[str]
) -> None:
    stage = Stage(profile(admit, policy))
    for number, action in enumerate(actions):
        live = [session.id for session in stage.calls]
        cap, before = stage.calls.cap, stage.model.usage()
        match action:
            case "open":
                answer = stage.calls.open(stage.clock.now())
                now = [session.id for session in stage.calls]
                if isinstance(answer, Refused):
                    assert answer.reason in REASONS
                    assert (now, stage.model.usage()) == (live, before)
                    assert answer.reason == "pool_full" or len(live) >= cap.calls
                else:
                    assert now == [*live, answer.id]
                    assert len(now) <= cap.calls <= 12
            case "close" if live:
                stage.calls.close(live[number % len(live)])
            case "tick":
                stage.tick()
            case "slower" | "faster":
                stage.model.token_s = 0.2 if action == "slower" else 0.001
    held: set[SessionId] = {session.id for session in stage.calls}
    for session in held:
        stage.calls.close(session)
    assert (stage.model.usage().leased, stage.model.usage().reserved) == (0, 0)
