"""Qwen2.5-Omni and Qwen3-Omni: their thinkers hear and read, and answer in text.

Knows:   what the two checkpoints hold and are called, markers of audio, which settings do not fit.
Ignores: the tower (qwen_tower.py), clips (qwen_ears.py), turns and replies (omni.py), talkers and eyes, which
         are not read.

Audio and text count one position a token, alike on all three axes of the rotary positions: without pictures
the models' own rule (transformers' get_rope_index) gives no others.
Key names: thinker.model.*, thinker.lm_head.*, thinker.audio_tower.* in Qwen/Qwen2.5-Omni-7B and
Qwen/Qwen3-Omni-30B-A3B-Instruct; without `thinker.` where transformers saved a thinker alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, WhisperFeatureExtractor
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniAudioEncoderConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeAudioEncoderConfig
from transformers.utils import logging

from ..engine.checkpoint import Checkpoint, Part, count_weights
from ..engine.config_file import check_counts, check_divides, read_config, read_json, readable
from ..engine.decoder import Decoder, DecoderConfig
from ..engine.device import device_of
from ..engine.linear import products_of
from ..engine.random_weights import SIZES, random_decoder
from ..engine.rope import Rope, mrope_axes
from ..engine.weights import build_decoder, check_plain, decoder_config, dtype_of
from ..errors import AssetError
from ..profile import Profile
from .assets import here, locate
from .chat import Chat
from .log_mel import LogMel
from .omni import Markers, Omni, check_frame
from .qwen_ears import RATE, QwenEars, Waiting
from .qwen_tower import Qwen3Tower, Qwen25Tower, Tower, fill, fill_randomly
from .room import pool_blocks


@dataclass(frozen=True, slots=True)
class _Family:
    """What sets the two apart."""

    whole: str  # model_type of a whole checkpoint,
    thinker: str  # and of a thinker alone
    tower: Callable[[PreTrainedConfig], Tower]
    mirrored: bool  # whether its processor mirrors the end of a clip; else it pads clips with silence
    size: str  # of engine.random_weights
    audio: Callable[..., PreTrainedConfig]  # whose defaults are the published tower
    counts: tuple[str, ...]  # fields of its config that a tower is built of


_HOP, _SEEN = 160, 400  # samples from one frame of features to the next, and of one
_COUNTS = (
    *("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_mel_bins"),
    *("n_window", "output_dim", "max_source_positions"),
)
_QWEN25 = _Family(
    "qwen2_5_omni",
    "qwen2_5_omni_thinker",
    Qwen25Tower,
    mirrored=False,
    size="qwen2.5-7b",
    audio=Qwen2_5OmniAudioEncoderConfig,
    counts=_COUNTS,
)
_QWEN3 = _Family(
    "qwen3_omni_moe",
    "qwen3_omni_moe_thinker",
    Qwen3Tower,
    mirrored=True,
    size="qwen3-30b-a3b",
    audio=Qwen3OmniMoeAudioEncoderConfig,
    counts=(*_COUNTS, "n_window_infer", "downsample_hidden_size"),
)
_FAMILIES = {"qwen2.5-omni": _QWEN25, "qwen3-omni": _QWEN3}  # by model.kind


class QwenOmni(Omni[Waiting]):
    """A `TickEngine` over the thinker of `model.thinker`. Loads it, so creating one takes seconds to minutes.

    AssetError when the checkpoint is another model's, quantised or incomplete; ProfileError when it does not
    fit the device, or a frame of it the window.
    """

    def __init__(self, profile: Profile) -> None:
        torch.set_num_threads(profile.run.threads)
        folder, dtype = locate(profile.model.thinker), dtype_of(profile.model.dtype)
        plan = _prepare(profile, folder)
        prefix, device = plan.prefix, device_of(profile.run.device)
        checkpoint = Checkpoint(folder, dtype, device, _parts(prefix))
        fill(plan.tower, Part(checkpoint, prefix + "audio_tower."), device)
        products = products_of(profile.model.products)
        decoder = build_decoder(plan.config.text_config, checkpoint, prefix, products)
        # Positions of the tower are computed, whether or not somebody saved them.
        checkpoint.check_nothing_left(ignore=[prefix + "audio_tower.positional_embedding."])
        super().__init__(profile, plan.chat, decoder, plan.ears, _markers(plan.chat), plan.blocks)

    @staticmethod
    def check(profile: Profile) -> None:
        """Of a checkpoint that is here: AssetError if it is not whole, ProfileError if it does not fit."""
        if folder := here(profile.model.thinker):
            _prepare(profile, folder)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What is known before anything large is read; the tower has no weights yet."""

    config: Any  # the thinker's
    prefix: str  # of its keys
    chat: Chat
    tower: Tower
    ears: QwenEars
    blocks: int


