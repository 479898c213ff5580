from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from metronome_cli.errors import InputError, ProfileError
from metronome_cli.frame import Frame, KvUsage, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.factory import build
from metronome_cli.models.null import HEARD_PER_S, REPLY, NullModel
from metronome_cli.profile import Terms, parse_profile
from metronome_cli.runtime.sessions import MAX_PENDING_CHARACTERS, MAX_PENDING_TEXTS, Session

SECOND = np.zeros(16_000, np.float32)
NOTHING = np.zeros(0, np.float32)


def model(mode: str = "free", **sections: Any) -> NullModel:
    data = {
        "model": {"kind": "null", "mode": mode, "header": "one two three"},
        "beat": {"tau": 3, "prefill_tokens": 16},
        "window": {"window": 40},
        "pool": {"blocks": 30, "block_size": 4},
    }
    built = build(parse_profile("null", data | sections))
    assert isinstance(built, NullModel)
    return built


def play(null: NullModel, *frames: Frame) -> list[TickEvent]:
    return list(null.tick(frames))


def test_in_free_mode_it_says_tau_tokens_a_frame() -> None:
    null = model()
    assert null.open(1, seed=0) is None
    for _ in range(4):
        events = play(null, Frame(1, SECOND))
        assert events[0] == Prefilled(1, HEARD_PER_S, speaking=True)
        assert [type(event) for event in events[1:]] == [Said] * 3


def test_in_turn_mode_it_speaks_when_spoken_to() -> None:
    null = model("turn")
    null.open(1, seed=0)
    assert play(null, Frame(1, SECOND)) == [Prefilled(1, HEARD_PER_S, speaking=False)]
    for frame in (Frame(1, NOTHING, commit=True), Frame(1, NOTHING, texts=("are you there",))):
        events = play(null, frame) + play(null, Frame(1, NOTHING)) + play(null, Frame(1, NOTHING))
        said = [event for event in events if isinstance(event, Said)]
        assert tuple(event.text for event in said) == REPLY
        assert [event.start for event in said] == [True] + [False] * 7
        assert [event.end for event in said] == [False] * 7 + [True]
        assert play(null, Frame(1, NOTHING)) == [Prefilled(1, 0, speaking=False)]


def test_fractions_of_a_heard_token_add_up() -> None:
    null = model()
    null.open(1, seed=0)
    piece = np.zeros(320, np.float32)
    heard = [play(null, Frame(1, piece))[0] for _ in range(50)]
    assert sum(event.tokens_in for event in heard if isinstance(event, Prefilled)) == HEARD_PER_S


def test_long_input_is_taken_in_pieces() -> None:
    null = model("turn")
    null.open(1, seed=0)
    first = play(null, Frame(1, NOTHING, texts=("word " * 20,)))[0]
    second = play(null, Frame(1, NOTHING))[0]
    assert isinstance(first, Prefilled)
    assert isinstance(second, Prefilled)
    assert (first.tokens_in, second.tokens_in) == (16, 4)


def test_a_cancelled_reply_is_over() -> None:
    null = model("turn")
    null.open(1, seed=0)
    play(null, Frame(1, NOTHING, commit=True))
    null.cancel(1)
    assert play(null, Frame(1, NOTHING)) == [Prefilled(1, 0, speaking=False)]


def test_unbounded_calls_fill_the_pool_stall_and_go_on_when_another_ends() -> None:
    null = model(window={"policy": "unbounded"})
    null.open(1, seed=0)
    null.open(2, seed=0)
    frames = (Frame(1, SECOND), Frame(2, SECOND))
    while not (stalls := [event for event in play(null, *frames) if isinstance(event, Stalled)]):
        pass
    while len(stalls) < 2:
        stalls = [event for event in play(null, *frames) if isinstance(event, Stalled)]
    assert null.usage() == KvUsage(leased=30, reserved=0, total=30, room=0)
    assert isinstance(null.open(3, seed=0), Refused)
    null.close(2)
    assert not [event for event in play(null, Frame(1, SECOND)) if isinstance(event, Stalled)]


def test_a_stalled_call_says_nothing_and_its_input_is_dropped() -> None:
    null = model(window={"policy": "unbounded"}, pool={"blocks": 1, "block_size": 4})
    null.open(1, seed=0)  # its header takes three of the four places
    assert play(null, Frame(1, SECOND)) == [Stalled(1, dropped=HEARD_PER_S)]


@pytest.mark.parametrize("policy", ["window", "recycle"])
def test_a_bounded_call_never_stalls_and_stays_within_its_reservation(policy: str) -> None:
    null = model(window={"policy": policy, "window": 40})
    assert null.open(1, seed=0) is None
    bound = null.usage().reserved
    for _ in range(200):
        events = play(null, Frame(1, SECOND))
        assert not [event for event in events if isinstance(event, Stalled)]
        assert null.blocks(1) <= bound
    null.close(1)
    null.close(1)
    usage = null.usage()
    assert (usage.leased, usage.reserved, usage.total) == (0, 0, 30)


