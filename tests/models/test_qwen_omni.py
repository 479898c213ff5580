"""The Qwen-Omni models against transformers, on tiny random checkpoints saved by it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import WhisperFeatureExtractor

from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.device import block_bytes
from metronome_cli.engine.progress import watched
from metronome_cli.engine.weights import decoder_config, make_rope
from metronome_cli.errors import AssetError, ProfileError
from metronome_cli.frame import Failed, Frame, Said
from metronome_cli.models.chat import Chat
from metronome_cli.models.factory import build
from metronome_cli.models.log_mel import LogMel
from metronome_cli.models.qwen_ears import QwenEars, Waiting
from metronome_cli.models.qwen_omni import _FAMILIES, QwenOmni, _read_config, random_omni
from metronome_cli.profile import Profile, parse_profile

from .tiny_omni import AUDIO_TOKEN, LIMIT, MELS, TinyOmni, save_tiny_omni

KINDS = ("qwen2.5-omni", "qwen3-omni")
FRAME = 5120  # samples of 0.32 s: two chunks of the tiny Qwen2.5, a third of one of Qwen3
POSITIONS = {"qwen2.5-omni": 8, "qwen3-omni": 4}  # of such a frame
TAU = 3

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyOmni:
    return save_tiny_omni(request.param, tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> TinyOmni:
    return save_tiny_omni("qwen2.5-omni", tmp_path_factory.mktemp("qwen25"))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> TinyOmni:
    return save_tiny_omni("qwen3-omni", tmp_path_factory.mktemp("qwen3"))


def profile(tiny: TinyOmni | str, folder: Path | None = None, **changes: Any) -> Profile:
    """A small set-up in mode free; `changes` map section_field to a value."""
    kind = tiny if isinstance(tiny, str) else tiny.kind
    thinker = folder or (tiny.folder if isinstance(tiny, TinyOmni) else "none")
    data: dict[str, Any] = {
        "model": {"kind": kind, "thinker": str(thinker), "mode": "free", "header": "Be brief."},
        "beat": {"frame_s": FRAME / 16_000, "tau": TAU, "prefill_tokens": 64},
        "window": {"policy": "window", "window": 64, "sinks": "header"},
        "pool": {"blocks": 600, "block_size": 8},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, field = key.partition("_")
        data[section][field] = value
    return parse_profile("test", data)


def noise(seed: int, samples: int = FRAME) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32)


# ---- The whole model ----


class Watched:
    """What every session appends and samples, as the engine sees it."""

    def __init__(self, model: QwenOmni, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hidden: dict[int, list[Tensor]] = {}
        self.sampled: dict[int, list[int]] = {}
        engine = model._engine
        step = engine.step

        def watch(sessions: Sequence[int], *rest: Any, **named: Any) -> Any:
            output = step(sessions, *rest, **named)
            shares = output.hidden.split(output.appended)
            for session, share, token in zip(sessions, shares, output.ids, strict=True):
                self.hidden.setdefault(session, []).append(share)
                self.sampled.setdefault(session, []).extend([] if token is None else [token])
            return output

        monkeypatch.setattr(engine, "step", watch)


def processed(tiny: TinyOmni, clip: NDArray[np.float32]) -> Tensor:
    """Features [mels, frames] as the model's processor makes them of one clip."""
    extractor = WhisperFeatureExtractor.from_pretrained(tiny.folder)
    padding: Any = "max_length" if tiny.kind == "qwen2.5-omni" else True
    made = extractor(
        [clip], sampling_rate=16_000, padding=padding, return_attention_mask=True, return_tensors="pt"
    )
    features_MT: Tensor = made["input_features"][0][:, made["attention_mask"][0].bool()]
    return features_MT


def reference_logits(tiny: TinyOmni, chat: Chat, clips: list[Any], sampled: list[int]) -> Tensor:
    """transformers' logits of a free call: header, then each frame's clip as a turn and TAU tokens.

    Its own way from features to embeddings and positions; all clips are of one length.
    """
    features_BMT = torch.stack([processed(tiny, clip) for clip in clips])
    thinker: Any = tiny.thinker
    before, after = chat.token("audio_bos_token"), chat.token("audio_eos_token")
    ids = chat.header + chat.opening
    for number in range(len(clips)):
        audio = [before, *[AUDIO_TOKEN] * POSITIONS[tiny.kind], after]
        ids += [*chat.opens("answer"), *audio, *chat.asks, *sampled[number * TAU : (number + 1) * TAU]]
    given = torch.tensor([ids[:-1]])  # the last one is not in the cache
    with torch.inference_mode():
        logits: Tensor = thinker(
            input_ids=given,
            attention_mask=torch.ones_like(given),
            input_features=features_BMT,
            feature_attention_mask=torch.ones_like(features_BMT[:, 0], dtype=torch.long),
        ).logits[0]
    return logits


