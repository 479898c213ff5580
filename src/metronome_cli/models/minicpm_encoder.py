"""MiniCPM-o's audio encoder: Whisper's layers over seconds as they come, with a bounded cache.

Knows:   key names `apm.*` and `audio_projection_layer.*`, streaming attention, projection and pooling.
Ignores: samples (minicpm_mel.py), calls (minicpm_ears.py), where tensors come from.

A second sees itself and what its call has in the cache. Whisper has positions for 30 s; the published code
(OpenBMB's modeling_minicpmo.py, get_audio_embedding_streaming) forgets the whole cache when the next second
would not fit them, which is after 29 s, and counts positions from 0 again. So it is here: the model itself
bounds the cache, and a call that lasts for hours is heard as the model was published.

Shape letters: B calls, P places, T encoder positions (20 ms), N positions kept, M mel bins, E hidden size,
H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import WhisperConfig

from ..engine.linear import Linear
from .minicpm_mel import AROUND, FRAMES

Take = Callable[[str, tuple[int, ...]], Tensor]  # a tensor by its key in the checkpoint, and its shape

POSITIONS = FRAMES // 2  # of a second
_SEEN = (AROUND + FRAMES + AROUND) // 2  # positions that come out of the convolutions for one second


def most_kept(positions: int) -> int:
    """Positions of one call that are ever in its cache, where the model has `positions`."""
    return max(1, -(-(positions - _SEEN) // POSITIONS)) * POSITIONS


def cache_bytes(config: WhisperConfig, dtype: torch.dtype) -> int:
    """Memory of one call's cache."""
    kept = _round_up(most_kept(config.max_source_positions))
    return 2 * config.encoder_layers * kept * config.d_model * dtype.itemsize


