"""MiniCPM-o-4.5: its parts out of a checkpoint, and its way to listen and speak second by second.

Knows:   config.json, key prefixes and special tokens of the published model; units of a full-duplex call.
Ignores: how it hears (minicpm_ears.py), whose turn it is in mode `turn` (omni.py), sockets, time.

In mode `free` a call is the published full-duplex one (modeling_minicpmo.py, class MiniCPMODuplex). Every
second of audio is a unit, `<unit>` and ten embeddings; the model then says `<|listen|>`, or `<|speak|>` and
words until `<|chunk_eos|>`, at most `tau` tokens in all; `</unit>` closes it. `<|turn_eos|>` ends a reply,
and here the unit too. In mode `turn` each frame's audio stands between `<|audio_start|>` and `<|audio_end|>`
in a user's turn, as in the published half-duplex streaming, and the answer begins after an empty thought.

Read: OpenBMB's modeling_minicpmo.py and processing_minicpmo.py of MiniCPM-o 4.5 (Apache-2.0), as copied in
github.com/AlessandroBonomo28/Minicpm-o-booking-desk (commit 568b624, MiniCPMO45/modeling_minicpmo.py), and
configuration_minicpmo.py in github.com/OpenBMB/MiniCPM-o-Demo (commit 4f9de39). The checkpoint itself was not
at hand: nothing here was tried on its weights.
What the published code does and this does not: pictures, its own voice (text is all that is said), a penalty
on repeated words, top-k, and forbidding `<|listen|>` before a reply's end. Its half-duplex mode also pads
each second with zeros and empties the encoder's cache at each turn; here audio is one stream in either mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen3Config, WhisperConfig

from ..engine.checkpoint import Checkpoint, count_weights
from ..engine.config_file import check_counts, check_divides, read_json, readable
from ..engine.decoder import Decoder
from ..engine.device import device_of
from ..engine.linear import products_of
from ..engine.random_weights import random_decoder
from ..engine.weights import build_decoder, check_plain, decoder_config, dtype_of
from ..errors import AssetError
from ..frame import Frame, Refused, Said, SessionId, TickEvent
from ..profile import OWN, Profile, Terms
from .assets import here, locate
from .chat import Chat
from .minicpm_ears import Hearing, MiniCpmEars
from .minicpm_encoder import POSITIONS, Encoder, Take, cache_bytes
from .minicpm_mel import HOP, RATE, WINDOW
from .omni import Markers, Omni, _Call, check_frame
from .room import pool_blocks
from .talk import Piece

PARTS = (
    "llm.",
    "apm.",
    "audio_projection_layer.",
)  # of the keys; eyes (vpm, resampler) and voice (tts) stay out
_VERSION = "4.5"
_COUNTS = (
    *("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "num_mel_bins"),
    "max_source_positions",
)
_NO_THOUGHT = "<think>\n\n</think>\n\n"
_ASKS = f"<|im_end|>\n<|im_start|>assistant\n{_NO_THOUGHT}"


Parts = tuple[Decoder, MiniCpmEars]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What config.json says about the parts."""

    text: Qwen3Config
    audio: WhisperConfig
    pool: int  # encoder positions to an embedding


# As published, by what others wrote who had the files: text from ports, audio from the config.json of a later
# model with the same ears (github.com/chmod777john/MiniCPM-o-Demo, MiniCPMO45/config.json, commit 77ec835).
PUBLISHED = Sizes(
    Qwen3Config(
        vocab_size=151_748,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
    ),
    WhisperConfig(
        d_model=1024,
        encoder_layers=24,
        encoder_attention_heads=16,
        encoder_ffn_dim=4096,
        num_mel_bins=80,
        max_source_positions=1500,
    ),
    pool=5,
)


class MiniCpmChat(Chat):
    """The model's chat format, and the ids of its markers. AssetError when the tokenizer has none of them.

    In mode `free` the header is as the published full-duplex mode has it, and nothing opens an answer.
    """

    def __init__(self, folder: Path, profile: Profile) -> None:
        super().__init__(folder, profile.model.header, _load_tokenizer)
        self._folder, self._duplex = folder, profile.model.mode == "free"
        known = self._tokenizer.get_added_tokens_decoder()
        self.special = tuple(sorted({*self.special, *(n for n, token in known.items() if token.special)}))
        if self._duplex:
            self._head_around = ["<|im_start|>system\n", "<|im_end|>"]
            self.header = self.instruct(profile.model.header)
            self.opening: list[int] = []
            self.ends = frozenset((self.marker("<|turn_eos|>"),))
        else:
            self.asks = self._encode(_ASKS)
            self.opening = self._encode(_ASKS.removeprefix("<|im_end|>\n"))
            self.ends |= {self.marker("<|tts_eos|>")}

    def marker(self, text: str) -> int:
        """The id of a special token."""
        found: int | None = self._tokenizer.token_to_id(text)
        if found is None:
            raise AssetError(f"{self._folder}: its tokenizer does not know {text}: this is no MiniCPM-o-4.5")
        return found

    def markers(self) -> Markers:
        """Where audio stands. In a full-duplex call: the most that goes in front of a second."""
        if not self._duplex:
            return Markers([self.marker("<|audio_start|>")], [self.marker("<|audio_end|>")])
        rests = [self.marker(name) for name in ("<|listen|>", "<|chunk_eos|>", "<|chunk_tts_eos|>")]
        says = [self.marker(name) for name in ("<|speak|>", "<|tts_bos|>", "<|turn_eos|>")]
        before = [self.marker(name) for name in ("<|chunk_eos|>", "</unit>", "<unit>")]
        return Markers(before, [], inline=True, rests=frozenset(rests), says=frozenset(says))


