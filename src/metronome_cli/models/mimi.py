"""Mimi, the codec: sound to codes and codes to sound, a frame at a time, many calls in one batch.

Knows:   Mimi's layers as transformers names them (MimiModel), its codebooks, each call's slot.
Ignores: what codes mean to a language model (moshi.py), graphs (replay.py).

transformers streams calls of one age, and only while encoding; here calls of any ages go together both ways.
Everything is float32 whatever the backbone is: a code is the nearest of 2,048 neighbours.
Shape letters: N rows, L samples, K codebooks, B codes of a book, E hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedConfig

from ..engine.weights import make_rope
from .causal import (
    AttentionSizes,
    AttentionWeights,
    Block,
    Conv,
    Memory,
    Rows,
    Transformer,
    TransposedConv,
    elu,
)

Layer = Callable[[Tensor, Rows], Tensor]


class Source(Protocol):
    """Where weights come from: a checkpoint, or chance."""

    device: torch.device

    def take(self, key: str, shape: tuple[int, ...]) -> Tensor:
        """The weight of that key."""
        ...


class Mimi:
    """The codec of `slots` calls. `books`: codebooks that are used, the semantic ones among them.

    AssetError as in `Source.take`.
    """

    def __init__(
        self, config: PreTrainedConfig, source: Source, prefix: str, *, books: int, slots: int
    ) -> None:
        build = _Builder(config, source, prefix, slots)
        self.frame_samples = build.hop * build.stride  # of one code of each book
        self.memory = build.memory
        self._ears, ears_transformer = build.ears()
        self._mouth, mouth_transformer = build.mouth()
        self._fresh = (ears_transformer, mouth_transformer)
        self._books = _Books(config, source, f"{prefix}quantizer.", books)

    def encode(self, audio_NL: Tensor, slot_N: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [N, K] of one frame of each row, and whether its latents are finite, bool [N].

        `audio_NL`: float32, `frame_samples` each, -1..1. A row that is not finite has codes without meaning.
        """
        latent_NE = self.latents(audio_NL, slot_N)
        return self.nearest(latent_NE), latent_NE.isfinite().all(-1)

    def latents(self, audio_NL: Tensor, slot_N: Tensor) -> Tensor:
        """What `encode` finds codes for, [N, E]."""
        return self._run(self._ears, audio_NL.unsqueeze(1), slot_N, self._fresh[0]).squeeze(-1)

    def nearest(self, latent_NE: Tensor) -> Tensor:
        """Codes [N, K] of latents."""
        return self._books.nearest(latent_NE)

    def decode(self, codes_NK: Tensor, slot_N: Tensor) -> Tensor:
        """Sound [N, frame_samples] of one frame's codes of each row."""
        latent_NE1 = self._books.latents(codes_NK).unsqueeze(-1)
        return self._run(self._mouth, latent_NE1, slot_N, self._fresh[1]).squeeze(1)

    @staticmethod
    def _run(layers: list[Layer], x: Tensor, slot_N: Tensor, age: Transformer) -> Tensor:
        rows = Rows(slot_N, age.is_fresh(slot_N))
        for layer in layers:
            x = layer(x, rows)
        return x


class _Books:
    """Residual codebooks: the semantic ones quantise the latent, the acoustic ones the same latent anew."""

    def __init__(self, config: PreTrainedConfig, source: Source, prefix: str, books: int) -> None:
        self._semantic = config.num_semantic_quantizers
        self._inward, self._codes, tables = [], [], []
        for part, count in (("semantic", self._semantic), ("acoustic", books - self._semantic)):
            stem = f"{prefix}{part}_residual_vector_quantizer."
            inner, outer = config.vector_quantization_hidden_dimension, config.hidden_size
            inward = source.take(stem + "input_proj.weight", (inner, outer, 1)).squeeze(-1)
            outward = source.take(stem + "output_proj.weight", (outer, inner, 1)).squeeze(-1)
            self._inward.append(inward)
            for number in range(count):
                codes_BD = _codebook(config, source, f"{stem}layers.{number}.codebook.")
                self._codes.append((codes_BD, codes_BD.square().sum(-1) / 2))
                tables.append(codes_BD @ outward.t())
        self._tables_TE = torch.cat(tables)  # what each code adds to a latent, book after book
        self._first_K = torch.arange(books, device=source.device) * config.codebook_size

    def nearest(self, latent_NE: Tensor) -> Tensor:
        """Codes [N, K]."""
        found = []
        for number, (codes_BD, half_squares_B) in enumerate(self._codes):
            if number in (0, self._semantic):
                left_ND = F.linear(latent_NE, self._inward[number > 0])
            # |x - c|^2 is least where x.c - |c|^2 / 2 is most.
            code_N = (left_ND @ codes_BD.t() - half_squares_B).argmax(-1)
            left_ND = left_ND - codes_BD[code_N]
            found.append(code_N)
        return torch.stack(found, -1)

    def latents(self, codes_NK: Tensor) -> Tensor:
        """[N, E]."""
        return F.embedding(codes_NK + self._first_K, self._tables_TE).sum(1)


def _codebook(config: PreTrainedConfig, source: Source, stem: str) -> Tensor:
    """A book's codes [B, D]: checkpoints hold sums, and what to divide them by."""
    sums = source.take(stem + "embed_sum", (config.codebook_size, config.codebook_dim))
    usage = source.take(stem + "cluster_usage", (config.codebook_size,))
    return sums / usage.clamp(min=1e-5).unsqueeze(1)