def _round_up(positions: int) -> int:
    """As attention kernels want the rows of a mask."""
    return -(-positions // 16) * 16


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Tensor  # [E]
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: _Norm
    qkv: Linear  # [3 E, E]
    out: Linear  # [E, E]
    norm: _Norm
    up: Linear  # [I, E]
    down: Linear  # [E, I]


@dataclass(frozen=True, slots=True)
class _Spots:
    """Where a batch's new positions go in the cache, and what each place may look at."""

    rows_B: Tensor  # places of the calls
    at_BT: Tensor  # positions
    mask_P11N: Tensor  # 0 at the positions that a place's queries see, -inf elsewhere

    @classmethod
    def of(cls, places: Sequence[int], pasts: Sequence[int], like: Tensor) -> _Spots:
        """Of calls at `places` with so many positions before; on the device and in the dtype of `like`."""
        places_B, past_B = (torch.tensor(some, device=like.device) for some in (places, pasts))
        ends_P = torch.ones(max(places) + 1, dtype=torch.long, device=like.device)
        ends_P[places_B] = past_B + POSITIONS
        kept_N = torch.arange(_round_up(max(pasts) + POSITIONS), device=like.device)
        mask_PN = torch.zeros((len(ends_P), len(kept_N)), dtype=like.dtype, device=like.device)
        mask_PN.masked_fill_(kept_N >= ends_P.unsqueeze(1), -torch.inf)
        at_BT = past_B.unsqueeze(1) + torch.arange(POSITIONS, device=like.device)
        return cls(places_B, at_BT, mask_PN[:, None, None])


class Encoder:
    """Seconds of features into embeddings for the backbone. Each call's cache lies at a place of its own."""

    def __init__(
        self, config: WhisperConfig, out: int, pool: int, take: Take, products: torch.dtype | None = None
    ) -> None:
        """`out`: the backbone's hidden size. `pool`: encoder positions that one embedding is the mean of."""
        self.config = config
        self._pool, self._width = pool, out
        self.rows = POSITIONS // pool  # embeddings of a second
        size, mels = config.d_model, config.num_mel_bins
        linear = partial(_linear, take, products)
        self._conv1 = take("apm.conv1.weight", (size, mels, 3)), take("apm.conv1.bias", (size,))
        self._conv2 = take("apm.conv2.weight", (size, size, 3)), take("apm.conv2.bias", (size,))
        self._positions_NE = take("apm.embed_positions.weight", (config.max_source_positions, size))
        self._layers = [_layer(config, take, products, number) for number in range(config.encoder_layers)]
        self._norm = _norm(take, "apm.layer_norm", size)
        self._into = linear("audio_projection_layer.linear1", out, size)
        self._out = linear("audio_projection_layer.linear2", out, out)
        self._keys_LPNHD = self._values_LPNHD = torch.empty(0)

    @property
    def dtype(self) -> torch.dtype:
        return self._positions_NE.dtype

    @property
    def device(self) -> torch.device:
        return self._positions_NE.device

    def nothing(self) -> Tensor:
        """Embeddings of no audio, [0, out]."""
        return self._positions_NE.new_empty((0, self._width))

    def make_room(self, places: int) -> None:
        """The cache of `places` calls, all at once: nothing is allocated while calls are heard."""
        config = self.config
        heads, kept = config.encoder_attention_heads, _round_up(most_kept(config.max_source_positions))
        shape = (config.encoder_layers, places, kept, heads, config.d_model // heads)
        self._keys_LPNHD = self._positions_NE.new_zeros(shape)
        self._values_LPNHD = self._positions_NE.new_zeros(shape)

    def open(self, place: int) -> None:
        """A new call's. A mask does not hide NaN, so nothing of who was here before may stay."""
        self._keys_LPNHD[:, place] = 0
        self._values_LPNHD[:, place] = 0

    def next_past(self, past: int) -> int:
        """Of `past` positions in a call's cache, those that its next second sees: all, or none."""
        return past if past + _SEEN < self.config.max_source_positions else 0

    def __call__(
        self, features_BMT: Tensor, places: Sequence[int], pasts: Sequence[int], ages: Sequence[int]
    ) -> Tensor:
        """Embeddings [B, POSITIONS / pool, out] of one second of each call.

        `pasts`: as `next_past` says. `ages`: seconds of the call that came before.
        """
        x_BTE = self._convolve(features_BMT.to(self.dtype), ages)
        spots = _Spots.of(places, pasts, x_BTE)
        x_BTE = x_BTE + self._positions_NE[spots.at_BT]
        for layer, keys_PNHD, values_PNHD in zip(
            self._layers, self._keys_LPNHD, self._values_LPNHD, strict=True
        ):
            qkv_BTE = layer.qkv(layer.attention_norm(x_BTE))
            x_BTE = x_BTE + layer.out(_attend(qkv_BTE, keys_PNHD, values_PNHD, spots))
            x_BTE = x_BTE + layer.down(F.gelu(layer.up(layer.norm(x_BTE))))
        x_BTE = F.relu(self._into(self._norm(x_BTE)))
        # The mean before the last product instead of after it: the same, at a fifth of the work.
        return self._out(x_BTE.unflatten(1, (-1, self._pool)).mean(2))

    def _convolve(self, features_BMT: Tensor, ages: Sequence[int]) -> Tensor:
        """[B, POSITIONS, E]; what stands for the frames around the second is left out again."""
        x_BET = F.gelu(F.conv1d(features_BMT, *self._conv1, padding=1))
        x_BET[[row for row, age in enumerate(ages) if age == 0], :, :AROUND] = 0  # nothing came before
        x_BET = F.gelu(F.conv1d(x_BET, *self._conv2, stride=2, padding=1))
        return x_BET[:, :, AROUND // 2 : AROUND // 2 + POSITIONS].transpose(1, 2)


def _attend(qkv_BTE: Tensor, keys_PNHD: Tensor, values_PNHD: Tensor, spots: _Spots) -> Tensor:
    """[B, T, E]: writes the new keys and values and looks at what its call has.

    Queries are laid out by place, so that the cache is read where it lies. Places between those of the batch
    answer nothing that anybody reads.
    """
    heads = keys_PNHD.shape[2]
    query_BTHD, key_BTHD, value_BTHD = (x.unflatten(-1, (heads, -1)) for x in qkv_BTE.chunk(3, dim=-1))
    keys_PNHD[spots.rows_B.unsqueeze(1), spots.at_BT] = key_BTHD
    values_PNHD[spots.rows_B.unsqueeze(1), spots.at_BT] = value_BTHD
    places, kept = spots.mask_P11N.shape[0], spots.mask_P11N.shape[-1]
    query_PTHD = query_BTHD.new_zeros((places, *query_BTHD.shape[1:]))
    query_PTHD[spots.rows_B] = query_BTHD
    found_PHTD = F.scaled_dot_product_attention(
        query_PTHD.transpose(1, 2),
        keys_PNHD[:places, :kept].transpose(1, 2),
        values_PNHD[:places, :kept].transpose(1, 2),
        attn_mask=spots.mask_P11N.expand(-1, -1, query_PTHD.shape[1], -1),
    )
    return found_PHTD.transpose(1, 2)[spots.rows_B].flatten(2)


def _norm(take: Take, key: str, size: int) -> _Norm:
    return _Norm(take(f"{key}.weight", (size,)), take(f"{key}.bias", (size,)))


def _linear(take: Take, products: torch.dtype | None, key: str, out: int, size: int) -> Linear:
    return Linear(take(f"{key}.weight", (out, size)), take(f"{key}.bias", (out,)), products)


def _layer(config: WhisperConfig, take: Take, products: torch.dtype | None, number: int) -> _Layer:
    size, inner, prefix = config.d_model, config.encoder_ffn_dim, f"apm.layers.{number}."
    attention = prefix + "self_attn."
    linear = partial(_linear, take, products)
    weights = [take(f"{attention}{name}_proj.weight", (size, size)) for name in "qkv"]
    query_bias, value_bias = (take(f"{attention}{name}_proj.bias", (size,)) for name in "qv")
    biases = torch.cat((query_bias, torch.zeros_like(query_bias), value_bias))  # keys have none
    return _Layer(
        attention_norm=_norm(take, prefix + "self_attn_layer_norm", size),
        qkv=Linear(torch.cat(weights), biases, products),
        out=linear(attention + "out_proj", size, size),
        norm=_norm(take, prefix + "final_layer_norm", size),
        up=linear(prefix + "fc1", inner, size),
        down=linear(prefix + "fc2", size, inner),
    )
