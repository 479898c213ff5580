"""Moshi's checkpoint into its parts: codec, backbone, depth transformer, tables of codes, text.

Knows:   key names and MoshiForConditionalGeneration, what of them is read, random parts.
Ignores: what a frame does with the parts (streams.py), calls (moshi.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig

from ..engine.checkpoint import Checkpoint
from ..engine.config_file import readable
from ..engine.decoder import Decoder, DecoderConfig, DecoderWeights, LayerWeights, Mlp
from ..engine.linear import Linear
from ..engine.weights import make_rope
from .depth import DepthLayer, DepthWeights
from .mimi import Mimi, Source
from .moshi_config import read_config, sizes_of

CODEC = "audio_encoder."
_BACKBONE = ("decoder.", "depth_decoder.", "embed_tokens.")
PADS = (
    0,
    3,
)  # text ids that say nothing: the end of a pause, and a pause (kyutai's moshi, models/loaders.py)


@dataclass(frozen=True, slots=True)
class Words:
    """Text of ids. `silent`: ids that say nothing."""

    tokenizer: Tokenizer
    silent: frozenset[int]


@dataclass(frozen=True, slots=True)
class Parts:
    """A model, loaded, on its device."""

    decoder: Decoder
    codec: Mimi
    depth: DepthWeights
    depth_heads: int
    depth_eps: float
    codes: Tensor  # [2 books x (codes + 1), hidden]: embeddings of the model's own books, then the caller's
    no_text: int  # the id that stands where no text was said yet
    no_code: int  # the same of codes; also how many codes a book has
    books: int  # of one voice
    window: int  # positions that the model was trained to see
    words: Words | None  # None: random weights, whose ids are no words


def read_parts(folder: Path, dtype: torch.dtype, device: torch.device, slots: int) -> Parts:
    """The model in `folder` for `slots` calls. AssetError naming the file, field or key that does not fit."""
    config = read_config(folder)
    words = _read_words(folder)
    codec_side = Checkpoint(folder, torch.float32, device)
    codec = _codec(config, codec_side, slots)
    codec_side.check_nothing_left(ignore=[*_BACKBONE, *_unused_books(config)])
    other_side = Checkpoint(folder, dtype, device)
    parts = _parts(config, other_side, codec, folder, words)
    other_side.check_nothing_left(ignore=[CODEC])
    return parts


def random_parts(
    config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, slots: int, seed: int = 0
) -> Parts:
    """A model of `config`'s sizes with random weights: what a frame costs does not depend on what it says."""
    codec = _codec(config, Chance(torch.float32, device, seed), slots)
    return _parts(config, Chance(dtype, device, seed + 1), codec, Path("random weights"), None)


class Chance:
    """A `Source` of random weights that keep states near 1: matrices by what goes in, norms 1, biases 0."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int) -> None:
        self.dtype, self.device = dtype, device
        self._random = torch.Generator(device).manual_seed(seed)

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """The weight of that key."""
        if key.endswith(("norm.weight", "cluster_usage")):
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        if key.endswith("bias"):
            return torch.zeros(shape, dtype=self.dtype, device=self.device)
        if key.endswith(".scale"):
            return torch.full(shape, 0.1, dtype=self.dtype, device=self.device)
        per_output = math.prod(shape[1:]) if key.endswith("conv.weight") else shape[-1]
        scale = 1.0 if "embed" in key else 1 / math.sqrt(per_output)
        values = torch.empty(shape, dtype=self.dtype, device=self.device)
        return values.normal_(0, scale, generator=self._random)


def _codec(config: PreTrainedConfig, source: Source, slots: int) -> Mimi:
    return Mimi(config.audio_encoder_config, source, CODEC, books=config.num_codebooks, slots=slots)


def _unused_books(config: PreTrainedConfig) -> Iterator[str]:
    """Prefixes of the codec's keys that Moshi has no use for."""
    codec = config.audio_encoder_config
    used = {"semantic": codec.num_semantic_quantizers}
    used["acoustic"] = config.num_codebooks - used["semantic"]
    for part, count in used.items():
        stem = f"{CODEC}quantizer.{part}_residual_vector_quantizer.layers."
        yield from (f"{stem}{number}.codebook.initialized" for number in range(count))
        if part == "acoustic":
            yield from (f"{stem}{number}." for number in range(count, codec.num_quantizers))


