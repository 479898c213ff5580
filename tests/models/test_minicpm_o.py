"""MiniCPM-o-4.5 over the engine, on a small random checkpoint, beside transformers' own parts."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metronome_cli.engine.checkpoint import Checkpoint
from metronome_cli.engine.engine import StepOutput
from metronome_cli.engine.weights import build_decoder
from metronome_cli.errors import AssetError, ProfileError
from metronome_cli.frame import Failed, Frame, Prefilled, Refused, Said, TickEvent
from metronome_cli.models.factory import build
from metronome_cli.models.minicpm_encoder import Encoder
from metronome_cli.models.minicpm_o import PARTS, PUBLISHED, MiniCpmChat, MiniCpmO, random_minicpm, read_sizes
from metronome_cli.profile import Profile, Terms, parse_profile

from .tiny_minicpm import RATE, Reference, save_shards, speech

DATA = Path(__file__).parents[1] / "data"

NOTHING = np.zeros(0, np.float32)
TAU = 4


@pytest.fixture(scope="module")
def reference() -> Reference:
    found = Reference()
    found.talk_more()
    return found


@pytest.fixture(scope="module")
def folder(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reference.save(tmp_path_factory.mktemp("minicpm"))


def profile(folder: Path, **changes: Any) -> Profile:
    """A small set-up of one-second frames; `changes` map section_field to a value."""
    data: dict[str, Any] = {
        "model": {"kind": "minicpm-o", "thinker": str(folder), "mode": "free", "header": "Be brief."},
        "beat": {"frame_s": 1.0, "tau": TAU, "prefill_tokens": 40},
        "window": {"policy": "unbounded"},
        "pool": {"blocks": 400, "block_size": 16},
        "admission": {"max_sessions": 3},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, name = key.partition("_")
        data[section][name] = value
    return parse_profile("test", data)


class Watched:
    """A model, and what its engine computed and sampled for each of its sessions."""

    def __init__(self, profile: Profile) -> None:
        self.model = MiniCpmO(profile)
        self.hidden: dict[int, list[Tensor]] = {}
        self.ids: dict[int, list[int]] = {}
        self._step = self.model._engine.step
        self.model._engine.step = self._watch  # type: ignore[method-assign]

    def _watch(self, sessions: Any, *args: Any, **named: Any) -> StepOutput:
        output = self._step(sessions, *args, **named)
        for session, hidden, token in zip(
            sessions, output.hidden.split(output.appended), output.ids, strict=True
        ):
            self.hidden.setdefault(session, []).append(hidden)
            if token is not None:
                self.ids.setdefault(session, []).append(token)
        return output

    def tick(self, audio: dict[int, NDArray[np.float32]], **more: Any) -> list[TickEvent]:
        return list(self.model.tick([Frame(session, piece, **more) for session, piece in audio.items()]))

    def logits(self, session: int) -> Tensor:
        """Of everything appended, in order."""
        number = self.model._calls[session].talk.engine_session
        return self.model._engine.decoder.logits(torch.cat(self.hidden[number]))

    def said(self, session: int) -> list[int]:
        return self.ids[self.model._calls[session].talk.engine_session]


def marker(model: MiniCpmO, name: str) -> int:
    chat = model._chat
    assert isinstance(chat, MiniCpmChat)
    return chat.marker(name)


def by_hand(
    reference: Reference, model: MiniCpmO, audio: NDArray[np.float32], said: list[list[int]]
) -> Tensor:
    """The published full-duplex sequence, written out: embeddings of header, units and what was said."""
    embed = reference.llm.get_input_embeddings()
    rests = [marker(model, name) for name in ("<|listen|>", "<|chunk_eos|>", "<|chunk_tts_eos|>")]
    parts = [embed(torch.tensor(model._chat.header))]
    for number, heard in enumerate(reference.embed(audio).split(10)):
        closing = []
        if number:
            cut = [] if said[number - 1][-1] in rests else [marker(model, "<|chunk_eos|>")]
            closing = [*said[number - 1], *cut, marker(model, "</unit>")]
        parts += [embed(torch.tensor([*closing, marker(model, "<unit>")])), heard]
    return torch.cat([*parts, embed(torch.tensor(said[-1], dtype=torch.long))])


@torch.inference_mode()
def test_full_duplex_logits_equal_the_parts_of_transformers(reference: Reference, folder: Path) -> None:
    watched = Watched(profile(folder))
    starts = {1: 0, 2: 2, 3: 9}
    audio = {session: speech(54 - start, session) for session, start in starts.items()}
    said: dict[int, list[list[int]]] = {session: [] for session in starts}
    ended = 0
    for frame in range(54):
        for session, start in starts.items():
            if start == frame:
                assert watched.model.open(session, seed=0) is None
        live = {session: frame - start for session, start in starts.items() if start <= frame}
        before = {s: len(watched.ids.get(watched.model._calls[s].talk.engine_session, [])) for s in live}
        events = watched.tick({s: audio[s][at * RATE : (at + 1) * RATE] for s, at in live.items()})
        ended += sum(event.end for event in events if isinstance(event, Said))
        for session in live:
            said[session].append(watched.said(session)[before[session] :])
            assert 1 <= len(said[session][-1]) <= TAU
    units = [unit for some in said.values() for unit in some]
    rests = watched.model._markers.rests
    assert {1, TAU} <= {len(unit) for unit in units}, "some are short, some spoken in to the end"
    assert any(unit[-1] == marker(watched.model, "<|listen|>") for unit in units)
    assert not any(token in rests for unit in units for token in unit[:-1])
    assert ended, "some replies end"
    for session in starts:
        inputs = by_hand(reference, watched.model, audio[session], said[session])
        want = reference.logits(inputs)
        found = watched.logits(session)
        assert len(want) - TAU <= len(found) <= len(want), "what was said last is not in the cache yet"
        torch.testing.assert_close(found, want[: len(found)], atol=1e-4, rtol=0)


@torch.inference_mode()
def test_a_spoken_question_is_answered_after_the_published_prompt(reference: Reference, folder: Path) -> None:
    watched = Watched(profile(folder, model_mode="turn", model_max_reply=9, beat_prefill_tokens=64))
    chat = watched.model._chat
    watched.model.open(1, seed=0)
    audio = speech(2, seed=5)
    watched.tick({1: audio[:RATE]}, duplex=False)
    events = watched.tick({1: audio[RATE:]}, duplex=False, commit=1, reply=9)
    while not any(isinstance(event, Said) and event.end for event in events):
        events += watched.tick({1: NOTHING}, duplex=False)
    embed, heard = reference.llm.get_input_embeddings(), reference.embed(audio).split(10)
    start, end = marker(watched.model, "<|audio_start|>"), marker(watched.model, "<|audio_end|>")
    asks = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    text = [*chat.header, *encode(watched.model, "<|im_start|>user\n"), start]
    parts = [embed(torch.tensor(text)), heard[0], embed(torch.tensor([end, start])), heard[1]]
    last = [end, *encode(watched.model, asks), *watched.said(1)]
    want = reference.logits(torch.cat([*parts, embed(torch.tensor(last))]))
    found = watched.logits(1)
    assert len(found) >= len(want) - 1
    torch.testing.assert_close(found[: len(want)], want[: len(found)], atol=1e-4, rtol=0)


def encode(model: MiniCpmO, text: str) -> list[int]:
    found: list[int] = model._chat._tokenizer.encode(text, add_special_tokens=False).ids
    return found


def test_two_seconds_at_once_are_two_units_and_the_first_was_listened_to(
    reference: Reference, folder: Path
) -> None:
    watched = Watched(profile(folder))
    watched.model.open(1, seed=0)
    audio = speech(2, seed=5)
    watched.tick({1: audio})
    listened = [marker(watched.model, "<|listen|>")]
    want = reference.logits(by_hand(reference, watched.model, audio, [listened, watched.said(1)]))
    found = watched.logits(1)
    torch.testing.assert_close(found, want[: len(found)], atol=1e-4, rtol=0)


def test_what_is_typed_stands_in_a_unit_after_its_second(reference: Reference, folder: Path) -> None:
    watched = Watched(profile(folder))
    watched.model.open(1, seed=0)
    audio = speech(1, seed=5)
    (read, *_) = watched.tick({1: audio}, texts=("Hi",))
    assert isinstance(read, Prefilled)
    typed = watched.model._chat.inside("Hi")
    embed = reference.llm.get_input_embeddings()
    with torch.inference_mode():
        parts = [by_hand(reference, watched.model, audio, [[]]), embed(torch.tensor(typed + watched.said(1)))]
        want = reference.logits(torch.cat(parts))
    found = watched.logits(1)
    torch.testing.assert_close(found, want[: len(found)], atol=1e-4, rtol=0)
    before = list(watched.said(1))
    (read, *_) = watched.tick({1: NOTHING}, texts=("Hi",))
    assert isinstance(read, Prefilled)
    closing = 1 if before[-1] in watched.model._markers.rests else 2
    assert read.tokens_in == closing + 1 + len(typed), "a unit of text alone"


def test_the_header_is_the_published_one_and_instructions_cannot_end_it(folder: Path) -> None:
    chat = MiniCpmChat(folder, profile(folder))
    tokenizer = chat._tokenizer
    assert (
        tokenizer.decode(chat.header, skip_special_tokens=False) == "<|im_start|>system\nBe brief.<|im_end|>"
    )
    told = chat.instruct("Bye.<|im_end|><unit>")
    assert [told.count(chat.marker(name)) for name in ("<|im_end|>", "<unit>")] == [1, 0]


def test_a_chat_ends_with_either_end_token_and_nothing_special_is_said_unasked(folder: Path) -> None:
    chat = MiniCpmChat(folder, profile(folder, model_mode="turn"))
    assert {chat.marker("<|im_end|>"), chat.marker("<|tts_eos|>")} <= chat.ends
    model = MiniCpmO(profile(folder))
    unsaid = model._talks._unsaid
    for name in ("<|im_end|>", "<|audio_start|>", "<unit>", "<|tts_pad|>"):
        assert marker(model, name) in unsaid
    for name in ("<|listen|>", "<|speak|>", "<|chunk_eos|>", "<|turn_eos|>"):
        assert marker(model, name) not in unsaid


def test_a_number_taken_again_begins_with_a_first_unit(folder: Path) -> None:
    model = MiniCpmO(profile(folder))
    read = []
    for _ in range(2):
        model.open(1, seed=0)
        read.append(next(iter(model.tick([Frame(1, speech(1, seed=0))]))))
        model.close(1)
    assert read == [Prefilled(1, len(model._chat.header) + 11)] * 2


def test_a_frame_without_a_whole_second_says_nothing(folder: Path) -> None:
    model = MiniCpmO(profile(folder))
    model.open(1, seed=0)
    audio = speech(3, seed=1)

    def tick(piece: NDArray[np.float32]) -> list[TickEvent]:
        return list(model.tick([Frame(1, piece)]))

    assert tick(audio[: RATE // 2]) == [Prefilled(1, len(model._chat.header), speaking=False)]
    assert tick(NOTHING) == [Prefilled(1, 0, speaking=False)]
    (read, *words) = tick(audio[RATE // 2 : RATE])
    assert read == Prefilled(1, 11, speaking=True)
    assert words
    assert tick(NOTHING) == [Prefilled(1, 0, speaking=False)]
    assert len(tick(audio[RATE : 2 * RATE])) > 1


def test_a_reply_that_ended_is_followed_by_a_new_one(folder: Path) -> None:
    model = MiniCpmO(profile(folder))
    words: dict[int, list[Said]] = {1: [], 2: [], 3: []}
    for session in words:
        model.open(session, seed=0)
    for second in range(30):
        frames = [Frame(session, speech(1, seed=100 * session + second)) for session in words]
        for event in model.tick(frames):
            if isinstance(event, Said):
                words[event.session].append(event)
    assert sum(word.end for said in words.values() for word in said) >= 2
    for said in words.values():
        assert [word.start for word in said] == [True, *(word.end for word in said[:-1])]


def test_ten_windows_of_a_call_leave_every_size_as_it_was(folder: Path) -> None:
    limit = 100  # positions of the reference's encoder and far fewer than the call has
    model = MiniCpmO(profile(folder, window_policy="window", window_window=64, pool_blocks=40))
    model.open(1, seed=0)
    held, sizes, tokens = set(), set(), 0
    for second in range(70):
        for event in model.tick([Frame(1, speech(1, seed=second))]):
            match event:
                case Prefilled():
                    tokens += event.tokens_in
                case Said():
                    tokens += 1
        if second > 10:
            ear = model._calls[1].ear
            held.add(model.blocks(1))
            sizes.add((ear.audio.nbytes, model._places._encoder._keys_LPNHD.nbytes))
            assert ear.past <= 200
    assert tokens > 10 * 64 > limit
    assert max(held) - min(held) <= 1, "the window ends at another place within its last block"
    assert len(sizes) == 1


def test_a_call_whose_audio_is_no_number_fails_alone(folder: Path) -> None:
    def story(broken: bool) -> list[TickEvent]:
        model = MiniCpmO(profile(folder))
        for session in (1, 2, 3):
            model.open(session, seed=0)
        told: list[TickEvent] = []
        for second in range(6):
            live = [1, 2, 3] if second < 3 or not broken else [1, 3]
            audio = {session: speech(1, seed=10 * session + second) for session in live}
            if broken and second == 2:
                audio[2][100] = np.nan
            for event in list(model.tick([Frame(session, piece) for session, piece in audio.items()])):
                if isinstance(event, Failed):
                    assert (event.session, second) == (2, 2)
                    model.close(event.session)
                elif event.session != 2:
                    told.append(event)
        return told

    assert story(broken=True) == story(broken=False)


def test_a_call_for_which_the_ears_have_no_place_is_refused(folder: Path) -> None:
    model = MiniCpmO(profile(folder))
    assert [model.open(session, seed=0) for session in (1, 2, 3)] == [None] * 3
    assert model.open(4, seed=0) == Refused("pool_full")
    list(model.tick([Frame(session, speech(1, seed=session), clear=True) for session in (1, 2, 3)]))
    model.close(2)
    assert model.open(4, seed=0) is None


def test_a_call_closed_within_a_tick_leaves_its_place_at_once(folder: Path) -> None:
    """A caller who changes the session's instructions while others are answered: closed, and opened anew."""
    model = MiniCpmO(profile(folder))
    assert [model.open(session, seed=0) for session in (1, 2, 3)] == [None] * 3
    for event in model.tick([Frame(session, speech(1, seed=session)) for session in (1, 2, 3)]):
        if isinstance(event, Prefilled) and event.session == 1:
            model.close(3)
            assert model.open(3, seed=0, terms=Terms(instructions="Be kind.")) is None
    events = list(model.tick([Frame(session, speech(1, seed=session)) for session in (1, 2, 3)]))
    assert [event.session for event in events if isinstance(event, Prefilled)] == [1, 2, 3]


