"""The thinking half of a call, on a tiny random checkpoint and on real weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AddedToken, AutoTokenizer

from metronome_cli.errors import AssetError, ProfileError
from metronome_cli.frame import Frame, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.text import TextModel
from metronome_cli.profile import Profile, Terms, parse_profile
from metronome_cli.window import Window

SILENCE = np.zeros(0, np.float32)


def profile(thinker: Path | str, **changes: Any) -> Profile:
    """A small set-up; `changes` map section_field to a value."""
    data: dict[str, Any] = {
        "model": {"kind": "text", "thinker": str(thinker), "mode": "free", "header": "Be brief."},
        "beat": {"frame_s": 1.0, "tau": 4, "prefill_tokens": 16},
        "window": {"window": 64, "sinks": "header"},
        "pool": {"blocks": 200, "block_size": 4},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, field = key.partition("_")
        data[section][field] = value
    return parse_profile("test", data)


def tick(model: TextModel, texts: dict[int, str | None]) -> list[TickEvent]:
    """All events of one tick in which each session brings a text or nothing."""
    return list(model.tick([Frame(s, SILENCE, (text,) if text else ()) for s, text in texts.items()]))


def said(events: list[TickEvent], session: int) -> list[Said]:
    return [event for event in events if isinstance(event, Said) and event.session == session]


def prefilled(events: list[TickEvent], session: int) -> Prefilled:
    (found,) = [event for event in events if isinstance(event, Prefilled) and event.session == session]
    return found


def test_free_sessions_say_tau_tokens_every_frame_whatever_they_are_told(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, beat_prefill_tokens=60))
    assert model.open(1, seed=1) is None
    assert model.open(2, seed=2) is None
    for number in range(30):
        events = tick(model, {1: "Hello there" if number % 5 == 2 else None, 2: None})
        for session in (1, 2):
            assert len(said(events, session)) == 4
            assert not any(word.end for word in said(events, session))


def test_a_turn_session_rests_until_told_and_after_its_reply(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, model_mode="turn", model_max_reply=6, beat_prefill_tokens=60))
    model.open(1, seed=0)
    assert tick(model, {1: None}) == [Prefilled(1, len(model._chat.header), speaking=False)]
    events = tick(model, {1: "Hi"})
    assert prefilled(events, 1).speaking
    events += tick(model, {1: "And?"})
    reply = said(events, 1)
    assert len(reply) <= 6
    assert [word.end for word in reply] == [False] * (len(reply) - 1) + [True]
    next_reply = said(tick(model, {1: None}), 1)
    assert next_reply, "the second text waited for the first reply and is answered now"
    for _ in range(3):
        last = tick(model, {1: None})
    assert last == [Prefilled(1, 0, speaking=False)]


def test_a_long_text_is_read_in_pieces_and_delays_nobody(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat))
    for session in (1, 2):
        model.open(session, seed=0)
    for _ in range(5):
        tick(model, {1: None, 2: None})
    read = []
    events = tick(model, {1: "a long story " * 20, 2: None})
    while not prefilled(events, 1).speaking:
        assert len(said(events, 2)) == 4
        assert not said(events, 1)
        read.append(prefilled(events, 1).tokens_in)
        events = tick(model, {1: None, 2: None})
    assert set(read) == {15}  # 16 places, one of them for the token said last
    assert len(read) > 5
    assert len(said(events, 1)) == 4


def test_company_changes_nothing_in_what_a_session_says(tiny_chat: Path) -> None:
    def story(others: int) -> list[str]:
        model = TextModel(profile(tiny_chat, pool_blocks=400))
        for session in range(1, others + 2):
            model.open(session, seed=session)
        words = []
        for number in range(12):
            texts = {s: f"I am {s} and this is {number}" * s for s in range(2, others + 2)}
            events = tick(model, {1: "Well?" if number == 3 else None, **texts})
            words += [word.text for word in said(events, 1)]
        return words

    assert story(0) == story(3)


def test_all_unbounded_calls_stall_when_the_pool_is_full_and_go_on_when_one_hangs_up(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, window_policy="unbounded", pool_blocks=30))
    for session in (1, 2):
        model.open(session, seed=session)
    for _ in range(40):
        events = tick(model, {1: None, 2: None})
    assert {event.session for event in events if isinstance(event, Stalled)} == {1, 2}
    assert model.usage().leased == 30
    lost = tick(model, {1: "What now?", 2: None})
    assert next(e for e in lost if isinstance(e, Stalled) and e.session == 1).dropped > 10
    model.close(2)
    for _ in range(3):
        events = tick(model, {1: None})
    assert len(said(events, 1)) == 4
    assert model.usage().leased == model.blocks(1)


def test_a_call_opened_into_a_full_pool_keeps_its_header_for_when_blocks_come_free(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, window_policy="unbounded", pool_blocks=30, model_mode="turn"))
    model.open(1, seed=0)
    tick(model, {1: "x" * 400})
    for _ in range(60):
        tick(model, {1: None})
    model.open(2, seed=0)
    lost = tick(model, {1: "y" * 200, 2: "Hello?"})
    assert Stalled(2, dropped=len(model._chat.turn("Hello?", "header")), reply=True) in lost
    model.close(1)
    heads = [prefilled(tick(model, {2: None}), 2).tokens_in for _ in range(6)]
    assert sum(heads) == len(model._chat.header)
    assert said(tick(model, {2: "Hi"}) + tick(model, {2: None}), 2)


def events_with(model: TextModel, session: int, act: str) -> Iterator[TickEvent]:
    """A tick in which `session` is cancelled or closed right after its first word."""
    for event in model.tick([Frame(1, SILENCE), Frame(2, SILENCE)]):
        yield event
        if isinstance(event, Said) and event.session == session:
            getattr(model, act)(session)


@pytest.mark.parametrize("act", ["cancel", "close"])
def test_a_reply_cancelled_or_closed_in_the_middle_of_a_tick_ends_there(tiny_chat: Path, act: str) -> None:
    model = TextModel(profile(tiny_chat))
    for session in (1, 2):
        model.open(session, seed=session)
    for _ in range(4):
        tick(model, {1: None, 2: None})
    events = list(events_with(model, 1, act))
    assert len(said(events, 1)) == 1
    assert len(said(events, 2)) == 4
    model._engine.pool.check()
    later = tick(model, {1: None, 2: None})
    assert len(said(later, 1)) == (4 if act == "cancel" else 0)
    assert len(said(later, 2)) == 4


def test_a_full_pool_is_a_refusal(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, pool_blocks=40))
    assert model.open(1, seed=0) is None
    assert model.open(2, seed=0) == Refused("pool_full")


def test_a_header_larger_than_the_window_is_refused_at_start(tiny_chat: Path) -> None:
    with pytest.raises(ProfileError, match=r"window\.sinks.*more than the window of 64"):
        TextModel(profile(tiny_chat, model_header="very long " * 40))


@pytest.mark.parametrize("config", ["", "[]", "null", '{"model_type": "llama", "num_attention_heads": 0}'])
def test_a_broken_config_is_not_blamed_on_the_tokenizer(tiny_chat: Path, tmp_path: Path, config: str) -> None:
    shutil.copytree(tiny_chat, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(AssetError, match=r"config\.json") as caught:
        TextModel.check(profile(tmp_path))
    assert "tokenizer" not in str(caught.value)


def test_a_pool_smaller_than_one_session_is_refused_at_start(tiny_chat: Path) -> None:
    with pytest.raises(ProfileError, match=r"pool\.blocks = 5: one session of this window needs \d+ blocks"):
        TextModel(profile(tiny_chat, pool_blocks=5))


@pytest.mark.assets("smollm2-135m-instruct")
def test_real_weights_answer_a_typed_question() -> None:
    model = TextModel(
        profile("smollm2-135m-instruct", model_mode="turn", beat_prefill_tokens=64, window_window=512)
    )
    model.open(1, seed=0)
    events = tick(model, {1: "What is the capital of France?"})
    while not any(word.end for word in said(events, 1)):
        events += tick(model, {1: None})
    assert "Paris" in "".join(word.text for word in said(events, 1))


def test_an_interrupted_reply_and_the_next_one_are_told_apart(tiny_chat: Path) -> None:
    model = TextModel(profile(tiny_chat, beat_prefill_tokens=60))
    model.open(1, seed=0)
    starts = []
    for number in range(6):
        events = tick(model, {1: "Stop!" if number == 3 else None})
        starts.append([word.start for word in said(events, 1)])
    assert [row[0] for row in starts] == [True, False, False, True, False, False]
    assert not any(start for row in starts for start in row[1:])


# ---- Calls that are answered when they ask ----


def turns(tiny_chat: Path, **changes: Any) -> TextModel:
    return TextModel(profile(tiny_chat, model_mode="turn", beat_prefill_tokens=60, **changes))


def quiet(session: int, *texts: str, **fields: Any) -> Frame:
    """A frame of a call that is answered only when it asks."""
    return Frame(session, SILENCE, texts, duplex=False, **fields)


def words(model: TextModel, *frames: Frame) -> list[Said]:
    """All that comes of the frames, one a tick, and of some more in which nothing is said."""
    return [
        event
        for frame in (*frames, *[quiet(frames[0].session)] * 6)
        for event in model.tick([frame])
        if isinstance(event, Said)
    ]


def starts(said: list[Said]) -> int:
    return sum(word.start for word in said)


def test_what_is_said_waits_until_a_reply_is_asked_for_and_goes_in_as_one_turn(tiny_chat: Path) -> None:
    model = turns(tiny_chat, model_max_reply=4)
    model.open(1, seed=0)
    assert words(model, quiet(1, "one"), quiet(1, "two")) == []
    (read,) = [event for event in model.tick([quiet(1, reply=0)]) if isinstance(event, Prefilled)]
    assert read.tokens_in == len(model._chat.turn("one\ntwo", "header"))
    assert read.speaking


LENGTHS = [(0, 0, 6), (3, 0, 3), (99, 0, 6), (0, 2, 6), (3, 2, 3)]


@pytest.mark.parametrize(("reply", "most", "length"), LENGTHS)
def test_a_reply_is_at_most_as_long_as_was_asked_for(
    tiny_chat: Path, monkeypatch: pytest.MonkeyPatch, reply: int, most: int, length: int
) -> None:
    model = turns(tiny_chat, model_max_reply=6)
    monkeypatch.setattr(model._chat, "ends", frozenset())
    model.open(1, seed=0)
    said = words(model, quiet(1, "hello", reply=reply, most=most))
    assert (len(said), said[-1].end, said[-1].cut) == (length, True, True)


def test_a_reply_without_a_single_token_leaves_the_call_as_it_was(
    tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is sampled first is the end token: the call goes on, and so do the others."""
    model = turns(tiny_chat, model_max_reply=4, pool_blocks=400)
    for session in (1, 2):
        model.open(session, seed=session)
    with monkeypatch.context() as all_end:
        all_end.setattr(model._chat, "ends", frozenset(range(100_000)))
        for _ in range(3):
            said = words(model, quiet(1, "hello", reply=0))
            assert [(word.text, word.start, word.end, word.cut) for word in said] == [("", True, True, False)]
    for session in (1, 2):
        assert starts(words(model, quiet(session, "again", reply=0))) == 1
    model._engine.pool.check()