class Units:
    """The seconds of full-duplex calls: what goes in front of the next one.

    A unit that the model was not asked in, as more than one second came at once, is one in which it listened.
    """

    def __init__(self, chat: MiniCpmChat, rows: int) -> None:
        """`rows`: embeddings of a second."""
        self._start, self._end = chat.marker("<unit>"), chat.marker("</unit>")
        self._listened, self._cut = chat.marker("<|listen|>"), chat.marker("<|chunk_eos|>")
        self._rows = rows
        self._closing: dict[SessionId, list[int]] = {}  # of the unit that is open

    def wrap(self, session: SessionId, embedded_TE: Tensor | None, typed: list[int]) -> list[Piece]:
        """What a call reads of a frame: its seconds, and what was typed in the last of them."""
        pieces: list[Piece] = []
        seconds = [] if embedded_TE is None else embedded_TE.split(self._rows)
        for second_TE in seconds or ([typed] if typed else []):
            pieces += [[*self._closing.get(session, []), self._start], second_TE]
            self._closing[session] = [self._listened, self._end]
        return [*pieces, typed] if seconds and typed else pieces

    def answered(self, session: SessionId, rests: bool) -> None:
        """The model spoke in the open unit, and ended that itself if it `rests`."""
        self._closing[session] = [self._end] if rests else [self._cut, self._end]

    def forget(self, session: SessionId) -> None:
        """The call is over."""
        self._closing.pop(session, None)


class MiniCpmO(Omni[Hearing]):
    """A `TickEngine`: MiniCPM-o-4.5, audio and text in, text out. Loads it, so creating one takes a while.

    AssetError when the folder is not a whole checkpoint of it; ProfileError when the profile is too small.
    """

    def __init__(self, profile: Profile) -> None:
        torch.set_num_threads(profile.run.threads)
        folder = locate(profile.model.thinker)
        sizes, chat, blocks = _prepare(profile, folder)
        checkpoint = Checkpoint(folder, dtype_of(profile.model.dtype), device_of(profile.run.device), PARTS)
        ears = make_ears(profile, sizes, checkpoint.take)
        check_frame(profile, chat, ears, chat.markers())  # before the large part is read
        decoder = build_decoder(sizes.text, checkpoint, "llm.", products_of(profile.model.products))
        checkpoint.check_nothing_left(ignore=["llm.lm_head.weight"] if decoder.config.tied else [])
        self._set_up(profile, chat, (decoder, ears), blocks)

    @staticmethod
    def check(profile: Profile) -> None:
        """Of a checkpoint that is here: AssetError if it is not whole, ProfileError if it does not fit."""
        if folder := here(profile.model.thinker):
            _prepare(profile, folder)

    @classmethod
    def of(cls, profile: Profile, chat: MiniCpmChat, parts: Parts, blocks: int) -> MiniCpmO:
        """The model of parts that are there already, and so many blocks of the pool."""
        model = cls.__new__(cls)
        model._set_up(profile, chat, parts, blocks)
        return model

    def _set_up(self, profile: Profile, chat: MiniCpmChat, parts: Parts, blocks: int) -> None:
        decoder, ears = parts
        super().__init__(profile, chat, decoder, ears, chat.markers(), blocks)
        self._places, self._units = ears, Units(chat, ears.rows)

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        return super().open(session, seed, terms) if self._places.has_room else Refused("pool_full")

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        spoke = set()
        for event in super().tick(frames):
            if isinstance(event, Said):
                spoke.add(event.session)
            yield event
        for session in spoke & self._calls.keys():
            self._units.answered(session, self._calls[session].talk.rests)

    def close(self, session: SessionId) -> None:
        self._units.forget(session)
        super().close(session)

    def _take_free(self, call: _Call[Hearing], frame: Frame, audio: list[Piece], most: int) -> None:
        """Units of a frame, with what was typed in the last of them; the model is asked once for each frame
        in which a second became whole, or something was typed."""
        talk = call.talk
        embedded_TE = next((piece for piece in audio if isinstance(piece, Tensor)), None)
        typed = self._chat.inside("\n".join(frame.texts)) if frame.texts else []
        group = self._units.wrap(frame.session, embedded_TE, typed)
        talk.speaking = bool(group)
        if group:
            if talk.after == "end":
                talk.after, talk.said = "answer", 0
            call.turn().add(group, typed=bool(frame.texts))
            call.end_turn(most)