def test_a_pool_too_small_for_one_call_is_refused_when_the_model_is_built() -> None:
    with pytest.raises(ProfileError, match=r"pool\.blocks = 15: one session of this window needs 16"):
        model(pool={"blocks": 15, "block_size": 4}, model={"kind": "null", "header": "a b c"})


# ---- Calls that are answered when they ask ----


def replies(null: NullModel, *frames: Frame) -> list[list[str]]:
    """The replies that come of the frames and of some more in which nothing is said."""
    said = [event for frame in (*frames, *[quiet(1)] * 12) for event in play(null, frame)]
    words = [event for event in said if isinstance(event, Said)]
    starts = [n for n, word in enumerate(words) if word.start] + [len(words)]
    return [[word.text for word in words[a:b]] for a, b in itertools.pairwise(starts)]


def quiet(session: int, **fields: Any) -> Frame:
    """A frame of a call that is answered only when it asks."""
    return Frame(session, NOTHING, duplex=False, **fields)


def test_what_is_said_in_a_call_that_does_not_ask_is_not_answered() -> None:
    null = model("turn")
    null.open(1, seed=0)
    assert replies(null, quiet(1, texts=("hello there",), commit=2)) == []
    assert replies(null, quiet(1, reply=0)) == [list(REPLY)]


@pytest.mark.parametrize(
    ("reply", "most", "length"), [(0, 0, 8), (3, 0, 3), (99, 0, 8), (0, 2, 8), (3, 2, 3)]
)
def test_a_reply_is_as_long_as_was_asked_for(reply: int, most: int, length: int) -> None:
    null = model("turn")
    null.open(1, seed=0)
    assert replies(null, quiet(1, reply=reply, most=most)) == [list(REPLY[:length])]


def test_a_reply_that_was_cut_says_so() -> None:
    null = model("turn")
    null.open(1, seed=0)
    said = [event for event in play(null, quiet(1, reply=2)) if isinstance(event, Said)]
    assert [(event.end, event.cut) for event in said] == [(False, False), (True, True)]


def test_a_reply_asked_for_during_another_waits_for_its_end() -> None:
    null = model("turn")
    null.open(1, seed=0)
    assert replies(null, quiet(1, reply=0), quiet(1, reply=2)) == [list(REPLY), list(REPLY[:2])]


def test_every_commit_is_told_with_its_frame() -> None:
    null = model("turn")
    null.open(1, seed=0)
    (event,) = play(null, quiet(1, commit=3))
    assert isinstance(event, Prefilled)
    assert event.over == 3


def test_a_reply_that_got_no_block_is_lost_and_the_next_is_not() -> None:
    null = model("turn", window={"policy": "unbounded"}, pool={"blocks": 2, "block_size": 4})
    null.open(1, seed=0)
    assert play(null, quiet(1, texts=("six words that do not fit",), reply=0)) == [Stalled(1, 6, reply=True)]
    assert play(null, quiet(1)) == [Prefilled(1, 0, speaking=False)]


# ---- Terms ----


def test_a_call_on_smaller_terms_reserves_less() -> None:
    null = model()
    null.open(1, seed=0)
    own = null.usage().reserved
    null.close(1)
    null.open(1, seed=0, terms=Terms(window=20, instructions="two words"))
    assert 0 < null.usage().reserved < own


def test_terms_beyond_the_profile_are_an_error_and_cost_nothing() -> None:
    null = model()
    for terms in (Terms(window=80), Terms(policy="unbounded"), Terms(instructions="word " * 60)):
        with pytest.raises(ProfileError):
            null.open(1, seed=0, terms=terms)
    assert (null.usage().leased, null.usage().reserved) == (0, 0)


def test_who_types_the_most_allowed_in_every_tick_is_held_back_until_it_is_read() -> None:
    null, session = model("turn"), Session(1, 0.0, max_pending_s=1.0)
    null.open(1, seed=0)
    most, refused = 0, 0
    for _ in range(30):
        try:
            session.read("a " * (MAX_PENDING_CHARACTERS // 2), 0.1)
        except InputError:
            refused += 1
        for event in play(null, session.cut()):
            if isinstance(event, Prefilled):
                session.unread = event.unread
        most = max(most, session.unread)
    assert most < MAX_PENDING_CHARACTERS
    assert refused == 29


def test_who_types_nothing_for_ever_is_held_back_too() -> None:
    null, session = model("turn"), Session(1, 0.0, max_pending_s=1.0)
    null.open(1, seed=0)
    for _ in range(20):
        for _ in range(MAX_PENDING_TEXTS):
            session.read("", 0.1)
        for event in play(null, session.cut()):
            if isinstance(event, Prefilled):
                session.unread = event.unread
    assert session.unread > 19 * MAX_PENDING_TEXTS
