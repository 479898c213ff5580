from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli import trace
from metronome_cli.clock import VirtualClock
from metronome_cli.errors import InputError, MetronomeError, ProfileError
from metronome_cli.frame import (
    Failed,
    Frame,
    KvUsage,
    Prefilled,
    Refused,
    Said,
    SessionId,
    Stalled,
    TickEngine,
    TickEvent,
)
from metronome_cli.models.null import NullModel
from metronome_cli.profile import OWN, Terms, parse_profile
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.runtime.beat import Beat
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.runtime.sessions import Session, Sessions
from metronome_cli.runtime.ticker import Tick
from metronome_cli.speech import RATE
from metronome_cli.window import Policy, Unbounded

WORK_S = 0.1  # that every event of the scripted model takes


class Script:
    """A model that tells the events it is given, each after WORK_S of work."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.events: list[TickEvent] = []
        self.heard: list[Frame] = []
        self.open_ones: set[SessionId] = set()
        self.leaked = 0

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        self.open_ones.add(session)
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        self.heard = list(frames)
        for event in self.events:
            self.clock.advance(WORK_S)
            yield event

    def cancel(self, session: SessionId) -> None:
        pass

    def close(self, session: SessionId) -> None:
        self.open_ones.discard(session)

    def blocks(self, session: SessionId) -> int:
        return 3 if session in self.open_ones else 0

    def policy(self, session: SessionId) -> Policy:
        return Unbounded()

    def usage(self) -> KvUsage:
        return KvUsage(3 * len(self.open_ones) + self.leaked, 0, 100)


class Stage:
    """A beat, and what its listener heard. `meanwhile` happens after that many events of a tick."""

    def __init__(
        self, engine: TickEngine, clock: VirtualClock, folder: Path | None = None, rate: int = RATE
    ) -> None:
        self.calls = Sessions(engine, FixedCap(100), max_pending_s=60.0, seed=0, rate=rate)
        self.clock = clock
        self.words: list[Said] = []
        self.taken: list[Prefilled] = []
        self.gone: list[tuple[Stalled, int]] = []
        self.failures: list[Failed] = []
        self.frames: list[trace.FrameRecord] = []
        self.meanwhile: dict[int, Callable[[], object]] = {}
        self._breaths = 0
        self._beat = Beat(engine, self.calls, self, Recorder(folder, clock), clock)

    def prefilled(self, frame: Prefilled) -> None:
        self.taken.append(frame)

    def lost(self, frame: Stalled, utterances: int) -> None:
        self.gone.append((frame, utterances))

    def said(self, word: Said) -> None:
        self.words.append(word)

    def failed(self, call: Failed) -> None:
        self.failures.append(call)

    def frame_done(self, frame: trace.FrameRecord, tick: trace.TickRecord) -> None:
        self.frames.append(frame)

    def breathe(self) -> None:
        self._breaths += 1
        if happening := self.meanwhile.pop(self._breaths, None):
            happening()

    def open(self) -> Session:
        session = self.calls.open(self.clock.now())
        assert isinstance(session, Session)
        return session

    def run(self, index: int = 0, due: float = 10.0) -> trace.TickRecord:
        self._breaths = 0
        self.frames = []
        return self._beat.run(Tick(index, due))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(10.0)


@pytest.fixture
def script(clock: VirtualClock) -> Script:
    return Script(clock)


@pytest.fixture
def stage(script: Script, clock: VirtualClock) -> Stage:
    return Stage(script, clock)


def test_every_event_is_stamped_when_it_comes(stage: Stage, script: Script, clock: VirtualClock) -> None:
    one, two = stage.open(), stage.open()
    one.hear(np.zeros(1600, np.float32), 9.0)
    clock.advance(0.5)
    script.events = [
        Prefilled(one.id, 5, heard="so"),
        Prefilled(two.id, 0),
        Said(one.id, "a"),
        Said(two.id, "b"),
        Said(one.id, "c", end=True),
    ]
    tick = stage.run(index=4, due=10.25)
    first, second = stage.frames
    assert (first.session, first.frame, first.tick, first.due) == (one.id, 0, 4, 10.25)
    assert (first.age_s, first.audio_end_ms) == (0.5, 100.0)
    assert (first.prefilled, first.first, first.last) == pytest.approx((10.6, 10.8, 11.0))
    assert (first.tokens_in, first.tokens_out, first.said, first.heard) == (5, 2, "ac", "so")
    assert (second.prefilled, second.first, second.last) == pytest.approx((10.7, 10.9, 10.9))
    assert (tick.start, tick.done) == pytest.approx((10.5, 11.0))
    assert (tick.sessions, tick.tokens_in, tick.tokens_out) == (2, 5, 3)
    assert (tick.kv_leased, tick.kv_total) == (6, 100)
    assert [frame.blocks for frame in stage.frames] == [3, 3]


def test_a_word_leaves_before_the_next_one_is_made(stage: Stage, script: Script) -> None:
    session = stage.open()
    script.events = [Prefilled(session.id, 1), Said(session.id, "a"), Said(session.id, "b")]
    stage.meanwhile = {2: lambda: seen.extend(stage.words)}
    seen: list[Said] = []
    stage.run()
    assert seen == [Said(session.id, "a")]


def test_empty_and_stalled_frames_are_counted(stage: Stage, script: Script) -> None:
    speaks, mute, listens, stalls, breaks_off = (stage.open().id for _ in range(5))
    script.events = [
        Prefilled(speaks, 1),
        Prefilled(mute, 1),
        Prefilled(listens, 1, speaking=False),
        Stalled(stalls, dropped=7),
        Prefilled(breaks_off, 1),
        Said(speaks, "a"),
        Said(breaks_off, "a"),
        Stalled(breaks_off, dropped=0),
    ]
    tick = stage.run()
    assert (tick.sessions, tick.stalled, tick.empty) == (5, 2, 2)
    by_session = {frame.session: frame for frame in stage.frames}
    assert [n for n, frame in by_session.items() if frame.empty] == [mute, stalls]
    assert by_session[stalls].dropped == 7
    assert by_session[stalls].speaking
    assert not by_session[listens].speaking


def test_every_live_call_brings_a_frame_to_every_tick(stage: Stage, script: Script) -> None:
    session = stage.open()
    for number in range(3):
        stage.run(index=number)
        assert [frame.session for frame in script.heard] == [session.id]
        assert stage.frames[0].frame == number
    script.events = []
    assert stage.run(index=3).empty == 0  # it was not to speak


def test_a_call_opened_during_a_tick_joins_the_next_one(stage: Stage, script: Script) -> None:
    first = stage.open()
    script.events = [Prefilled(first.id, 1), Said(first.id, "a")]
    stage.meanwhile = {1: stage.open}
    assert stage.run().sessions == 1
    script.events = []
    assert stage.run(index=1).sessions == 2


def test_nothing_is_told_of_a_call_closed_during_the_tick(stage: Stage, script: Script) -> None:
    stays, leaves = stage.open(), stage.open()
    script.events = [
        Prefilled(stays.id, 1),
        Prefilled(leaves.id, 1),
        Said(leaves.id, "late"),
        Said(stays.id, "a"),
    ]
    stage.meanwhile = {2: lambda: stage.calls.close(leaves.id)}
    tick = stage.run()
    assert stage.words == [Said(stays.id, "a")]
    assert [frame.session for frame in stage.frames] == [stays.id]
    assert (tick.sessions, tick.empty, tick.kv_leased) == (1, 0, 3)


def test_no_late_word_of_a_cancelled_reply_is_told(stage: Stage, script: Script) -> None:
    session = stage.open()
    script.events = [Prefilled(session.id, 1), Said(session.id, "a"), Said(session.id, "late")]
    stage.meanwhile = {2: lambda: stage.calls.cancel(session.id)}
    assert stage.run().tokens_out == 1
    assert stage.words == [Said(session.id, "a")]
    script.events = [Prefilled(session.id, 1), Said(session.id, "new")]
    stage.run(index=1)
    assert stage.words[-1] == Said(session.id, "new")


def test_what_a_stall_costs_a_call_is_told(stage: Stage, script: Script) -> None:
    """The ends of its utterances and its reply are; a reply that only waits is not lost."""
    loses, waits = stage.open(), stage.open()
    for session in (loses, waits):
        session.commit()
        session.commit()
    lost = Stalled(loses.id, dropped=7, reply=True)
    script.events = [lost, Prefilled(waits.id, 1, over=2), Stalled(waits.id, dropped=0)]
    stage.run()
    assert stage.gone == [(lost, 2)]
    assert [(frame.session, frame.over) for frame in stage.taken] == [(waits.id, 2)]
    script.events = [Stalled(loses.id, dropped=0)]
    stage.run(index=1)
    assert stage.gone[1:] == [(Stalled(loses.id, dropped=0), 0)]


def test_text_that_the_model_has_not_read_counts_until_it_has(stage: Stage, script: Script) -> None:
    session = stage.open()
    session.read("a" * 100, 10.0)
    script.events = [Prefilled(session.id, 10, unread=90)]
    stage.run()
    assert session.unread == 90
    script.events = [Stalled(session.id, dropped=3)]
    stage.run(index=1)
    assert session.unread == 90


def test_a_reply_asked_for_after_a_cancel_is_told(stage: Stage, script: Script) -> None:
    session = stage.open()
    session.ask(5)
    stage.calls.cancel(session.id)
    session.ask(3)
    script.events = [Prefilled(session.id, 0), Said(session.id, "new", start=True)]
    stage.run()
    assert script.heard[0].reply == 3
    assert [word.text for word in stage.words] == ["new"]


def test_a_call_that_fails_ends_alone_and_its_last_frame_says_why(
    script: Script, clock: VirtualClock, tmp_path: Path
) -> None:
    stage = Stage(script, clock, tmp_path)
    fails, goes_on = stage.open().id, stage.open().id
    failure = Failed(fails, "its audio became NaN")
    script.events = [
        Prefilled(goes_on, 1),
        failure,
        Said(fails, "late"),
        Failed(fails, "again"),
        Said(goes_on, "a"),
    ]
    tick = stage.run()
    assert stage.failures == [failure]
    assert script.open_ones == {goes_on}
    assert stage.words == [Said(goes_on, "a")]
    assert [frame.session for frame in stage.frames] == [goes_on]
    assert (tick.sessions, tick.failed, tick.kv_leased, tick.tokens_out) == (1, 1, 3, 1)
    kept = {one.session: one for one in trace.read_records(tmp_path / "frames.jsonl", trace.FrameRecord)}
    assert (kept[fails].failed, kept[fails].said, kept[goes_on].failed) == (failure.why, "", "")
    script.events = []
    assert stage.run(index=1).failed == 0


@pytest.mark.parametrize(
    ("text", "pcm", "why"),
    [
        ("a", b"123", "the model gave 3 bytes of sound, and not whole samples of 2 bytes"),
        ("a", np.zeros(2, "<i2"), "the model gave ndarray of sound, and not whole samples of 2 bytes"),
        (b"a", b"", "the model said bytes, and not text"),
        (None, b"", "the model said NoneType, and not text"),
    ],
)
def test_a_call_whose_words_cannot_be_passed_on_fails_alone(
    stage: Stage, script: Script, text: Any, pcm: Any, why: str
) -> None:
    fails, goes_on = stage.open().id, stage.open().id
    script.events = [Said(fails, text, pcm=pcm), Said(fails, "late"), Said(goes_on, "b", pcm=b"12")]
    stage.run()
    assert stage.failures == [Failed(fails, why)]
    assert stage.words == [Said(goes_on, "b", pcm=b"12")]
    assert script.open_ones == {goes_on}


def test_more_sound_in_a_tick_than_a_caller_may_leave_unread_is_the_models_fault(
    stage: Stage, script: Script
) -> None:
    """Not the caller's, who never had a chance to read so much."""
    second = bytes(48_000)
    fails, goes_on = stage.open().id, stage.open().id
    whole = [Said(goes_on, "", pcm=second)] * 60
    script.events = [*whole, Said(fails, "a", pcm=second * 60), Said(fails, "b", pcm=b"12")]
    stage.run()
    (failure,) = stage.failures
    assert failure.session == fails
    assert failure.why == (
        "the model gave 60.00 s of sound in one tick; "
        "at most 60 s can wait for a caller: give the rest in later ticks"
    )
    script.events = [*whole]  # every tick anew
    stage.run(index=1)
    assert len(stage.failures) == 1
    assert script.open_ones == {goes_on}