def test_fifty_frames_streamed_give_transformers_logits_whatever_the_calls_ages(
    tiny: TinyOmni, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(profile(tiny, window_policy="unbounded"))
    assert isinstance(model, QwenOmni)
    watched = Watched(model, monkeypatch)
    clips: dict[int, list[NDArray[np.float32]]] = {}
    for number in range(50):
        if number in (0, 7, 31):
            model.open(number + 1, seed=0)
            clips[number + 1] = []
        for session, heard in clips.items():
            heard.append(noise(100 * session + number))
        list(model.tick([Frame(session, heard[-1]) for session, heard in clips.items()]))
    for place, heard in enumerate(clips.values(), start=1):
        ours = model._engine.decoder.logits(torch.cat(watched.hidden[place]))
        want = reference_logits(tiny, model._chat, heard, watched.sampled[place])
        assert len(watched.sampled[place]) == TAU * len(heard)
        assert (ours - want).abs().max() < 1e-4


def test_ten_windows_of_free_running_cost_no_more_than_one(tiny: TinyOmni) -> None:
    """Positions pass the model's limit many times; blocks and what the ears keep stay as they are."""
    model = build(profile(tiny))
    assert isinstance(model, QwenOmni)
    model.open(1, seed=0)
    held, kept, said, frames = set(), set(), 0, 10 * 64 // 15
    for number in range(frames):
        jitter = (-1) ** number * 320 * (number % 3)
        events = list(model.tick([Frame(1, noise(number, FRAME + jitter))]))
        said += sum(isinstance(event, Said) for event in events)
        if number * 15 > 2 * 64:
            held.add(model.blocks(1))
            kept.add(len(model._calls[1].ear.samples) < 3200)
    session = model._engine._sessions[1]
    assert session.lane.length > max(10 * 64, 10 * LIMIT)
    assert session.rotary_end == session.lane.length
    assert said == TAU * frames
    assert len(held) <= 2, "a window starts and ends anywhere in a block"
    assert kept == {True}
    model._engine.pool.check()


def test_a_call_whose_audio_is_no_number_ends_alone(tiny: TinyOmni) -> None:
    def run(spoiled: bool) -> list[str]:
        model = build(profile(tiny))
        for session in (1, 2, 3):
            model.open(session, seed=0)
        words: list[str] = []
        for number in range(4):
            pieces = {session: noise(session + 10 * number, FRAME - 160 * session) for session in (1, 2, 3)}
            if spoiled and number == 2:
                pieces[2][777] = np.nan
            here = [session for session in (1, 2, 3) if session != 2 or number < 3]
            events = list(model.tick([Frame(session, pieces[session]) for session in here]))
            assert [event.session for event in events if isinstance(event, Failed)] == (
                [2] if spoiled and number == 2 else []
            )
            words += [event.text for event in events if isinstance(event, Said) and event.session != 2]
            if number == 2:
                model.close(2)
        return words

    assert run(spoiled=True) == run(spoiled=False)


# ---- Features, tower, ears ----


def ears_of(tiny: TinyOmni) -> QwenEars:
    model = build(profile(tiny))
    assert isinstance(model, QwenOmni)
    found = model._ears
    assert isinstance(found, QwenEars)
    return found


@pytest.mark.parametrize("mirrored", [False, True])
def test_features_are_the_processors_own_clip_by_clip(mirrored: bool) -> None:
    extractor = WhisperFeatureExtractor(feature_size=MELS)
    clips = [noise(length, length) for length in (48_000, 4800, 35_200, 480)]
    made = LogMel(extractor, torch.device("cpu"), mirrored=mirrored)(clips)
    for clip, row in zip(clips, made, strict=True):
        padding: Any = True if mirrored else "max_length"
        told = extractor([clip], sampling_rate=16_000, padding=padding, return_tensors="pt")
        frames = len(clip) // 160
        assert (row[:, :frames] - told["input_features"][0][:, :frames]).abs().max() < 1e-5
        assert not row[:, frames:].any()


def test_a_tower_hears_each_clip_of_a_batch_as_transformers_hears_it_alone(tiny: TinyOmni) -> None:
    ears = ears_of(tiny)
    pieces = [noise(length, length) for length in (72_000, 480, 5120, 35_360, 16_000)]
    heard = ears.hear([ears.open() for _ in pieces], pieces, [True] * len(pieces))
    tower: Any = tiny.thinker.model.audio_tower
    for piece, embedded in zip(pieces, heard, strict=True):
        features = processed(tiny, piece)
        with torch.inference_mode():
            want = tower(features, feature_lens=torch.tensor([features.shape[1]])).last_hidden_state
        assert embedded.shape == want.shape
        assert len(embedded) == ears.positions(len(piece))
        assert (embedded - want).abs().max() < 1e-4


def test_whole_chunks_streamed_are_the_towers_own_forward_over_all_of_them(tiny: TinyOmni) -> None:
    """Frames of Qwen2.5's chunk, or of Qwen3's attention window: nobody attends beyond them."""
    ears = ears_of(tiny)
    frame = 2560 if tiny.kind == "qwen2.5-omni" else 32_000
    pieces = [noise(number, frame) for number in range(5)]
    call = ears.open()
    heard = torch.cat([ears.hear([call], [piece], [False])[0] for piece in pieces])
    features = torch.cat([processed(tiny, piece) for piece in pieces], dim=1)
    tower: Any = tiny.thinker.model.audio_tower
    with torch.inference_mode():
        want = tower(features, feature_lens=torch.tensor([features.shape[1]])).last_hidden_state
    assert heard.shape == want.shape
    assert (heard - want).abs().max() < 1e-4


def test_audio_that_comes_early_or_late_is_heard_in_whole_chunks(qwen25: TinyOmni) -> None:
    ears = ears_of(qwen25)
    chunk = 2560
    lengths = [chunk, chunk + 320, chunk - 320, 2 * chunk + 100, chunk - 100, 100, 800, 1000, 0]
    call = ears.open()
    sizes, waiting = [], []
    for length in lengths:
        sizes.append(len(ears.hear([call], [noise(0, length)], [False])[0]))
        waiting.append(len(call.samples))
    assert sizes == [4, 4, 4, 8, 4, 0, 0, 3, 0]  # the eighth brings 1900 samples, of which 11 hops are whole
    assert waiting == [0, 320, 0, 100, 0, 100, 900, 140, 140]


def test_nothing_waits_at_the_end_of_an_utterance(qwen25: TinyOmni) -> None:
    ears = ears_of(qwen25)
    call = ears.open()
    assert len(ears.hear([call], [noise(0, 1000)], [False])[0]) == 0
    assert len(ears.hear([call], [noise(1, 600)], [True])[0]) == 2
    assert len(ears.hear([call], [noise(1, 400)], [True])[0]) == 0, "a quarter of a position is no word"
    assert call == Waiting(call.samples)
    assert len(call.samples) == 0


def test_a_hundred_seconds_at_once_are_heard_as_in_company(
    qwen3: TinyOmni, monkeypatch: pytest.MonkeyPatch
) -> None:
    ears = ears_of(qwen3)
    pieces = [noise(number, 16_000 * (1 + number % 3)) for number in range(7)]
    together = ears.hear([ears.open() for _ in pieces], pieces, [False] * 7)
    monkeypatch.setattr("metronome_cli.models.qwen_ears._BATCH", 40_000)
    monkeypatch.setattr("metronome_cli.models.qwen_tower._CONVOLVED", 2)
    apart = ears.hear([ears.open() for _ in pieces], pieces, [False] * 7)
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


# ---- Published sizes: what the two config.json files on the hub say, in the form in which they say it ----

PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen2.5-omni": {
        "model_type": "qwen2_5_omni",
        "thinker_config": {
            "model_type": "qwen2_5_omni_thinker",
            "audio_config": {"model_type": "qwen2_5_omni_audio_encoder", "n_window": 100, "output_dim": 3584},
            "text_config": {
                "model_type": "qwen2_5_omni_text",
                "rope_theta": 1_000_000.0,
                "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"},
                "tie_word_embeddings": False,
            },
        },
    },
    "qwen3-omni": {
        "model_type": "qwen3_omni_moe",
        "thinker_config": {
            "model_type": "qwen3_omni_moe_thinker",
            "audio_config": {"model_type": "qwen3_omni_moe_audio_encoder", "output_dim": 2048},
            "text_config": {
                "model_type": "qwen3_omni_moe_text",
                "head_dim": 128,
                "num_attention_heads": 32,
                "num_hidden_layers": 48,
                "vocab_size": 152064,
                "rope_theta": 1_000_000,
                "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "type": "default"},
            },
        },
    },
}