class _Builder:
    """Layers by their keys, in the order in which sound goes through them."""

    def __init__(self, config: PreTrainedConfig, source: Source, prefix: str, slots: int) -> None:
        self._config, self._source, self._prefix = config, source, prefix
        self.memory = Memory(slots, source.device)
        self.hop = math.prod(config.upsampling_ratios)  # samples of a step of the transformers
        self.stride = round(config.sampling_rate / config.frame_rate) // self.hop  # such steps of a frame

    def ears(self) -> tuple[list[Layer], Transformer]:
        """Sound to latents, and the transformer within."""
        config, width = self._config, self._config.num_filters
        layers: list[Layer] = [self._conv("encoder.layers.0", 1, width, config.kernel_size)]
        for ratio in reversed(config.upsampling_ratios):
            self._add_blocks(layers, "encoder", width)
            layers.append(elu)
            name = f"encoder.layers.{len(layers)}"
            layers.append(self._conv(name, width, 2 * width, 2 * ratio, stride=ratio))
            width *= 2
        layers.append(elu)
        name, hidden = f"encoder.layers.{len(layers)}", config.hidden_size
        layers.append(self._conv(name, width, hidden, config.last_kernel_size))
        transformer = self._transformer("encoder_transformer")
        weight = self._take("downsample.conv.weight", hidden, hidden, 2 * self.stride)
        down = Conv(self.memory, weight, stride=self.stride, repeats_first=True)
        return [*layers, transformer, down], transformer

    def mouth(self) -> tuple[list[Layer], Transformer]:
        """Latents to sound, and the transformer within."""
        config, hidden, groups = self._config, self._config.hidden_size, self._config.upsample_groups
        weight = self._take("upsample.conv.weight", hidden, hidden // groups, 2 * self.stride)
        up = TransposedConv(self.memory, weight, None, self.stride, groups)
        transformer = self._transformer("decoder_transformer")
        width = config.num_filters * 2 ** len(config.upsampling_ratios)
        layers: list[Layer] = [self._conv("decoder.layers.0", hidden, width, config.kernel_size)]
        for ratio in config.upsampling_ratios:
            layers.append(elu)
            name = f"decoder.layers.{len(layers)}.conv."
            weight = self._take(name + "weight", width, width // 2, 2 * ratio)
            bias = self._take(name + "bias", width // 2)
            layers.append(TransposedConv(self.memory, weight, bias, ratio))
            width //= 2
            self._add_blocks(layers, "decoder", width)
        layers.append(elu)
        layers.append(self._conv(f"decoder.layers.{len(layers)}", width, 1, config.last_kernel_size))
        return [up, transformer, *layers], transformer

    def _add_blocks(self, layers: list[Layer], part: str, width: int) -> None:
        """A ratio's residual blocks. A layer's number in a checkpoint is its place in `layers`."""
        config = self._config
        inner, kernel = width // config.compress, config.residual_kernel_size
        for repeat in range(config.num_residual_layers):
            name = f"{part}.layers.{len(layers)}.block."
            dilation = config.dilation_growth_rate**repeat
            first = self._conv(name + "1", width, inner, kernel, dilation=dilation)
            layers.append(Block(first, self._conv(name + "3", inner, width, 1)))

    def _conv(
        self, name: str, inward: int, outward: int, kernel: int, stride: int = 1, dilation: int = 1
    ) -> Conv:
        weight = self._take(name + ".conv.weight", outward, inward, kernel)
        bias = self._take(name + ".conv.bias", outward)
        return Conv(self.memory, weight, bias, stride, dilation)

    def _transformer(self, name: str) -> Transformer:
        config = self._config
        layers = [self._layer(f"{name}.layers.{number}.") for number in range(config.num_hidden_layers)]
        rope = make_rope(config, Path(name), torch.float32).to(self._source.device)
        sizes = AttentionSizes(
            config.num_attention_heads, config.sliding_window, self.stride, config.norm_eps
        )
        return Transformer(self.memory, layers, rope, sizes)

    def _layer(self, name: str) -> AttentionWeights:
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        out_scale = self._take(name + "self_attn_layer_scale.scale", hidden).unsqueeze(1)
        down_scale = self._take(name + "mlp_layer_scale.scale", hidden).unsqueeze(1)
        return AttentionWeights(
            input_norm=self._take(name + "input_layernorm.weight", hidden),
            input_norm_bias=self._take(name + "input_layernorm.bias", hidden),
            qkv=torch.cat([self._take(f"{name}self_attn.{n}_proj.weight", hidden, hidden) for n in "qkv"]),
            out=self._take(name + "self_attn.o_proj.weight", hidden, hidden) * out_scale,
            post_norm=self._take(name + "post_attention_layernorm.weight", hidden),
            post_norm_bias=self._take(name + "post_attention_layernorm.bias", hidden),
            up=self._take(name + "mlp.fc1.weight", inner, hidden),
            down=self._take(name + "mlp.fc2.weight", hidden, inner) * down_scale,
        )

    def _take(self, key: str, *shape: int) -> Tensor:
        return self._source.take(self._prefix + key, shape)