def test_a_model_that_tells_of_a_call_that_brought_nothing_is_not_heeded(
    stage: Stage, script: Script
) -> None:
    first = stage.open().id
    script.events = [Prefilled(first, 1), Said(first + 1, "early"), Failed(first + 1, "early")]
    stage.meanwhile = {1: stage.open}
    stage.run()
    assert (stage.words, stage.failures, len(stage.calls)) == ([], [], 2)


def test_what_is_no_event_stops_the_beat_by_its_name(stage: Stage, script: Script) -> None:
    stage.open()
    script.events = ["hello"]  # type: ignore[list-item]
    with pytest.raises(MetronomeError, match="told of str, which is no"):
        stage.run()


def test_a_call_that_is_gone_already_cannot_fail(stage: Stage, script: Script) -> None:
    gone = stage.open()
    script.events = [Prefilled(gone.id, 1), Failed(gone.id, "late")]
    stage.meanwhile = {1: lambda: stage.calls.close(gone.id)}
    assert (stage.run().failed, stage.failures) == (0, [])


def test_audio_is_counted_at_the_rate_of_the_model(script: Script, clock: VirtualClock) -> None:
    stage = Stage(script, clock, rate=24_000)
    session = stage.open()
    session.hear(np.zeros(36_000, np.float32), 9.0)
    stage.run()
    assert stage.frames[0].audio_end_ms == 1500.0