@pytest.mark.parametrize(
    ("kind", "positions", "millions", "kv_bytes", "per_axis"),
    [
        ("qwen2.5-omni", 50, 639.6, 56 * 1024, [16, 24, 24]),
        ("qwen3-omni", 26, 647.9, 96 * 1024, [24, 20, 20]),
    ],
)
def test_published_configs_are_read(
    tmp_path: Path, kind: str, positions: int, millions: float, kv_bytes: int, per_axis: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[kind]))
    config, prefix = _read_config(tmp_path, _FAMILIES[kind])
    tower = _FAMILIES[kind].tower(config.audio_config)
    assert prefix == "thinker."
    assert tower.positions(200) == positions
    assert round(sum(some.numel() for some in tower.module.parameters()) / 1e6, 1) == millions
    size = decoder_config(config.text_config, tmp_path)
    assert block_bytes(size, 1, torch.bfloat16) == kv_bytes
    rope = make_rope(config.text_config, tmp_path, torch.float32)
    turned = (rope.angles(torch.tensor([[1, 1000, 1_000_000]])) / rope.angles(torch.ones(1, 3))).round()
    assert [int((turned == place).sum()) for place in (1, 1000, 1_000_000)] == per_axis


# ---- Positions ----


def test_three_axes_turn_as_transformers_turns_them_when_they_differ(tiny: TinyOmni) -> None:
    config: Any = tiny.thinker.config.get_text_config()
    rope = make_rope(config, tiny.folder, torch.float32)
    assert rope.axes == 3
    positions = torch.randint(0, 500, (40, 3), generator=torch.Generator().manual_seed(0))
    rotary: Any = tiny.thinker.model.language_model.rotary_emb
    cos, sin = rotary(torch.zeros(1), positions.T[:, None])
    own, half = rope.at(positions), config.head_dim // 2
    torch.testing.assert_close(own.cos[:, 0], cos[0, :, :half], rtol=0, atol=1e-4)
    torch.testing.assert_close(own.sin[:, 0], sin[0, :, :half], rtol=0, atol=1e-4)