@pytest.mark.parametrize("ticks", [0, 1, 2])
def test_a_reply_cancelled_before_its_first_word_never_comes(tiny_chat: Path, ticks: int) -> None:
    """Its question takes several ticks to read, and stays in the cache."""
    model = turns(tiny_chat, model_max_reply=4)
    model.open(1, seed=0)
    events = list(model.tick([quiet(1, "a long question " * 20, reply=0)]))
    for _ in range(ticks):
        events += model.tick([quiet(1)])
    assert not said(events, 1), "it has not begun yet"
    model.cancel(1)
    assert words(model, quiet(1)) == []
    assert starts(words(model, quiet(1, "again", reply=0))) == 1
    model._engine.pool.check()


def test_a_cancelled_reply_keeps_its_session_and_cache(
    tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = turns(tiny_chat, model_max_reply=100)
    monkeypatch.setattr(model._chat, "ends", frozenset())
    model.open(1, seed=0)
    list(model.tick([quiet(1, "hello", reply=0)]))
    before = model.blocks(1)
    model.cancel(1)
    assert model.blocks(1) >= before > 0
    assert list(model.tick([quiet(1)])) == [Prefilled(1, 0, speaking=False)]


def test_an_unasked_text_is_counted_until_it_is_read(tiny_chat: Path) -> None:
    model = turns(tiny_chat)
    model.open(1, seed=0)
    for _ in range(3):
        (event,) = model.tick([quiet(1, "ten letters", "")])
    assert isinstance(event, Prefilled)
    assert event.unread >= 3 * len("ten letters") + 6


# ---- Terms ----


def test_a_call_may_have_instructions_and_a_window_of_its_own(tiny_chat: Path) -> None:
    model = turns(tiny_chat)
    model.open(1, seed=0)
    own = model.usage().reserved
    model.open(2, seed=0, terms=Terms(window=40, sinks=2, instructions="Be very brief indeed."))
    assert 0 < model.usage().reserved - own < own
    assert model.policy(2) == Window(40, 2)
    (read,) = [event for event in model.tick([quiet(2)]) if isinstance(event, Prefilled)]
    assert read.tokens_in == len(model._chat.instruct("Be very brief indeed.")) != len(model._chat.header)


def test_terms_beyond_the_profile_are_an_error_and_cost_nothing(tiny_chat: Path) -> None:
    model = turns(tiny_chat)
    for terms in (Terms(window=100), Terms(policy="unbounded"), Terms(instructions="very long " * 60)):
        with pytest.raises(ProfileError):
            model.open(1, seed=0, terms=terms)
    assert (model.usage().leased, model.usage().reserved) == (0, 0)


@pytest.fixture
def adding(tiny_chat: Path, tmp_path: Path) -> Callable[[AddedToken], Path]:
    """The checkpoint with one token more in its tokenizer, and its embeddings as they were."""

    def add(token: AddedToken) -> Path:
        folder = shutil.copytree(tiny_chat, tmp_path / "more")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens([token], special_tokens=token.special)
        tokenizer.save_pretrained(folder)
        return folder

    return add


def test_a_special_token_past_the_models_own_is_never_said(adding: Callable[[AddedToken], Path]) -> None:
    """One that fills up batches, as who trains a model on often adds it."""
    folder = adding(AddedToken("<pad>", special=True))
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, -1]}')
    model = TextModel(profile(folder, beat_prefill_tokens=60))
    assert model.open(1, seed=1) is None
    assert len(said(tick(model, {1: "Say <pad> now"}), 1)) == 4
    assert model._talks._unsaid == (0, 1)


def test_words_that_the_model_has_no_embedding_for_are_refused_at_the_start(
    adding: Callable[[AddedToken], Path],
) -> None:
    """Whoever typed one would end the calls of all."""
    folder = adding(AddedToken("<laugh>", special=False))
    with pytest.raises(AssetError, match=r"writes '<laugh>' as (\d+), and the model knows \1 tokens"):
        TextModel.check(profile(folder))