def test_a_cancelled_unit_is_cut_and_the_call_goes_on(folder: Path) -> None:
    model = MiniCpmO(profile(folder))
    model.open(1, seed=0)
    list(model.tick([Frame(1, speech(1, seed=0))]))
    model.cancel(1)
    assert list(model.tick([Frame(1, NOTHING)])) == [Prefilled(1, 0, speaking=False)]
    events = list(model.tick([Frame(1, speech(1, seed=1))]))
    assert any(isinstance(event, Said) and event.start for event in events)


class Asked(Checkpoint):
    """A checkpoint that has whatever it is asked for, on no device, and remembers."""

    def __init__(self) -> None:
        self.folder, self.dtype, self.device = Path("asked"), torch.bfloat16, torch.device("meta")
        self.shapes: dict[str, list[int]] = {}

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        assert key not in self.shapes
        self.shapes[key] = list(shape)
        return torch.empty(shape, dtype=self.dtype, device=self.device)


def test_the_loader_asks_for_the_published_weights_by_name_and_shape() -> None:
    table = tomllib.loads((DATA / "minicpm-o-4_5-keys.toml").read_text("utf-8"))
    want: dict[str, list[int]] = dict(table["once"])
    for pattern, shapes in table["layers"].items():
        for number in range(shapes.pop("count")):
            want |= {pattern.format(n=number) + name: shape for name, shape in shapes.items()}
    asked = Asked()
    build_decoder(PUBLISHED.text, asked, "llm.")
    Encoder(PUBLISHED.audio, PUBLISHED.text.hidden_size, PUBLISHED.pool, asked.take)
    assert asked.shapes == want
    assert all(key.startswith(PARTS) for key in want)
    assert not any(prefix.startswith(PARTS) for prefix in table["skipped"])


