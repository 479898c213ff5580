from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from metronome_cli.errors import InputError, ProfileError
from metronome_cli.frame import Frame, KvUsage, Refused, SessionId, TickEvent
from metronome_cli.profile import OWN, Terms
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.runtime.sessions import MAX_PENDING_CHARACTERS, MAX_PENDING_TEXTS, Session, Sessions
from metronome_cli.window import Policy, Unbounded

TOO_LARGE, TOO_LARGE_NOW = 1000, 500  # windows


class Lanes:
    """A model with room for so many calls, and no more to it."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.open_ones: set[SessionId] = set()
        self.seeds: list[int] = []
        self.cancelled: list[SessionId] = []
        self.terms: dict[SessionId, Terms] = {}

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        if terms.window == TOO_LARGE:
            raise ProfileError("window.window", TOO_LARGE, "use less")
        if len(self.open_ones) >= self.room or terms.window == TOO_LARGE_NOW:
            return Refused("pool_full")
        self.open_ones.add(session)
        self.seeds.append(seed)
        self.terms[session] = terms
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        return iter(())

    def cancel(self, session: SessionId) -> None:
        self.cancelled.append(session)

    def close(self, session: SessionId) -> None:
        self.open_ones.discard(session)

    def blocks(self, session: SessionId) -> int:
        return int(session in self.open_ones)

    def policy(self, session: SessionId) -> Policy:
        return Unbounded()

    def usage(self) -> KvUsage:
        return KvUsage(len(self.open_ones), 0, self.room)


def sessions(lanes: Lanes, cap: int = 100, seed: int = 0) -> Sessions:
    return Sessions(lanes, FixedCap(cap), max_pending_s=1.0, seed=seed)


def opened(calls: Sessions, now: float = 0.0) -> Session:
    session = calls.open(now)
    assert isinstance(session, Session)
    return session


ACTIONS = st.lists(st.sampled_from(["open", "close", "close twice", "cancel"]), max_size=60)


@given(ACTIONS, st.integers(1, 5), st.integers(1, 5))
def test_no_order_of_events_lets_in_too_many_or_loses_a_place(
    actions: list[str], cap: int, room: int
) -> None:
    lanes = Lanes(room)
    calls = sessions(lanes, cap)
    live: list[SessionId] = []
    ever: set[SessionId] = set()
    for number, action in enumerate(actions):
        if action == "open":
            answer = calls.open(0.0)
            if isinstance(answer, Refused):
                assert answer.reason == ("max_sessions" if len(live) == cap else "pool_full")
                assert len(live) == min(cap, room)
            else:
                assert answer.id not in ever  # a number is never used twice
                ever.add(answer.id)
                live.append(answer.id)
        elif live and action == "cancel":
            calls.cancel(live[number % len(live)])
        elif live:
            gone = live.pop(number % len(live))
            calls.close(gone)
            if action == "close twice":
                calls.close(gone)
        assert lanes.open_ones == set(live) == {session.id for session in calls}
        assert len(calls) == len(live) <= min(cap, room)


def test_a_cut_takes_all_that_came_since_the_last_one() -> None:
    session = Session(7, 0.0, max_pending_s=1.0)
    session.hear(np.full(100, 0.5, np.float32), 0.1)
    session.hear(np.full(60, -0.5, np.float32), 0.2)
    session.read("one", 0.3)
    session.read("two", 0.4)
    session.commit()
    first, second = session.cut(), session.cut()
    assert first.session == 7
    assert first.audio.tolist() == [0.5] * 100 + [-0.5] * 60
    assert (first.texts, first.commit) == (("one", "two"), True)
    assert (len(second.audio), second.texts, second.commit) == (0, (), False)
    assert second.audio.dtype == np.float32
    assert (session.frames, session.samples) == (2, 160)


def test_audio_beyond_the_limit_is_refused_whole() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    session.hear(np.zeros(15_999, np.float32), 0.0)
    with pytest.raises(InputError, match=r"at most 1 s \(server.max_pending_s\) may wait") as caught:
        session.hear(np.zeros(2, np.float32), 0.0)
    assert caught.value.code == "buffer_full"
    session.hear(np.zeros(1, np.float32), 0.0)
    assert len(session.cut().audio) == 16_000
    session.hear(np.zeros(16_000, np.float32), 0.0)


def test_text_beyond_the_limit_is_refused_whole() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    session.read("a" * MAX_PENDING_CHARACTERS, 0.0)
    with pytest.raises(InputError) as caught:
        session.read("b", 0.0)
    assert (caught.value.code, caught.value.field) == ("buffer_full", "text")
    assert session.cut().texts == ("a" * MAX_PENDING_CHARACTERS,)


def test_unread_text_of_earlier_ticks_counts_once() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    half = MAX_PENDING_CHARACTERS // 2
    session.read("a" * half, 0.0)
    session.cut()
    assert session.unread == half  # as long as the model says nothing else
    for _ in range(4):
        session.read("b" * (half // 4), 0.0)
    with pytest.raises(InputError):
        session.read("c", 0.0)
    session.cut()
    session.unread = 0  # the model has read it all
    session.read("d" * MAX_PENDING_CHARACTERS, 0.0)


def test_a_flood_of_tiny_texts_is_refused_too() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    for _ in range(MAX_PENDING_TEXTS):
        session.read("", 0.0)
    with pytest.raises(InputError) as caught:
        session.read("", 0.0)
    assert caught.value.code == "buffer_full"
    assert len(session.cut().texts) == MAX_PENDING_TEXTS
    session.read("next", 0.0)


def test_only_real_input_is_a_sign_of_life() -> None:
    calls = sessions(Lanes(4))
    silent, speaks, types, commits = (opened(calls) for _ in range(4))
    silent.hear(np.zeros(0, np.float32), 9.0)
    silent.read("", 9.0)
    speaks.hear(np.zeros(1, np.float32), 9.0)
    types.read("hello", 9.0)
    commits.commit()
    assert calls.idle(9.9, idle_s=10.0) == []
    assert calls.idle(10.0, idle_s=10.0) == [silent, commits]
    assert calls.idle(19.0, idle_s=10.0) == [silent, speaks, types, commits]


def test_a_cancel_silences_a_call_until_its_next_frame() -> None:
    lanes = Lanes(1)
    calls = sessions(lanes)
    session = opened(calls)
    calls.cancel(session.id)
    calls.cancel(99)
    assert session.cancelled
    assert lanes.cancelled == [session.id]
    session.cut()
    assert not session.cancelled


def test_calls_draw_from_seeds_of_their_own() -> None:
    drawn = []
    for seed in (0, 1, 0):
        lanes = Lanes(5)
        calls = sessions(lanes, seed=seed)
        for _ in range(5):
            opened(calls)
        drawn.append(lanes.seeds)
    assert drawn[0] == drawn[2]
    assert len({*drawn[0], *drawn[1]}) == 10


# ---- Commits and clears ----


def samples(count: int, value: float = 0.5) -> NDArray[np.float32]:
    return np.full(count, value, np.float32)


def test_every_commit_since_the_last_cut_is_counted() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    for _ in range(3):
        session.hear(samples(10), 0.1)
        session.commit()
    assert (session.cut().commit, session.cut().commit) == (3, 0)


def test_a_clear_forgets_what_was_said_since_the_last_cut_and_before() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    session.hear(samples(100), 0.1)
    session.clear()
    session.hear(samples(7, -0.5), 0.1)
    frame = session.cut()
    assert (frame.audio.tolist(), frame.clear, frame.commit) == ([-0.5] * 7, True, 0)
    assert session.samples == 107, "what was cleared was consumed all the same"
    assert not session.cut().clear


def test_a_clear_forgets_nothing_that_was_committed() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    session.hear(samples(5), 0.1)
    session.commit()
    session.hear(samples(100), 0.1)
    session.clear()
    session.hear(samples(3, -0.5), 0.1)
    frame = session.cut()
    assert (frame.audio.tolist(), frame.commit, frame.clear) == ([0.5] * 5 + [-0.5] * 3, 1, False)
    assert session.samples == 108


def test_cleared_audio_makes_room_for_more() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    for _ in range(3):
        session.hear(samples(16_000), 0.1)
        session.clear()
    session.hear(samples(16_000), 0.1)
    with pytest.raises(InputError):
        session.hear(samples(1), 0.1)


# ---- Replies ----


def test_a_reply_is_asked_for_once() -> None:
    session = Session(1, 0.0, max_pending_s=1.0)
    session.ask(5)
    assert [session.cut().reply, session.cut().reply] == [5, None]


def test_a_cancel_takes_back_what_was_asked_for_and_has_not_begun() -> None:
    calls = sessions(Lanes(1))
    session = opened(calls)
    session.ask(5)
    calls.cancel(session.id)
    session.commit()
    frame = session.cut()
    assert (frame.reply, frame.commit) == (None, 1)


# ---- Terms ----


def test_a_call_in_which_nothing_was_said_may_have_other_terms() -> None:
    lanes = Lanes(1)
    calls = sessions(lanes)
    session = opened(calls)
    calls.settle(session, Terms(window=32))
    assert (session.terms, lanes.terms[session.id]) == (Terms(window=32), Terms(window=32))
    assert len(set(lanes.seeds)) == 1, "its randomness is its own whatever the terms"


@pytest.mark.parametrize(("window", "error"), [(TOO_LARGE, ProfileError), (TOO_LARGE_NOW, InputError)])
def test_a_call_keeps_its_old_terms_where_it_cannot_have_others(window: int, error: type[Exception]) -> None:
    lanes = Lanes(1)
    calls = sessions(lanes)
    session = opened(calls)
    calls.settle(session, Terms(window=32))
    with pytest.raises(error):
        calls.settle(session, Terms(window=window))
    assert (session.terms, lanes.terms[session.id]) == (Terms(window=32), Terms(window=32))
    assert lanes.open_ones == {session.id}


def test_a_call_that_its_model_does_not_take_back_is_live_no_more() -> None:
    lanes = Lanes(1)
    calls = sessions(lanes)
    session = opened(calls)
    lanes.room = 0
    with pytest.raises(InputError):
        calls.settle(session, Terms(window=32))
    assert (calls.find(session.id), lanes.open_ones) == (None, set())


def heard(session: Session) -> None:
    session.hear(samples(1), session.opened_at)


def typed(session: Session) -> None:
    session.read("hello", session.opened_at + 0.5)


def asked(session: Session) -> None:
    session.ask(0)


def cleared(session: Session) -> None:
    heard(session)
    session.clear()


def cut(session: Session) -> None:
    heard(session)
    session.cut()


def test_terms_come_too_late_once_anything_was_said_or_asked_for() -> None:
    for begin in (heard, typed, asked, cleared, cut):
        calls = sessions(Lanes(1))
        session = opened(calls)
        begin(session)
        with pytest.raises(InputError) as caught:
            calls.settle(session, Terms(window=32))
        assert caught.value.code == "session_started"
        assert session.terms == Terms()


def test_numbers_go_on_from_those_of_an_earlier_life() -> None:
    calls = Sessions(Lanes(3), FixedCap(3), max_pending_s=1.0, seed=0, opened=41)
    assert [opened(calls).id for _ in range(2)] == [42, 43]
