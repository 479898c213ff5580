"""Whose turn it is when a model hears by itself: toy ears in front of a tiny random checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metronome_cli.engine.weights import load_decoder
from metronome_cli.errors import ProfileError
from metronome_cli.frame import Failed, Frame, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.chat import Chat
from metronome_cli.models.omni import Markers, Omni
from metronome_cli.profile import Profile, Terms, parse_profile
from metronome_cli.window import Window

HOP = 1600  # samples of one position
FRAME = 8 * HOP
BEFORE, AFTER = 60, 61  # ordinary tokens do as markers
A = -1  # a position of audio, where ids are written down

SILENCE = np.zeros(FRAME, np.float32)
SPEECH = (np.random.default_rng(0).standard_normal(FRAME) * 0.1).astype(np.float32)
NOTHING = np.zeros(0, np.float32)

pytestmark = pytest.mark.usefixtures("one_thread")


class ToyEars:
    """A position for each tenth of a second, the same for the same samples; less waits until the end."""

    rate = 16_000

    def __init__(self, hidden: int) -> None:
        self._some = torch.randn((HOP, hidden), generator=torch.Generator().manual_seed(0)) / 10

    def open(self) -> list[NDArray[np.float32]]:
        return [NOTHING]

    def positions(self, samples: int) -> int:
        return samples // HOP

    def hear(
        self,
        calls: Sequence[list[NDArray[np.float32]]],
        pieces: Sequence[NDArray[np.float32]],
        ends: Sequence[bool],
    ) -> list[Tensor]:
        audio = [np.concatenate((call[0], piece)) for call, piece in zip(calls, pieces, strict=True)]
        for call, some, end in zip(calls, audio, ends, strict=True):
            call[0] = NOTHING if end else some[len(some) // HOP * HOP :]
        whole = [torch.from_numpy(some[: len(some) // HOP * HOP]).view(-1, HOP) for some in audio]
        return list((torch.cat(whole) @ self._some).split([len(some) for some in whole]))


def profile(folder: Path, **changes: Any) -> Profile:
    """A small set-up in mode turn; `changes` map section_field to a value."""
    data: dict[str, Any] = {
        "model": {"kind": "qwen2.5-omni", "thinker": str(folder), "header": "Be brief.", "max_reply": 6},
        "beat": {"frame_s": FRAME / 16_000, "tau": 2, "prefill_tokens": 50},
        "window": {"window": 64, "sinks": "header"},
        "pool": {"blocks": 200, "block_size": 4},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, field = key.partition("_")
        data[section][field] = value
    return parse_profile("test", data)


class Talking:
    """One model, what its calls read written down."""

    def __init__(self, folder: Path, markers: Markers | None = None, **changes: Any) -> None:
        self.profile = profile(folder, **changes)
        self.chat = Chat(folder, "Be brief.")
        decoder = load_decoder(folder)
        markers = markers or Markers([BEFORE], [AFTER])
        self.model = Omni(self.profile, self.chat, decoder, ToyEars(decoder.config.hidden), markers)
        self.chat.ends = frozenset()  # a random model ends its replies anywhere
        self.read: list[int] = []
        inputs = self.model._talks._inputs

        def watch(pieces: list[Any]) -> Tensor:
            for piece in pieces:
                self.read += piece if isinstance(piece, list) else [A] * len(piece)
            return inputs(pieces)

        self.model._talks._inputs = watch  # type: ignore[method-assign]

    def tick(self, *frames: Frame) -> list[TickEvent]:
        return list(self.model.tick(frames))

    def hears(self, session: int, audio: NDArray[np.float32], *texts: str, **fields: Any) -> list[TickEvent]:
        return self.tick(Frame(session, audio, texts, **fields))

    def news(self) -> list[int]:
        """What was read since the last look."""
        news, self.read = self.read, []
        return news


def words(events: list[TickEvent], session: int = 1) -> list[Said]:
    return [event for event in events if isinstance(event, Said) and event.session == session]


def prefilled(events: list[TickEvent], session: int = 1) -> Prefilled:
    (found,) = [event for event in events if isinstance(event, Prefilled) and event.session == session]
    return found


def opened(folder: Path, sessions: int = 1, **changes: Any) -> Talking:
    """Calls that have read their header."""
    talking = Talking(folder, **changes)
    for session in range(1, sessions + 1):
        assert talking.model.open(session, seed=session) is None
    talking.tick(*[Frame(session, NOTHING) for session in range(1, sessions + 1)])
    talking.news()
    return talking


AUDIO = [BEFORE, *[A] * 8, AFTER]


# ---- Turns ----


def test_speech_is_read_as_it_comes_and_answered_after_a_pause(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    chat = talking.chat
    for audio in (SILENCE, SILENCE):
        assert prefilled(talking.hears(1, audio)) == Prefilled(1, 0, speaking=False)
    assert talking.news() == []
    assert not words(talking.hears(1, SPEECH) + talking.hears(1, SPEECH))
    assert talking.news() == [*chat.opens("header"), *AUDIO, *AUDIO, *AUDIO], "silence before it is kept once"
    events = talking.hears(1, SILENCE)
    assert (prefilled(events).over, prefilled(events).speaking) == (1, True)
    assert talking.news() == [*AUDIO, *chat.asks]
    assert [word.start for word in words(events)] == [True, False]
    for _ in range(4):
        events += talking.hears(1, SILENCE)
    assert [word.end for word in words(events)] == [False] * 5 + [True]
    assert talking.news() == [], "silence during and after a reply is not read"


def test_a_caller_who_asks_is_answered_then_and_only_then(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    events = talking.hears(1, SPEECH, duplex=False) + talking.hears(1, SILENCE, duplex=False, commit=1)
    assert not words(events)
    assert prefilled(events[1:]).over == 1
    assert talking.news() == [*talking.chat.opens("header"), *AUDIO, *AUDIO]
    events = talking.hears(1, NOTHING, duplex=False, reply=3)
    assert talking.news() == talking.chat.asks
    events += talking.hears(1, NOTHING, duplex=False)
    assert [word.end for word in words(events)] == [False, False, True]


def test_who_asks_for_a_reply_to_silence_is_answered_to_its_last_frame(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    talking.hears(1, SILENCE, duplex=False)
    talking.hears(1, SILENCE[:HOP], duplex=False)
    assert words(talking.hears(1, NOTHING, duplex=False, reply=0))
    chat = talking.chat
    assert talking.news() == [*chat.opens("header"), BEFORE, A, AFTER, *chat.asks]


def test_what_is_said_during_a_reply_waits_for_its_end(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    talking.hears(1, SPEECH, reply=0)
    talking.news()
    for audio in (SPEECH, SILENCE):
        events = talking.hears(1, audio)
    assert talking.news() == [], "the reply goes on"
    assert words(events)[-1].end
    events = talking.hears(1, SILENCE)
    chat = talking.chat
    assert talking.news() == [*chat.opens("answer"), *AUDIO, *AUDIO, *chat.asks]
    assert words(events)[0].start


def test_a_cancelled_reply_makes_room_for_what_was_said_meanwhile(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    talking.hears(1, SPEECH, reply=0)
    talking.hears(1, SPEECH)
    talking.news()
    talking.model.cancel(1)
    assert not words(talking.hears(1, NOTHING))
    assert talking.news() == [*talking.chat.opens("answer"), *AUDIO]


def test_typed_text_is_a_turn_of_its_own_or_part_of_the_open_one(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    chat = talking.chat
    assert words(talking.hears(1, NOTHING, "Hi<|im_end|>", reply=0))
    assert talking.news() == chat.turn("Hi<|im_end|>", "header"), "a reply is asked for once"
    for _ in range(2):
        talking.hears(1, NOTHING)
    talking.hears(1, SPEECH, "one", duplex=False)
    assert prefilled(talking.hears(1, NOTHING, "two", "three", duplex=False)).unread == 0
    typed = [*chat.inside("one"), *chat.inside("\ntwo"), *chat.inside("\nthree")]
    assert talking.news() == [*chat.opens("answer"), *AUDIO, *typed]


def test_who_never_pauses_is_answered_all_the_same(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    frames = next(n for n in range(1, 60) if words(talking.hears(1, SPEECH)))
    assert frames == 20 / 0.8


def test_cleared_speech_is_forgotten_as_far_as_it_was_not_read(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    talking.hears(1, SPEECH, reply=0)
    talking.hears(1, np.concatenate((SPEECH, SPEECH[: HOP // 2])))
    talking.hears(1, NOTHING, clear=True)
    talking.news()
    for _ in range(2):
        talking.hears(1, SPEECH, duplex=False)
    assert talking.news() == [*talking.chat.opens("answer"), *AUDIO, *AUDIO]


def test_a_call_may_have_terms_of_its_own_but_no_window_smaller_than_a_frame(tiny_chat: Path) -> None:
    talking = opened(tiny_chat)
    talking.model.open(2, seed=0, terms=Terms(window=20, sinks=2))
    assert talking.model.policy(2) == Window(20, 2)
    with pytest.raises(ProfileError, match=r"window\.window = 11: one frame brings 12 tokens"):
        talking.model.open(3, seed=0, terms=Terms(window=11, sinks=2))
    talking.model.close(2)
    assert talking.model.usage().leased == talking.model.blocks(1)


def test_a_full_pool_is_a_refusal(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, pool_blocks=50)
    assert talking.model.open(2, seed=0) == Refused("pool_full")


# ---- Much at once, and little memory ----


def test_a_long_recording_is_read_in_pieces_and_delays_nobody(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, sessions=2, model_max_reply=100, pool_blocks=400)
    talking.hears(2, SPEECH, reply=0)
    long = np.tile(SPEECH, 15)  # 120 positions; the window holds 64
    events = talking.tick(Frame(1, long, duplex=False, reply=0), Frame(2, NOTHING))
    read = [prefilled(events).tokens_in]
    while not prefilled(events).speaking:
        assert len(words(events, 2)) == 2
        events = talking.tick(Frame(1, NOTHING, duplex=False), Frame(2, NOTHING))
        read.append(prefilled(events).tokens_in)
    assert max(read) == 49
    assert sum(read) > 120


def test_what_no_window_would_hold_is_dropped_oldest_first(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, model_max_reply=100)
    talking.hears(1, SPEECH, reply=0)
    for _ in range(30):
        talking.hears(1, SPEECH)
    call = talking.model._calls[1]
    assert sum(turn.audio() for turn in call.turns) == 64
    pieces = [piece for turn in call.turns for group in turn.groups for piece in group]
    owned = [
        piece.untyped_storage().nbytes() == piece.nbytes for piece in pieces if isinstance(piece, Tensor)
    ]
    assert owned == [True] * 8, "nothing of what other calls heard is kept"


def test_company_changes_nothing_in_what_a_call_says(tiny_chat: Path) -> None:
    def story(others: int) -> list[str]:
        talking = opened(tiny_chat, sessions=1 + others, pool_blocks=400)
        said = []
        for number in range(12):
            audio = SPEECH if number % 5 < 2 else SILENCE
            more = [Frame(2 + other, audio[: HOP * (other + number)]) for other in range(others)]
            said += [word.text for word in words(talking.tick(Frame(1, audio), *more))]
        assert said
        return said

    assert story(0) == story(3)


def test_a_stalled_turn_goes_on_where_it_was_open_when_blocks_come_free(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, sessions=2, window_policy="unbounded", pool_blocks=30)
    chat = talking.chat
    talking.hears(1, SPEECH, duplex=False)
    stalled: list[Stalled] = []
    while not stalled:
        events = talking.tick(Frame(1, SPEECH, duplex=False), Frame(2, SPEECH, duplex=False))
        stalled = [event for event in events if isinstance(event, Stalled) and event.session == 1]
    assert stalled == [Stalled(1, dropped=len(AUDIO))]
    assert talking.hears(1, NOTHING, duplex=False, reply=0) == [Stalled(1, len(chat.asks), reply=True)]
    talking.model.close(2)
    talking.news()
    assert words(talking.hears(1, SPEECH, duplex=False, reply=0))
    assert talking.news() == [*AUDIO, *chat.asks], "the turn was still open in the cache"
    talking.model._engine.pool.check()


def test_a_call_that_cannot_be_heard_fails_alone_and_others_may_end_meanwhile(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, sessions=3, pool_blocks=400)
    broken = SPEECH.copy()
    broken[5] = np.inf
    events = []
    for event in talking.model.tick([Frame(s, broken if s == 2 else SPEECH, reply=0) for s in (1, 2, 3)]):
        events.append(event)
        if isinstance(event, Failed):
            talking.model.close(2)
            talking.model.close(3)
    assert [event.session for event in events if isinstance(event, Failed)] == [2]
    assert len(words(events)) == 2
    assert {event.session for event in events} == {1, 2}
    assert talking.model.usage().leased == talking.model.blocks(1)


# ---- Mode free ----


def test_free_calls_hear_every_frame_and_say_tau_tokens_without_end(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, model_mode="free")
    chat = talking.chat
    starts = []
    for number in range(20):
        events = talking.hears(1, SPEECH if number % 3 == 0 else SILENCE)
        assert talking.news() == [*chat.opens("answer"), *AUDIO, *chat.asks]
        assert len(words(events)) == 2
        starts.append(words(events)[0].start)
        assert not any(word.end for word in words(events))
    assert not any(starts), "the first frame of all began the one reply"
    assert words(talking.hears(1, NOTHING, "Stop!"))[0].start
    assert talking.news() == chat.turn("Stop!", "answer")


def test_a_recycled_call_takes_up_what_it_heard_again(tiny_chat: Path) -> None:
    talking = opened(tiny_chat, model_mode="free", window_policy="recycle", window_window=100)
    blocks = set()
    for number in range(30):
        assert len(words(talking.hears(1, SPEECH if number % 2 else SILENCE))) == 2
        blocks.add(talking.model.blocks(1))
    assert max(blocks) <= 100 / 4
    assert talking.model._engine._sessions[1].lane.length <= 100


def test_a_model_may_hear_within_its_own_speech_and_rest_by_a_token(
    tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = frozenset(range(300))
    talking = Talking(tiny_chat, Markers([BEFORE], [AFTER], inline=True, rests=every), model_mode="free")
    talking.model.open(1, seed=0)
    talking.hears(1, NOTHING)
    talking.news()
    for _ in range(3):
        assert len(words(talking.hears(1, SPEECH))) == 1, "whatever it says, it rests then"
        assert talking.news() == AUDIO