# ---- Checkpoints ----


def copy(tiny: TinyOmni, folder: Path) -> dict[str, Tensor]:
    """A folder like the checkpoint's, and its weights to be changed and saved."""
    for file in tiny.folder.iterdir():
        if file.suffix != ".safetensors":
            (folder / file.name).write_bytes(file.read_bytes())
    return load_file(tiny.folder / "model.safetensors")


def save(weights: dict[str, Tensor], folder: Path) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def said(profile: Profile) -> list[str]:
    model = build(profile)
    model.open(1, seed=0)
    frames = [Frame(1, noise(number)) for number in range(6)]
    return [event.text for frame in frames for event in model.tick([frame]) if isinstance(event, Said)]


def test_only_the_thinker_is_read_and_told_of(tiny: TinyOmni, tmp_path: Path) -> None:
    weights = copy(tiny, tmp_path)
    wanted = [key for key in weights if not key.startswith("thinker.visual.")]
    size = sum(weights[key].numel() for key in wanted) * 4
    save(weights | {"talker.model.norm.weight": torch.ones(3), "token2wav.x": torch.ones(2)}, tmp_path)
    told: list[tuple[int, int]] = []
    with watched(lambda done, total: told.append((done, total))):
        build(profile(tiny, tmp_path))
    assert len(told) == len(wanted)
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (size, size)