def _parts(config: PreTrainedConfig, source: Source, codec: Mimi, folder: Path, words: Words | None) -> Parts:
    books, codes, hidden = config.num_codebooks, config.audio_vocab_size, config.hidden_size
    tables = [
        source.take(f"embed_tokens.{number}.weight", (codes + 1, hidden)) for number in range(2 * books)
    ]
    return Parts(
        decoder=_decoder(config, source, folder),
        codec=codec,
        depth=_depth(config, source),
        depth_heads=config.depth_decoder_config.num_attention_heads,
        depth_eps=config.depth_decoder_config.rms_norm_eps,
        codes=torch.cat(tables),
        no_text=config.vocab_size,
        no_code=codes,
        books=books,
        window=config.sliding_window,
        words=words,
    )


def _decoder(config: PreTrainedConfig, source: Source, folder: Path) -> Decoder:
    """The temporal transformer. Its embedding has one id more than its head: that of no text."""
    sizes = sizes_of(config)
    take, hidden = source.take, sizes.hidden
    embedding = take("decoder.model.embed_tokens.weight", (sizes.vocab + 1, hidden))
    layers = tuple(_layer(sizes, source, f"decoder.model.layers.{n}.") for n in range(sizes.layers))
    norm = take("decoder.model.norm.weight", (hidden,))
    head = Linear(take("decoder.lm_head.weight", (sizes.vocab, hidden)))
    rope = make_rope(config, folder, embedding.dtype).to(source.device)
    return Decoder(sizes, DecoderWeights(embedding, layers, norm, head), rope)


def _layer(sizes: DecoderConfig, source: Source, prefix: str) -> LayerWeights:
    take, hidden, inner = source.take, sizes.hidden, sizes.intermediate
    rows = {"q": sizes.heads, "k": sizes.kv_heads, "v": sizes.kv_heads}
    qkv = [
        take(f"{prefix}self_attn.{n}_proj.linear.weight", (heads * sizes.head_dim, hidden))
        for n, heads in rows.items()
    ]
    out = take(prefix + "self_attn.o_proj.linear.weight", (hidden, sizes.heads * sizes.head_dim))
    return LayerWeights(
        input_norm=take(prefix + "input_layernorm.weight", (hidden,)),
        qkv=Linear(torch.cat(qkv)),
        query_norm=None,
        key_norm=None,
        out=Linear(out),
        post_norm=take(prefix + "post_attention_layernorm.weight", (hidden,)),
        mlp=Mlp(
            Linear(take(prefix + "mlp.fc1.weight", (2 * inner, hidden))),
            Linear(take(prefix + "mlp.fc2.weight", (hidden, inner))),
        ),
    )


def _depth(config: PreTrainedConfig, source: Source) -> DepthWeights:
    depth, take = config.depth_decoder_config, source.take
    books, width = depth.num_codebooks, depth.hidden_size
    codes = depth.audio_vocab_size
    name = "depth_decoder."
    return DepthWeights(
        text=take(name + "text_embed_tokens.weight", (depth.vocab_size + 1, width)),
        codes=[take(f"{name}embed_tokens.{n}.weight", (codes + 1, width)) for n in range(books - 1)],
        inward=take(name + "input_projections.weight", (books, width, depth.input_size)),
        layers=[
            _depth_layer(depth, source, f"{name}layers.{number}.")
            for number in range(depth.num_hidden_layers)
        ],
        heads=take(name + "lm_heads.weight", (books, codes, width)),
    )


def _depth_layer(depth: PreTrainedConfig, source: Source, prefix: str) -> DepthLayer:
    take, books, width = source.take, depth.num_codebooks, depth.hidden_size
    square = (books, width, width)
    return DepthLayer(
        input_norm=take(prefix + "input_layernorm.weight", (width,)),
        qkv=torch.cat([take(f"{prefix}self_attn.{n}_proj.linear.weight", square) for n in "qkv"], dim=1),
        out=take(prefix + "self_attn.o_proj.linear.weight", square),
        post_norm=take(prefix + "post_attention_layernorm.weight", (width,)),
        gate_up=take(prefix + "mlp.fc1.weight", (books, depth.ffn_dim, width)),
        down=take(prefix + "mlp.fc2.weight", (books, width, depth.ffn_dim // 2)),
    )


def _read_words(folder: Path) -> Words:
    cure = "put the checkpoint's tokenizer.json and tokenizer_config.json beside its weights"
    with readable(folder, "tokenizer", cure):
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return Words(tokenizer.backend_tokenizer, frozenset({*PADS, *tokenizer.all_special_ids}))
