"""The Qwen-Omni models against transformers, on tiny random checkpoints saved by it."""

from __future__ import annotations

import json
import math
import shutil
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
from metronome_cli.models.qwen_omni import _FAMILIES, QwenOmni, _read_config, random_omni
from metronome_cli.profile import Profile

from .tiny_omni import AUDIO_TOKEN, FRAME, LIMIT, MELS, POSITIONS, TAU, TinyOmni, noise, processed, profile

pytestmark = pytest.mark.usefixtures("one_thread")


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


def said(set_up: Profile) -> list[str]:
    model = build(set_up)
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
    ("no tokenizer", "no readable tokenizer with a chat template"),
    ("no markers", "its tokenizer has no audio_eos_token: download"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_cure(
    qwen25: TinyOmni, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(AssetError, match=message):
        QwenOmni(profile(qwen25, damaged(qwen25, tmp_path, change)))


@pytest.mark.parametrize(
    ("file", "field", "value", "says"),
    [
        (
            "config",
            "audio_config.encoder_attention_heads",
            0,
            r"_attention_heads = 0; use 1 or more",
        ),
        ("config", "audio_config.encoder_attention_heads", 3, r"d_model = 16, which .* = 3 do not share"),
        ("config", "audio_config.activation_function", "x", "'x' is not supported, only 'gelu'"),
        ("config", "audio_config.encoder_layers", 10**12, "no model has more than 4096"),
        ("config", "text_config.model_type", "x", "text_config says model_type 'x'"),
        ("config", "text_config.rope_parameters.mrope_section", [2, 1], "and a head has 4 frequencies"),
        ("config", "text_config.num_attention_heads", 0, r"num_attention_heads = 0; use 1 or more"),
        ("preprocessor_config", "hop_length", -1, "hop_length -1 and n_fft 400; 160 and 400 are supported"),
        ("generation_config", "eos_token_id", "x", "eos_token_id = 'x': use the number of a token"),
    ],
)
def test_a_value_that_no_model_has_is_named(
    qwen25: TinyOmni, tmp_path: Path, file: str, field: str, value: object, says: str
) -> None:
    folder = shutil.copytree(qwen25.folder, tmp_path / "copy")
    path = folder / f"{file}.json"
    said = json.loads(path.read_text())
    *parts, name = field.split(".")
    part = said["thinker_config"] if parts else said
    for each in parts:
        part = part[each]
    part[name] = value
    path.write_text(json.dumps(said))
    with pytest.raises(AssetError, match=says):
        build(profile(qwen25, folder))


def test_the_other_qwen_is_another_model(qwen25: TinyOmni) -> None:
    with pytest.raises(AssetError, match="'qwen2_5_omni' is another model's"):
        QwenOmni(profile("qwen3-omni", qwen25.folder))
    with pytest.raises(ProfileError, match=r"and qwen2\.5-omni would read this one"):
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