def read_sizes(folder: Path) -> Sizes:
    """What the folder's config.json says. AssetError when it is another model, quantised or unheard of."""
    found = read_json(folder)
    kind, version = found.get("model_type"), str(found.get("version"))
    if kind != "minicpmo" or version != _VERSION:
        raise AssetError(
            f"{folder}: config.json says model_type {kind!r} and version {version!r}; "
            f"this reads 'minicpmo' {_VERSION!r}, as openbmb/MiniCPM-o-4_5 is"
        )
    audio = found.pop("audio_config", None)
    if not isinstance(audio, dict):
        raise AssetError(
            f"{folder}: config.json has no audio_config: without its ears the model is of no use"
        )
    others = ("model_type", "architectures", "auto_map", "vision_config", "tts_config", "slice_config")
    with readable(folder, "config.json"):
        text = Qwen3Config(**{name: value for name, value in found.items() if name not in others})
        sizes = Sizes(text, WhisperConfig(**audio), int(found.get("audio_pool_step", 5)))
    check_plain(text, folder)
    _check_ears(sizes, folder)
    return sizes


def _check_ears(sizes: Sizes, folder: Path) -> None:
    """AssetError when the audio part is not one that is streamed here."""
    audio = sizes.audio
    check_counts(folder, audio, _COUNTS, "audio_config")
    check_divides(folder, audio, "d_model", "encoder_attention_heads", "audio_config")
    if sizes.pool < 1 or POSITIONS % sizes.pool:
        raise AssetError(
            f"{folder}: audio_pool_step {sizes.pool} is not supported; use a divisor of {POSITIONS}"
        )
    if audio.max_source_positions < POSITIONS or audio.activation_function != "gelu":
        raise AssetError(
            f"{folder}: audio_config has {audio.max_source_positions} positions and "
            f"{audio.activation_function!r}; {POSITIONS} or more and 'gelu' are supported"
        )
    file = folder / "preprocessor_config.json"
    said = read_json(folder, file.name, "download the whole model again")
    known = {"sampling_rate": RATE, "hop_length": HOP, "n_fft": WINDOW, "feature_size": audio.num_mel_bins}
    for name, value in known.items():
        if said.get(name, value) != value:
            raise AssetError(f"{file}: {name} {said[name]} is not supported; use {value}")


def make_ears(profile: Profile, sizes: Sizes, take: Take) -> MiniCpmEars:
    """Ears for as many calls as the profile lets in. `take` gives their tensors by the published keys."""
    products = products_of(profile.model.products)
    encoder = Encoder(sizes.audio, sizes.text.hidden_size, sizes.pool, take, products)
    return MiniCpmEars(encoder, profile.admission.max_sessions)


def random_minicpm(
    profile: Profile, chat: MiniCpmChat, sizes: Sizes | None = None, seed: int = 0
) -> MiniCpmO:
    """The model with random weights, at its published size unless `sizes` says another."""
    sizes = sizes or PUBLISHED
    dtype, device = dtype_of(profile.model.dtype), device_of(profile.run.device)
    ears = make_ears(profile, sizes, _drawn(dtype, device, seed))
    config = decoder_config(sizes.text, Path(profile.model.thinker))
    rope: Any = sizes.text.rope_parameters
    decoder = random_decoder(config, theta=rope["rope_theta"], dtype=dtype, device=device, seed=seed)
    blocks = pool_blocks(profile, profile.check_fit(len(chat.header)), config, weights=0)  # they are there
    return MiniCpmO.of(profile, chat, (decoder, ears), blocks)


def _drawn(dtype: torch.dtype, device: torch.device, seed: int) -> Take:
    """Random tensors, such that states stay near 1."""
    random = torch.Generator(device).manual_seed(seed)

    def take(key: str, shape: tuple[int, ...]) -> Tensor:
        if len(shape) == 1:
            return torch.full(shape, float(key.endswith("norm.weight")), dtype=dtype, device=device)
        drawn = torch.empty(shape, dtype=dtype, device=device)
        return drawn.normal_(0, math.prod(shape[1:]) ** -0.5, generator=random)

    return take


def _prepare(profile: Profile, folder: Path) -> tuple[Sizes, MiniCpmChat, int]:
    """Sizes, chat and the blocks of its pool: what is known before anything large is read."""
    sizes, chat = read_sizes(folder), MiniCpmChat(folder, profile)
    return sizes, chat, make_room(profile, chat, sizes, count_weights(folder, PARTS))


def make_room(profile: Profile, chat: MiniCpmChat, sizes: Sizes, weights: int) -> int:
    """Blocks that the pool gets. ProfileError when they, the weights (so many numbers) and the ears' caches
    do not fit the device."""
    dtype = dtype_of(profile.model.dtype)
    cache, policy = cache_bytes(sizes.audio, dtype), profile.check_fit(len(chat.header))
    config = decoder_config(sizes.text, Path(profile.model.thinker))
    chat.check_known(config.vocab)
    # One more place than there are calls, as its ears want it.
    return pool_blocks(profile, policy, config, weights * dtype.itemsize + cache, beside=cache)


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer.json alone: the class that the folder names is code of its own, which is not run."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        folder, local_files_only=True
    )
    return tokenizer