def test_a_thinker_saved_alone_and_stacked_experts_are_read_too(tiny: TinyOmni, tmp_path: Path) -> None:
    want = said(profile(tiny))
    weights = {key.removeprefix("thinker."): value for key, value in copy(tiny, tmp_path).items()}
    config = json.loads((tmp_path / "config.json").read_text())["thinker_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for layer in range(2 if tiny.kind == "qwen3-omni" else 0):
        prefix = f"model.layers.{layer}.mlp.experts."
        each = [
            [weights.pop(f"{prefix}{n}.{p}_proj.weight") for p in ("gate", "up", "down")] for n in range(6)
        ]
        weights[prefix + "gate_up_proj"] = torch.stack([torch.cat((gate, up)) for gate, up, _ in each])
        weights[prefix + "down_proj"] = torch.stack([down for _, _, down in each])
    save(weights, tmp_path)
    assert said(profile(tiny, tmp_path)) == want


def damaged(tiny: TinyOmni, folder: Path, change: str) -> Path:
    """A copy of the checkpoint with one fault."""
    weights = copy(tiny, folder)
    tower, out = "thinker.audio_tower.ln_post.bias", "thinker.model.layers.1.self_attn.o_proj.weight"
    match change:
        case "missing":
            del weights[tower]
        case "misshaped":
            weights[out] = weights[out][:, :-1].contiguous()
        case "extra":
            weights["thinker.audio_tower.extra.weight"] = torch.ones(3)
        case "half":
            index = {"weight_map": {key: f"model-{n % 4}.safetensors" for n, key in enumerate(weights)}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))
            for n in (0, 3):
                save_file({k: weights[k] for k in list(weights)[n::4]}, folder / f"model-{n}.safetensors")
        case _:
            damage_files(folder, change)
    save(weights, folder)
    return folder


def damage_files(folder: Path, change: str) -> None:
    config, tokens = folder / "config.json", folder / "tokenizer_config.json"
    match change:
        case "quantised":
            told = json.loads(config.read_text())
            config.write_text(json.dumps(told | {"quantization_config": {"quant_method": "awq", "bits": 4}}))
        case "another":
            config.write_text(json.dumps({"model_type": "llama"}))
        case "no processor":
            (folder / "preprocessor_config.json").unlink()
        case "other mels":
            WhisperFeatureExtractor(feature_size=80).save_pretrained(folder)
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "no markers":
            named = json.loads(tokens.read_text())
            del named["audio_eos_token"]
            tokens.write_text(json.dumps(named))


FAULTS = [
    ("missing", "audio_tower.ln_post.bias is missing"),
    ("misshaped", "o_proj.weight has shape"),
    ("extra", "no place for.*audio_tower.extra.weight"),
    ("half", r"2 of its 4 safetensors files are missing, model-1\.safetensors among them: download"),
    ("quantised", "quantised checkpoints are not read"),
    ("another", "'llama' is another model's; its kind of model reads qwen2_5_omni and"),
    ("no processor", r"no readable preprocessor_config\.json.*download"),
    ("other mels", "makes 80 mel bins.*the tower hears 16"),
    ("no tokenizer", "no tokenizer with a chat template"),
    ("no markers", "its tokenizer has no audio_eos_token: download"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_cure(
    qwen25: TinyOmni, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(AssetError, match=message):
        build(profile(qwen25, damaged(qwen25, tmp_path, change)))


def test_the_other_qwen_is_another_model(qwen25: TinyOmni) -> None:
    with pytest.raises(AssetError, match="'qwen2_5_omni' is another model's"):
        build(profile("qwen3-omni", qwen25.folder))


LIMITS: list[tuple[dict[str, Any], str]] = [
    ({"model_rate": 24_000}, r"model\.rate = 24000: use 16000"),
    ({"window_window": 20, "window_sinks": 0}, r"window\.window = 20: one frame brings 24 tokens"),
    (
        {"beat_prefill_tokens": 21},
        r"beat\.prefill_tokens = 21: 0\.32 s of audio are 21 tokens.*use 22 or more",
    ),
]


@pytest.mark.parametrize(("changes", "message"), LIMITS)
def test_a_set_up_too_small_for_a_frame_is_refused(
    qwen25: TinyOmni, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ProfileError, match=message):
        build(profile(qwen25, **changes))


def test_random_weights_of_any_size_hear_and_speak(tiny: TinyOmni) -> None:
    experts = 4 if tiny.kind == "qwen3-omni" else 0
    size = DecoderConfig(48, 2, 4, 2, 16, 64, 320, 1e-6, experts=experts, top=2)
    small = {"num_mel_bins": MELS, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    model = random_omni(profile(tiny), Chat(tiny.folder, "Be brief."), (size, small | {"d_model": 16}))
    model.open(1, seed=0)
    for number in range(3):
        events = list(model.tick([Frame(1, noise(number, FRAME))]))
    assert sum(isinstance(event, Said) for event in events) == TAU
    hidden = model._ears.hear([model._ears.open()], [noise(9)], [True])[0]
    assert math.isfinite(float(hidden.abs().max()))