def test_a_lost_block_stops_the_beat(stage: Stage, script: Script) -> None:
    stage.open()
    stage.run()
    script.leaked = 1
    with pytest.raises(MetronomeError, match="4 of 100 blocks leased, calls hold 3"):
        stage.run(index=1)


def test_a_tick_and_its_frames_are_recorded(script: Script, clock: VirtualClock, tmp_path: Path) -> None:
    stage = Stage(script, clock, tmp_path)
    session = stage.open()
    script.events = [Prefilled(session.id, 1), Said(session.id, "a")]
    tick = stage.run()
    assert list(trace.read_records(tmp_path / "trace.jsonl", trace.TickRecord)) == [tick]
    assert list(trace.read_records(tmp_path / "frames.jsonl", trace.FrameRecord)) == stage.frames


POLICIES = st.sampled_from(["window", "unbounded", "recycle"])
ACTIONS = st.lists(
    st.sampled_from(["open", "close", "cancel", "hear", "read", "commit", "clear", "ask", "settle", "tick"]),
    max_size=80,
)


def act(calls: Sessions, session: Session, action: str) -> None:
    match action:
        case "close":
            calls.close(session.id)
        case "cancel":
            calls.cancel(session.id)
        case "hear":
            session.hear(np.zeros(16_000, np.float32), 0.0)
        case "read":
            session.read("four words of text", 0.0)
        case "commit":
            session.commit()
        case "clear":
            session.clear()
        case "ask":
            session.ask(3)
        case "settle":
            with suppress(InputError, ProfileError):
                calls.settle(session, Terms(window=20, policy="window"))


