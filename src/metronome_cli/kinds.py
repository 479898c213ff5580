"""The kinds of models that come with this program: what each is, takes and gives, without loading any.

Knows:   each `model.kind` of a profile, where its class stands, its weights' fields, its audio, its cache.
Ignores: how any of it works (models/), and what a profile makes of it.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Literal

Output = Literal["text", "audio"]

_OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


_TOKENS_A_WORD = 4 / 3


@dataclass(frozen=True, slots=True)
class Cache:
    """What a token leaves in the pool: a key and a value of `kv_heads` x `head_dim` numbers in each layer."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, width: int) -> int:
        """Bytes of one token's keys and values, `width` bytes a number."""
        return 2 * self.layers * self.kv_heads * self.head_dim * width


_SMALL = {"smollm2-135m-instruct": Cache(30, 3, 64)}


@dataclass(frozen=True, slots=True)
class Kind:
    """One `model.kind`."""

    place: str  # module:Class
    about: str
    weights: tuple[str, ...] = ("thinker",)  # the fields of [model] that name checkpoints
    rate: int | None = 16_000  # samples per second of the audio that it hears; None: any
    output: Output = "text"
    reads: bool = True  # typed text is more to it than nothing
    per_s: float = 0.0  # positions at least that a second of audio becomes, all in one piece a frame
    refuses: tuple[str, ...] = ()  # in words, beside what every kind does
    caches: dict[str, Cache] = field(default_factory=dict)  # by the last part of a hub id, in lower case
    pinned: int | None = 8  # tokens of a header beside its words: a chat's markers; None: nobody knows
    beside: int = 0  # bytes that a call of the published model takes beside the pool, in 16 bits
    types: tuple[str, ...] = ()  # what a thinker's config.json may have as model_type
    unused: tuple[str, ...] = ()  # fields of a profile that it never looks at

    def header_tokens(self, header: str) -> int:
        """Tokens of a header, as its words let expect: a tokenizer that is not here cannot count them."""
        if self.pinned is None:
            return 0
        words = 0 if "model.header" in self.unused else len(header.split())
        return math.ceil(words * _TOKENS_A_WORD) + self.pinned

    @property
    def cache(self) -> Cache | None:
        """Of a checkpoint of this kind that nobody has looked at: known where there is only one size."""
        one_size = len(self.caches) == 1 and self.caches is not _SMALL
        return next(iter(self.caches.values())) if one_size else None


_HERE = "metronome_cli.models"
_WORDS_OF_EARS = ("model.ears", "model.heard_tokens")  # a Whisper's; other models hear by themselves
_SAMPLING = ("model.temperature", "model.top_p", "run.seed")
_TEXTS = ("llama", "qwen2", "qwen3", "qwen3_moe")
_OMNI = ("a frame whose audio, with its markers, is not less than beat.prefill_tokens",)

KINDS = {
    "cascade": Kind(
        f"{_HERE}.cascade:Cascade",
        "Its ears hear speech, its thinker answers.",
        ("thinker", "ears"),
        caches=_SMALL,
        types=_TEXTS,
    ),
    "text": Kind(
        f"{_HERE}.text:TextModel",
        "It answers typed messages; without ears it cannot hear audio.",
        rate=None,
        caches=_SMALL,
        types=_TEXTS,
        unused=(*_WORDS_OF_EARS, "model.rate"),
    ),
    "null": Kind(
        f"{_HERE}.null:NullModel",
        "A null model, without weights: it says one fixed sentence, to measure all but a model.",
        (),
        rate=None,
        pinned=0,
        unused=(
            *("model.thinker", "model.dtype", "model.products", "model.max_reply"),
            *(*_WORDS_OF_EARS, *_SAMPLING, "window.positions", "pool.kv", "run.device", "run.threads"),
        ),
    ),
    "qwen2.5-omni": Kind(
        f"{_HERE}.qwen_omni:QwenOmni",
        "Qwen2.5-Omni: its audio tower's embeddings stand among the text; it answers in text.",
        per_s=25,
        refuses=_OMNI,
        unused=_WORDS_OF_EARS,
        caches={"qwen2.5-omni-7b": Cache(28, 4, 128), "qwen2.5-omni-3b": Cache(36, 2, 128)},
        types=("qwen2_5_omni", "qwen2_5_omni_thinker"),
    ),
    "qwen3-omni": Kind(
        f"{_HERE}.qwen_omni:QwenOmni",
        "Qwen3-Omni: its audio tower's embeddings stand among the text; it answers in text.",
        per_s=12.5,
        refuses=_OMNI,
        unused=_WORDS_OF_EARS,
        caches={"qwen3-omni-30b-a3b-instruct": Cache(48, 4, 128)},
        types=("qwen3_omni_moe", "qwen3_omni_moe_thinker"),
    ),
    "minicpm-o": Kind(
        f"{_HERE}.minicpm_o:MiniCpmO",
        "MiniCPM-o: it hears a second at a time, and answers in text.",
        per_s=10,
        refuses=_OMNI,
        caches={"minicpm-o-4_5": Cache(36, 8, 128)},
        beside=143_130_624,  # its audio encoder's cache
        unused=_WORDS_OF_EARS,
        types=("minicpmo",),
    ),
    "moshi": Kind(
        f"{_HERE}.moshi:Moshi",
        "Moshi: it listens and speaks at once, and thinks aloud in text.",
        rate=24_000,
        output="audio",
        reads=False,
        refuses=(
            "any beat.frame_s but 0.08, any beat.tau but 1, model.mode = turn",
            "a window of fewer than 2 or more than 3000 positions",
        ),
        caches={"hf-moshiko": Cache(32, 32, 128)},
        pinned=2,  # positions that hold no code yet
        beside=16_908_288,  # its codec
        unused=(*_WORDS_OF_EARS, "model.header", "model.max_reply", "model.products"),
        types=("moshi",),
    ),
}


def is_own(kind: str) -> bool:
    """Whether `kind` has the form "package.module:Class": a model of the user's own."""
    return _OWN.fullmatch(kind) is not None


def kind_of(name: str) -> Kind:
    """What is known of a profile's `model.kind`; of a user's own model only where it stands."""
    if name in KINDS:
        return KINDS[name]
    about = "A model of your own: what it needs, only it knows."
    return Kind(name, about, (), rate=None, pinned=None)
