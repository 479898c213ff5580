"""Moshi on a tiny random checkpoint, against transformers' own over the whole call."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import MoshiForConditionalGeneration

from metronome_cli.errors import AssetError, ProfileError
from metronome_cli.frame import Failed, Frame, Prefilled, Refused, Said, Stalled, TickEvent
from metronome_cli.models.factory import build
from metronome_cli.models.moshi import MOST_WAITING, RESERVE, Moshi
from metronome_cli.models.moshi_weights import random_parts
from metronome_cli.models.replay import Replay
from metronome_cli.profile import Profile, Terms, load_profile, parse_profile

from .tiny_moshi import BOOKS, CODES, TEXTS, tiny_config

FRAME = 1920
Reference = tuple[Path, MoshiForConditionalGeneration]


def profile(thinker: Path | str, **changes: Any) -> Profile:
    """A small set-up; `changes` map section_field to a value."""
    data: dict[str, Any] = {
        "model": {"kind": "moshi", "thinker": str(thinker), "mode": "free", "header": "", "rate": 24_000},
        "beat": {"frame_s": 0.08, "tau": 1, "prefill_tokens": 2},
        "window": {"window": 200, "sinks": "header"},
        "pool": {"blocks": 400, "block_size": 4},
        "admission": {"max_sessions": 4},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, name = key.partition("_")
        data[section][name] = value
    return parse_profile("test", data)


@pytest.fixture(scope="module")
def folder(tiny_moshi: Reference) -> Path:
    return tiny_moshi[0]


def speech(seed: int, frames: int) -> NDArray[np.float32]:
    """[frames, FRAME]: noise whose loudness changes frame by frame."""
    random = np.random.default_rng(seed)
    loudness = random.random((frames, 1), np.float32)
    return random.standard_normal((frames, FRAME), np.float32) * loudness * 0.5


def tick(model: Moshi, audio: dict[int, NDArray[np.float32]]) -> list[TickEvent]:
    return list(model.tick([Frame(session, piece) for session, piece in audio.items()]))


def said(events: list[TickEvent], session: int) -> list[Said]:
    return [event for event in events if isinstance(event, Said) and event.session == session]


def play(model: Moshi, session: int, audio: NDArray[np.float32]) -> list[Said]:
    """What one call alone is told, frame by frame."""
    return [word for piece in audio for word in said(tick(model, {session: piece}), session)]


# ---- Against transformers ----


@dataclass
class Watched:
    """What a call's positions were made of and gave, in the order of its frames."""

    texts: list[int] = field(default_factory=list)
    codes: list[Tensor] = field(default_factory=list)
    text_logits: list[Tensor] = field(default_factory=list)
    code_logits: list[Tensor] = field(default_factory=list)
    sound: list[bytes] = field(default_factory=list)