@given(POLICIES, st.sampled_from(["free", "turn"]), st.integers(25, 60), ACTIONS, st.integers(0, 3))
def test_no_order_of_events_loses_a_block(
    policy: str, mode: str, blocks: int, actions: list[str], busy: int
) -> None:
    """The beat itself checks the accounts after every tick; at the end everything is free again."""
    profile = parse_profile(
        "any",
        {
            "model": {"kind": "null", "mode": mode, "header": "one two three"},
            "beat": {"tau": 5, "prefill_tokens": 16},
            "window": {"policy": policy, "window": 40},
            "pool": {"blocks": blocks, "block_size": 4},
        },
    )
    model = NullModel(profile)
    stage = Stage(model, VirtualClock(), None)
    for number, action in enumerate([*actions, "tick"]):
        live = list(stage.calls)
        chosen = live[number % len(live)] if live else None
        if action == "tick":
            stage.meanwhile = {busy: partial(stage.calls.close, chosen.id)} if chosen else {}
            tick = stage.run(index=number, due=number)
            assert tick.kv_leased <= tick.kv_total
        elif action == "open":
            stage.calls.open(0.0)
        elif chosen is not None:
            act(stage.calls, chosen, action)
    for session in stage.calls:
        stage.calls.close(session.id)
    usage = model.usage()
    assert (usage.leased, usage.reserved, usage.total) == (0, 0, blocks)
