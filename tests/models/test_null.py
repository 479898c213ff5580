from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metronome_cli.errors import ProfileError
from metronome_cli.frame import Frame, KvUsage, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.factory import build
from metronome_cli.models.null import HEARD_PER_S, REPLY, NullModel
from metronome_cli.profile import parse_profile

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