def watch(model: Moshi, calls: dict[int, Watched], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Write down what each position gives. The list returned is to name the calls of the next tick."""
    due: list[int] = []
    streams, logits = model.streams, []
    think, choose = streams.think, streams._depth.choose

    def watched_choose(logits_NB: Tensor, uniform: Tensor) -> Tensor:
        logits.append(logits_NB.clone())
        return choose(logits_NB, uniform)

    def watched_think(ids: list[int], hidden: Tensor, uniform: NDArray[np.float32]) -> None:
        logits.clear()
        think(ids, hidden, uniform)
        text_logits = model.engine.decoder.logits(hidden)
        for row, session in enumerate(due):
            call = calls[session]
            call.texts.append(ids[row])
            call.text_logits.append(text_logits[row])
            call.code_logits.append(torch.stack([of_book[row] for of_book in logits]))
            call.codes.append(streams._own_SK[model._calls[session].slot].clone())

    monkeypatch.setattr(streams, "think", watched_think)
    monkeypatch.setattr(streams._depth, "choose", watched_choose)
    return due


@torch.inference_mode()
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_and_sound_equal_transformers_over_the_whole_call(
    tiny_moshi: Reference, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    folder, reference = tiny_moshi
    model = Moshi(profile(folder, model_temperature=temperature))
    frames, begins = 52, {1: 0, 2: 5, 3: 19}
    audio = {session: speech(session, frames) for session in begins}
    calls = {session: Watched() for session in begins}
    due = watch(model, calls, monkeypatch)
    for now in range(max(begins.values()) + frames):
        for session, begin in begins.items():
            if begin == now:
                assert model.open(session, seed=session) is None
        due[:] = [session for session, begin in begins.items() if begin <= now < begin + frames]
        events = tick(model, {session: audio[session][now - begins[session]] for session in due})
        for session in due:
            (word,) = said(events, session)
            calls[session].sound.append(word.pcm)
    for session, call in calls.items():
        compare(call, audio[session], reference)
    said_ids = {token for call in calls.values() for token in call.texts}
    assert len(said_ids) > 5, "calls that say one thing compare nothing"


def compare(call: Watched, audio: NDArray[np.float32], reference: MoshiForConditionalGeneration) -> None:
    """Everything that a call's positions gave, with one forward of transformers over all of them."""
    positions = len(call.texts)
    heard = torch.from_numpy(audio[1:].reshape(1, 1, -1))  # the first frame is not heard
    heard_KF = reference.audio_encoder.encode(heard, num_quantizers=BOOKS).audio_codes[0]
    own_KP = torch.stack(call.codes, 1)
    user_KP = torch.full((BOOKS, positions), CODES)
    user_KP[0, 1:], user_KP[1:, 2:] = heard_KF[0], heard_KF[1:, :-1]
    moshi_KP = torch.full((BOOKS, positions), CODES)
    moshi_KP[0, 1:], moshi_KP[1:, 2:] = own_KP[0, :-1], own_KP[1:, 1:-1]
    output = reference(
        input_ids=torch.tensor([[TEXTS, *call.texts[:-1]]]),
        user_audio_codes=user_KP[None],
        moshi_audio_codes=moshi_KP[None],
    )
    assert torch.allclose(torch.stack(call.text_logits), output.logits[0], rtol=0, atol=1e-4)
    depth = reference.depth_decoder(
        input_ids=torch.cat((torch.tensor(call.texts)[:, None], own_KP.t()[:, :-1]), 1),
        last_hidden_state=output.last_hidden_state.transpose(0, 1),
    )
    assert torch.allclose(torch.stack(call.code_logits), depth.logits, rtol=0, atol=1e-4)
    spoken_KF = torch.cat((own_KP[:1, :-1], own_KP[1:, 1:]))
    sound = reference.audio_encoder.decode(spoken_KF[None]).audio_values[0, 0].clamp(-1, 1) * 32767
    assert call.sound[0] == b""
    got = torch.frombuffer(bytearray(b"".join(call.sound)), dtype=torch.int16)
    assert (got - sound).abs().max() <= 4  # 1e-4 of full scale


@torch.inference_mode()
def test_greedy_calls_say_what_transformers_generate_says(
    tiny_moshi: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delays, first positions and what is fed back, by `generate`, which hears one blank frame for ever."""
    folder = tiny_moshi[0]
    reference: Any = tiny_moshi[1]
    positions = 12
    told = reference.generate(max_new_tokens=positions, do_sample=False, return_audio_codes=True)
    blank = reference.audio_encoder.encode(torch.zeros(1, 1, FRAME), num_quantizers=BOOKS).audio_codes[..., 0]
    model = Moshi(profile(folder))
    model.open(1, seed=0)
    monkeypatch.setattr(model._parts.codec, "encode", lambda audio, slot: (blank, torch.tensor([True])))
    texts, sound = [], b""
    for _ in range(positions):
        (word,) = said(tick(model, {1: np.zeros(FRAME, np.float32)}), 1)
        texts.append(int(model.streams._text_S[model._calls[1].slot]))
        sound += word.pcm
    assert texts == told.sequences[0, 1:].tolist()
    assert len(set(texts)) > 2
    theirs = told.audio_sequences[0, 0].clamp(-1, 1) * 32767
    ours = torch.frombuffer(bytearray(sound), dtype=torch.int16)
    assert len(ours) == len(theirs) == (positions - 1) * FRAME
    assert (ours - theirs).abs().max() <= 4


# ---- Calls, slots, the beat ----


def test_a_call_alone_and_among_others_says_the_same(folder: Path) -> None:
    alone = Moshi(profile(folder, model_temperature=0.7, model_top_p=0.9))
    alone.open(1, seed=11)
    audio = speech(1, 12)
    expected = play(alone, 1, audio)
    model = Moshi(profile(folder, model_temperature=0.7, model_top_p=0.9))
    model.open(7, seed=3)
    tick(model, {7: speech(7, 1)[0]})
    model.open(1, seed=11)
    model.open(8, seed=4)
    got = []
    for number, piece in enumerate(audio):
        others = {7: speech(7, 20)[number]} | ({8: speech(8, 20)[number]} if number != 5 else {})
        got += said(tick(model, others | {1: piece}), 1)
    same_words(got, expected)


def same_words(got: list[Said], expected: list[Said]) -> None:
    """The same text, and the same sound but for its last bits: batches of another size round otherwise."""
    assert [word.text for word in got] == [word.text for word in expected]
    for one, other in zip(got, expected, strict=True):
        mine, theirs = (np.frombuffer(word.pcm, "<i2").astype(int) for word in (one, other))
        assert len(mine) == len(theirs)
        assert np.abs(mine - theirs).max(initial=0) <= 2


def test_a_new_tenant_of_a_slot_is_told_what_a_fresh_engine_tells(folder: Path) -> None:
    small = profile(folder, admission_max_sessions=1, model_temperature=0.9)
    fresh = Moshi(small)
    fresh.open(1, seed=5)
    expected = play(fresh, 1, speech(1, 10))
    model = Moshi(small)
    model.open(9, seed=1)
    play(model, 9, speech(9, 15))
    assert model.open(1, seed=5) == Refused("pool_full"), "the only slot is taken"
    model.close(9)
    assert model.open(1, seed=5) is None
    assert play(model, 1, speech(1, 10)) == expected


def test_ten_windows_of_free_running_leave_everything_as_large_as_it_was(folder: Path) -> None:
    window = 24
    model = Moshi(profile(folder, window_window=window, window_positions="anchored", model_temperature=1.0))
    for session in (1, 2):
        model.open(session, seed=session)
    memory = model._parts.codec.memory
    remembered = model.streams.slot_bytes
    blocks: list[tuple[int, int]] = []
    audio = speech(1, 10)
    for number in range(10 * window):
        events = tick(model, {session: audio[(number + session) % 10] for session in (1, 2)})
        assert len(said(events, 1)) == len(said(events, 2)) == 1
        blocks.append((model.blocks(1), model.blocks(2)))
    full = blocks[2 * window :]
    assert max(max(full)) - min(min(full)) <= 1  # a window begins anywhere in a block
    assert max(max(blocks)) <= (model._profile.session_blocks(2) or 0)
    assert model.streams.slot_bytes == remembered == memory.slot_bytes + 8 * (1 + 2 * BOOKS)
    assert all(torch.isfinite(kept.double()).all() for kept in memory.of(model._calls[1].slot))
    model.close(1)
    model.close(2)
    assert model.usage().leased == 0


def test_a_call_older_than_what_the_model_was_trained_on_goes_on(
    tiny_moshi: Reference, tmp_path: Path
) -> None:
    config = tiny_config()
    config.sliding_window = 12
    config.max_position_embeddings = 12
    parts = random_parts(config, torch.float32, torch.device("cpu"), slots=1)
    model = Moshi(profile("nowhere", window_window=12, admission_max_sessions=1), parts)
    model.open(1, seed=0)
    words = play(model, 1, speech(1, 40))
    assert len(words) == 40
    assert all(len(word.pcm) == 2 * FRAME for word in words[1:])
    with pytest.raises(ProfileError, match=r"window\.window = 13: use 2 to 12 positions"):
        Moshi(profile("nowhere", window_window=13, admission_max_sessions=1), parts)


def test_what_is_no_sound_ends_its_own_call_alone(folder: Path) -> None:
    def run(poison: float | None) -> list[TickEvent]:
        model = Moshi(profile(folder))
        model.open(1, seed=1)
        model.open(2, seed=2)
        events = []
        for number in range(8):
            audio = {session: speech(session, 8)[number].copy() for session in (1, 2)}
            if number == 4 and poison is not None:
                audio[2][100] = poison
            events += tick(model, audio)
        if poison is not None:
            assert model.open(3, seed=2) is None, "the slot that it left is clean"
            assert [word.text for word in play(model, 3, speech(2, 8))] == words_of_2
        return events

    clean = run(None)
    words_of_2 = [word.text for word in said(clean, 2)]
    for poison in (float("nan"), float("inf"), 3e38):
        events = run(poison)
        same_words(said(events, 1), said(clean, 1))
        (failed,) = [event for event in events if isinstance(event, Failed)]
        assert failed.session == 2
        assert "NaN" in failed.why
        assert len(said(events, 2)) == 4
        assert events.index(failed) > max(events.index(word) for word in said(events, 2))


def test_the_first_frame_is_not_heard_whatever_is_in_it(folder: Path) -> None:
    model = Moshi(profile(folder))
    words = []
    for session, first in ((1, 0.0), (2, float("nan")), (3, 0.5)):
        model.open(session, seed=1)
        audio = speech(1, 6)
        audio[0] = first
        words.append([word.text for word in play(model, session, audio)])
    assert words[0] == words[1] == words[2]
    assert len(words[0]) == 6


def test_a_call_without_blocks_stalls_alone_and_goes_on_where_it_was(folder: Path) -> None:
    model = Moshi(profile(folder, window_policy="unbounded", pool_blocks=6))
    for session in (1, 2):
        model.open(session, seed=session)
    streams, slot = model.streams, model._calls[1].slot
    audio = {session: speech(session, 30) for session in (1, 2)}

    def last() -> list[list[int]]:
        return [
            kept[slot].flatten().tolist() for kept in (streams._text_S, streams._own_SK, streams._heard_SK)
        ]

    for number in range(12):
        events = tick(model, {session: audio[session][number] for session in (1, 2)})
        assert len(said(events, 1)) == len(said(events, 2)) == 1
    before = last()
    for number in range(12, 15):
        events = tick(model, {session: audio[session][number] for session in (1, 2)})
        assert events == [Stalled(1, dropped=1), Stalled(2, dropped=1)]
    assert last() == before
    assert model._calls[1].position == 12
    model.close(2)
    events = [event for piece in audio[1][15:25] for event in tick(model, {1: piece})]
    assert len(said(events, 1)) == 10
    assert model._calls[1].position == 22
    assert last() != before


def test_audio_is_counted_by_samples_not_by_ticks(folder: Path) -> None:
    model = Moshi(profile(folder))
    model.open(1, seed=1)
    audio = speech(1, 8).ravel()
    cuts = [1600, 3840, 3840 + 1919, 3 * 1920 + 1920 + 100, 8 * 1920]
    words, told = [], []
    for begin, end in zip([0, *cuts], [*cuts, cuts[-1]], strict=True):
        events = tick(model, {1: audio[begin:end]})
        words.append(len(said(events, 1)))
        told.append([event for event in events if isinstance(event, Prefilled)])
    # 1600: too little. Then two; 1919: too little; 2021 more: one, and 100 beyond the next stay in reserve;
    # of the rest two a tick, all that waits.
    assert words == [0, 2, 0, 1, 2, 2]
    assert [len(of_tick) for of_tick in told] == [1] * 6
    assert [of_tick[0].speaking for of_tick in told] == [False, True, False, True, True, True]
    whole = Moshi(profile(folder))
    whole.open(1, seed=1)
    again = Moshi(profile(folder))
    again.open(1, seed=1)
    expected = play(whole, 1, audio.reshape(8, FRAME))
    pieces = np.split(audio, range(1000, len(audio), 1000))
    got = [word for piece in pieces for word in said(tick(again, {1: piece}), 1)]
    assert [word.text for word in got] == [word.text for word in expected[: len(got)]]
    assert len(got) == 8


@pytest.mark.parametrize("first", [1500, 1920 - 320, 1920, 1920 + 160, 2500])
def test_a_packet_that_comes_late_leaves_no_tick_without_a_position(folder: Path, first: int) -> None:
    """Packets of 20 ms, one of which comes now before a tick and now after it."""
    model = Moshi(profile(folder))
    model.open(1, seed=1)
    audio = speech(1, 30).ravel()
    ends = [first + FRAME * tick + (RESERVE if tick % 2 else 0) for tick in range(28)]
    spoke = [
        len(said(tick(model, {1: audio[begin:end]}), 1)) for begin, end in zip([0, *ends], ends, strict=False)
    ]
    assert spoke[3:] == [1] * 25


def test_who_sends_nothing_is_heard_as_silence_and_still_spoken_to(folder: Path) -> None:
    silent, quiet = Moshi(profile(folder)), Moshi(profile(folder))
    for model in (silent, quiet):
        model.open(1, seed=1)
    nothing, zeros = np.zeros(0, np.float32), np.zeros(FRAME, np.float32)
    spoken = speech(1, 3)
    got = play(silent, 1, spoken) + [word for _ in range(4) for word in said(tick(silent, {1: nothing}), 1)]
    assert got == play(quiet, 1, spoken) + [
        word for _ in range(4) for word in said(tick(quiet, {1: zeros}), 1)
    ]


def test_what_waits_is_bounded_and_the_oldest_goes(folder: Path) -> None:
    model = Moshi(profile(folder))
    model.open(1, seed=1)
    tick(model, {1: np.ones(100 * FRAME, np.float32)})
    assert len(model._calls[1].waiting) == (MOST_WAITING - 2) * FRAME


def test_text_is_told_piece_by_piece_and_pauses_are_silent(folder: Path) -> None:
    model = Moshi(profile(folder, model_temperature=1.5))
    model.open(1, seed=1)
    words = play(model, 1, speech(1, 60))
    assert words[0].start
    assert not any(word.start for word in words[1:])
    assert any(word.text == "" for word in words)
    spoken = [word.text for word in words if word.text]
    assert all(text.strip()[0].isalpha() for text in spoken)
    assert all(text.startswith(" ") for text in spoken[1:])
    model.cancel(1)
    assert said(tick(model, {1: speech(1, 1)[0]}), 1)[0].start


def test_calls_may_be_closed_and_opened_between_two_events(folder: Path) -> None:
    model = Moshi(profile(folder, admission_max_sessions=2))
    model.open(1, seed=1)
    model.open(2, seed=2)
    frames = [Frame(session, np.tile(speech(session, 1)[0], 2)) for session in (1, 2)]
    events: list[TickEvent] = []
    for event in model.tick(frames):
        if not events:
            model.close(2)
            model.open(3, seed=3)
        events.append(event)
    assert {event.session for event in events} == {1}
    assert len(said(events, 1)) == 2
    assert model._calls[3].position == 0
    assert len(play(model, 3, speech(3, 4))) == 4


def test_a_batch_filled_up_with_scratch_rows_tells_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Moshi(profile(folder, model_temperature=0.8))
    plain.open(1, seed=1)
    expected = play(plain, 1, speech(1, 10))
    monkeypatch.setattr(Replay, "rounded", lambda self, rows: 4)
    model = Moshi(profile(folder, model_temperature=0.8))
    model.open(1, seed=1)
    model.open(2, seed=2)
    got = []
    for number, piece in enumerate(speech(1, 10)):
        bad = np.full(
            FRAME, np.nan, np.float32
        )  # of a call that fails: what is left of it in buffers does no harm
        got += said(tick(model, {1: piece} | ({2: bad} if number in (1, 2) else {})), 1)
    same_words(got, expected)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("field", "value", "cure"),
    [
        ("model_rate", 16_000, r"model\.rate = 16000: .*use 24000"),
        ("beat_frame_s", 2.0, r"beat\.frame_s = 2\.0: .*use 0\.08"),
        ("beat_tau", 6, r"beat\.tau = 6: .*use 1"),
        ("model_mode", "turn", r"model\.mode = .*use free"),
        ("window_window", 3001, r"window\.window = 3001: use 2 to 3000 positions"),
        ("window_window", 1, r"window\.sinks"),
    ],
)
def test_what_moshi_cannot_do_is_refused_with_the_cure(
    folder: Path, field: str, value: Any, cure: str
) -> None:
    with pytest.raises(ProfileError, match=cure):
        Moshi(profile(folder, pool_blocks=2000, **{field: value}))


def test_a_window_below_what_a_frame_spans_is_refused_without_sinks_too(folder: Path) -> None:
    with pytest.raises(ProfileError, match=r"window\.window = 1: use 2 to 3000"):
        Moshi(profile(folder, window_window=1, window_sinks=0))


def test_a_call_on_terms_that_are_not_given_is_refused_and_nothing_is_held(folder: Path) -> None:
    model = Moshi(profile(folder))
    with pytest.raises(ProfileError, match="Moshi takes none"):
        model.open(1, seed=1, terms=Terms(instructions="Be brief."))
    with pytest.raises(ProfileError, match=r"window\.window"):
        model.open(1, seed=1, terms=Terms(window=100_000))
    assert model.usage().reserved == 0
    assert model.open(1, seed=1, terms=Terms(window=50)) is None
    assert model.policy(1).window == 50  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("depth_decoder.lm_heads.weight"), r"depth_decoder\.lm_heads\.weight is missing"),
        (lambda w: w.pop("embed_tokens.7.weight"), r"embed_tokens\.7\.weight is missing"),
        (lambda w: w.update({"decoder.more": torch.ones(1)}), r"no place for: \['decoder\.more'\]"),
        (
            lambda w: w.update({"audio_encoder.more": torch.ones(1)}),
            r"no place for: \['audio_encoder\.more'\]",
        ),
        (
            lambda w: w.update({"decoder.model.layers.1.mlp.fc2.weight": torch.ones(64, 40)}),
            r"decoder\.model\.layers\.1\.mlp\.fc2\.weight has shape \(64, 40\), the config says \(64, 48\)",
        ),
    ],
)
def test_a_weight_that_does_not_fit_is_named(folder: Path, tmp_path: Path, change: Any, message: str) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    weights = load_file(copy / "model.safetensors")
    change(weights)
    save_file(weights, copy / "model.safetensors")
    with pytest.raises(AssetError, match=message):
        Moshi(profile(copy))


def test_a_folder_without_what_is_needed_is_named(folder: Path, tmp_path: Path, tiny_chat: Path) -> None:
    with pytest.raises(AssetError, match="model_type 'llama' is not supported"):
        Moshi(profile(tiny_chat))
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "tokenizer.json").unlink()
    with pytest.raises(AssetError, match=r"(?s)no readable tokenizer.*tokenizer\.json"):
        Moshi(profile(copy))
    (copy / "config.json").write_text((copy / "config.json").read_text().replace('"constant"', '"reflect"'))
    with pytest.raises(AssetError, match=r"audio_encoder_config\.pad_mode = 'reflect' is not supported"):
        Moshi(profile(copy))


@pytest.mark.parametrize(
    ("part", "field", "value", "says"),
    [
        ("", "num_codebooks", 0, r"num_codebooks = 0; use 1 or more"),
        ("depth_decoder_config", "ffn_dim", -2, r"depth_decoder_config\.ffn_dim = -2; use 1 or more"),
        ("audio_encoder_config", "num_hidden_layers", 0, r"audio_encoder_config\.num_hidden_layers = 0"),
        ("audio_encoder_config", "upsampling_ratios", [0], r"upsampling_ratios = \[0\]; use 1 or more"),
        ("audio_encoder_config", "num_filters", 10**12, r"num_filters = 1000000000000: no model has more"),
        ("audio_encoder_config", "compress", "x", r"no readable config\.json|compress = 'x'"),
    ],
)
def test_a_size_that_no_model_has_is_named(
    folder: Path, tmp_path: Path, part: str, field: str, value: object, says: str
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (config[part] if part else config)[field] = value
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(AssetError, match=says):
        Moshi(profile(copy))


def test_the_kind_is_built_and_the_shipped_profile_is_its_own(folder: Path) -> None:
    assert isinstance(build(profile(folder)), Moshi)
    shipped = load_profile("moshi")
    assert (shipped.model.kind, shipped.model.rate, shipped.beat.frame_s) == ("moshi", 24_000, 0.08)