def _prepare(profile: Profile, folder: Path) -> _Prepared:
    family, device = _FAMILIES[profile.model.kind], device_of(profile.run.device)
    config, prefix = _read_config(folder, family)
    chat, tower = Chat(folder, profile.model.header), family.tower(config.audio_config)
    mel = LogMel(_read_extractor(folder, config), device, mirrored=family.mirrored)
    ears = QwenEars(tower, mel, config.audio_config.output_dim, device)
    policy = check_frame(profile, chat, ears, _markers(chat))
    weights = count_weights(folder, _parts(prefix)) * dtype_of(profile.model.dtype).itemsize
    sizes = decoder_config(config.text_config, folder)
    chat.check_known(sizes.vocab)
    blocks = pool_blocks(profile, policy, sizes, weights)
    return _Prepared(config, prefix, chat, tower, ears, blocks)


def _parts(prefix: str) -> list[str]:
    """What the keys that are read begin with."""
    return [prefix + part for part in ("model.", "lm_head.", "audio_tower.")]


def random_omni(
    profile: Profile, chat: Chat, sizes: tuple[DecoderConfig, dict[str, Any]] | None = None, seed: int = 0
) -> Omni[Waiting]:
    """The model of `profile.model.kind` with random weights, at its published size.

    `sizes`: another size, as a decoder's config and settings of the tower.
    """
    family = _FAMILIES[profile.model.kind]
    device, dtype = device_of(profile.run.device), dtype_of(profile.model.dtype)
    decoder_size, settings = sizes or (SIZES[family.size], {})
    config = family.audio(**{"output_dim": decoder_size.hidden, **settings})
    tower = family.tower(config)
    markers = _markers(chat)
    extractor = WhisperFeatureExtractor(feature_size=config.num_mel_bins)
    mel = LogMel(extractor, device, mirrored=family.mirrored)
    ears = QwenEars(tower, mel, decoder_size.hidden, device)
    policy = check_frame(profile, chat, ears, markers)
    fill_randomly(tower, dtype, device, seed)
    plain = random_decoder(decoder_size, theta=1e6, dtype=dtype, device=device, seed=seed)
    decoder = Decoder(plain.config, plain.weights, _rope(plain.config.head_dim, dtype).to(device))
    blocks = pool_blocks(profile, policy, decoder_size, weights=0)  # they are there already
    return Omni(profile, chat, decoder, ears, markers, blocks)


def _rope(size: int, dtype: torch.dtype) -> Rope:
    """Three axes, so that a step costs what the real one does."""
    inverse_F = torch.pow(1e6, -torch.arange(0, size, 2, dtype=torch.float64) / size)
    third = len(inverse_F) // 3
    return Rope(inverse_F, mrope_axes((len(inverse_F) - 2 * third, third, third), interleaved=True), dtype)


def _markers(chat: Chat) -> Markers:
    return Markers([chat.token("audio_bos_token")], [chat.token("audio_eos_token")])


def _read_config(folder: Path, family: _Family) -> tuple[Any, str]:
    """The thinker's config, and what its keys begin with. AssetError when it is no plain such model."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # it warns of a talker's ids of text, which are of another vocabulary
    try:
        config: Any = read_config(folder)
    finally:
        logging.set_verbosity(level)
    if config.model_type not in (family.whole, family.thinker):
        cure = f"its kind of model reads {family.whole} and {family.thinker}"
        raise AssetError(f"{folder}: model_type {config.model_type!r} is another model's; {cure}")
    thinker = config.thinker_config if config.model_type == family.whole else config
    for some in (config, thinker, thinker.text_config):
        check_plain(some, folder)
    audio, text = thinker.audio_config, thinker.text_config
    if text.model_type != f"{family.whole}_text":
        raise AssetError(
            f"{folder}: text_config says model_type {text.model_type!r}, which is another model's"
        )
    check_counts(folder, audio, family.counts, "audio_config")
    check_divides(folder, audio, "d_model", "encoder_attention_heads", "audio_config")
    if audio.activation_function != "gelu":
        found = f"audio_config.activation_function {audio.activation_function!r}"
        raise AssetError(f"{folder}: {found} is not supported, only 'gelu'")
    if audio.output_dim != text.hidden_size:
        sizes = f"audio_config.output_dim {audio.output_dim} and text_config.hidden_size {text.hidden_size}"
        raise AssetError(f"{folder}: {sizes} are to be the same")
    return thinker, "thinker." if config.model_type == family.whole else ""


def _read_extractor(folder: Path, config: Any) -> WhisperFeatureExtractor:
    """How the model's processor makes features. AssetError when that is not told, or is not the tower's."""
    cure = "it says how audio becomes features: download the model's files again"
    read_json(folder, "preprocessor_config.json", cure)
    with readable(folder, "preprocessor_config.json", cure):
        extractor = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
    if (extractor.hop_length, extractor.n_fft) != (_HOP, _SEEN):
        found = f"hop_length {extractor.hop_length!r} and n_fft {extractor.n_fft!r}"
        raise AssetError(f"{folder}: preprocessor_config.json says {found}; {_HOP} and {_SEEN} are supported")
    bins = config.audio_config.num_mel_bins
    if extractor.sampling_rate != RATE or extractor.feature_size != bins:
        raise AssetError(
            f"{folder}: preprocessor_config.json makes {extractor.feature_size} mel bins of audio at "
            f"{extractor.sampling_rate} Hz, and the tower hears {bins} at {RATE} Hz"
        )
    return extractor