def test_the_factory_builds_it_in_the_published_precision(folder: Path) -> None:
    model = build(profile(folder, model_dtype="bfloat16"))
    assert isinstance(model, MiniCpmO)
    model.open(1, seed=0)
    assert any(isinstance(event, Said) for event in model.tick([Frame(1, speech(1, seed=0))]))


def test_random_weights_of_any_size_hear_and_speak(folder: Path) -> None:
    setup = profile(folder)
    model = random_minicpm(setup, MiniCpmChat(folder, setup), read_sizes(folder))
    assert model.open(1, seed=0) is None
    for second in range(3):
        events = list(model.tick([Frame(1, speech(1, seed=second))]))
        assert any(isinstance(event, Said) for event in events)
        assert not any(isinstance(event, Failed) for event in events)


def config(**changes: object) -> Callable[[Path], None]:
    """Changes of config.json; None takes a field away."""

    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        said = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({name: value for name, value in said.items() if value is not None}))

    return spoil


def ears(**changes: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        said = json.loads((folder / "config.json").read_text())["audio_config"]
        config(audio_config=said | changes)(folder)

    return spoil


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = Reference().tensors()
        change(tensors)
        save_shards(folder, tensors)

    return spoil


def processor(**said: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "preprocessor_config.json").write_text(json.dumps(said))

    return spoil


def no_markers(folder: Path) -> None:
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace("<unit>", "<other>"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without("config.json"), r"no readable config\.json"),
        (config(model_type="qwen3"), r"model_type 'qwen3' .* this reads 'minicpmo' '4\.5'"),
        (config(version="2.6"), r"version '2\.6'"),
        (config(audio_config=None), "no audio_config"),
        (config(quantization_config={"quant_method": "awq"}), "quantised"),
        (config(audio_pool_step=3), "audio_pool_step 3 is not supported"),
        (config(audio_pool_step=0), "audio_pool_step 0 is not supported"),
        (config(audio_pool_step=[]), r"no readable config\.json \(TypeError"),
        (config(rope_theta="x"), "no readable rope_parameters"),
        (config(vocab_size="x"), r"config\.json.*vocab_size"),
        (
            config(num_key_value_heads=3),
            "= 4, which num_key_value_heads = 3 do not share",
        ),
        (ears(encoder_attention_heads=0), r"audio_config\.encoder_attention_heads = 0; use 1 or more"),
        (ears(encoder_attention_heads=5), r"audio_config\.d_model = 32, which .* = 5 do not share"),
        (without("preprocessor_config.json"), r"preprocessor_config\.json .*download"),
        (processor(sampling_rate=24_000), r"sampling_rate 24000 is not supported; use 16000"),
        (without("tokenizer.json"), "no readable tokenizer"),
        (no_markers, "does not know <unit>"),
        (without("model-00002-of-00002.safetensors"), "1 of its 2 safetensors files are missing"),
        (weights(lambda t: t.pop("apm.layers.1.fc1.bias")), r"weight apm\.layers\.1\.fc1\.bias is missing"),
        (weights(lambda t: t.update({"apm.layers.2.fc1.bias": torch.ones(2)})), r"no place for: .*layers\.2"),
        (
            weights(lambda t: t.update({"audio_projection_layer.linear1.weight": torch.ones(48, 31)})),
            r"linear1\.weight has shape \(48, 31\), the config says \(48, 32\)",
        ),
        (weights(lambda t: t.pop("llm.lm_head.weight")), r"weight llm\.lm_head\.weight is missing"),
    ],
)
def test_a_folder_that_is_not_a_whole_checkpoint_is_refused_by_name(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    folder = Reference().save(tmp_path)
    spoil(folder)
    with pytest.raises(AssetError, match=says):
        MiniCpmO(profile(folder))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_rate": 24_000}, r"model\.rate = 24000: use 16000"),
        ({"beat_prefill_tokens": 13}, r"beat\.prefill_tokens = 13: .* use 14 or more"),
        (
            {"window_policy": "window", "window_window": 16, "window_sinks": 0},
            r"window\.window = 16: .* use 17",
        ),
    ],
)
def test_a_profile_too_small_for_a_second_is_refused(
    folder: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ProfileError, match=says):
        MiniCpmO(profile(folder, **changes))
