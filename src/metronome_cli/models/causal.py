"""Causal layers that take a stream piece by piece; what they remember lies in one tensor for all calls.

Knows:   convolutions, transposed ones, attention over a window; rows of calls of any ages in one batch.
Ignores: which codec is made of them (mimi.py), which call has which slot (moshi.py).

A call has a slot: one row of every layer's memory, of the same size at any age. The last slot is scratch, for
rows that only fill a batch up. A piece gives what the whole stream would have given at its place.
Shape letters: N rows, C channels, L steps of time, S slots, E hidden size, H heads, D head size, W window,
R places of a ring.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.rope import Rope, Rotation

_ALIGNED = 8  # places: masks of such widths are what fused attention takes as they are


class Memory:
    """What layers remember of every call. A fresh slot is all zeros."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.scratch = slots
        self._device = device
        self._kept: list[Tensor] = []

    def make(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Room for one layer, [S + 1, *shape]."""
        kept = torch.zeros((self.scratch + 1, *shape), dtype=dtype, device=self._device)
        self._kept.append(kept)
        return kept

    def wipe(self, slot: int) -> None:
        """Forget the call that had `slot`. Zeros, not only an age of zero: a mask does not hide NaN."""
        for kept in self._kept:
            kept[slot].zero_()

    def of(self, slot: int) -> list[Tensor]:
        """What is remembered in `slot`, layer by layer."""
        return [kept[slot] for kept in self._kept]

    @property
    def slot_bytes(self) -> int:
        """Memory of one call."""
        return sum(kept[0].nbytes for kept in self._kept)


@dataclass(frozen=True, slots=True)
class Rows:
    """Whose pieces a batch holds."""

    slot_N: Tensor  # int64; scratch may come more than once
    first_N: Tensor  # bool: nothing came before


class _Past:
    """The last `steps` inputs of a layer. Before the first: zeros, or that first one again."""

    def __init__(self, memory: Memory, channels: int, steps: int, repeats_first: bool = False) -> None:
        self._steps, self._repeats_first = steps, repeats_first
        self._kept_SCL = memory.make(channels, steps) if steps else None

    def join(self, x_NCL: Tensor, rows: Rows) -> Tensor:
        """[N, C, steps + L]; keeps its end for the next piece."""
        if self._kept_SCL is None:
            return x_NCL
        past_NCL = self._kept_SCL[rows.slot_N]
        if self._repeats_first:
            past_NCL = torch.where(rows.first_N[:, None, None], x_NCL[..., :1], past_NCL)
        joined_NCL = torch.cat((past_NCL, x_NCL), -1)
        self._kept_SCL.index_copy_(0, rows.slot_N, joined_NCL[..., -self._steps :])
        return joined_NCL


class Conv:
    """A causal convolution: `weight` [out, C, kernel], `bias` [out]."""

    def __init__(
        self,
        memory: Memory,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: int = 1,
        dilation: int = 1,
        repeats_first: bool = False,
    ) -> None:
        self._weight, self._bias = weight, bias
        self._stride, self._dilation = stride, dilation
        steps = (weight.shape[-1] - 1) * dilation + 1 - stride
        self._past = _Past(memory, weight.shape[1], steps, repeats_first)

    def __call__(self, x_NCL: Tensor, rows: Rows) -> Tensor:
        """[N, out, L / stride]; L must be a multiple of the stride."""
        joined_NCL = self._past.join(x_NCL, rows)
        return F.conv1d(joined_NCL, self._weight, self._bias, self._stride, dilation=self._dilation)


class TransposedConv:
    """A causal transposed convolution: `weight` [C, out / groups, kernel]."""

    def __init__(
        self, memory: Memory, weight: Tensor, bias: Tensor | None, stride: int, groups: int = 1
    ) -> None:
        self._weight, self._bias = weight, bias
        self._stride, self._groups = stride, groups
        self._steps = (weight.shape[-1] - 1) // stride  # earlier inputs that reach into an output
        self._past = _Past(memory, weight.shape[0], self._steps)

    def __call__(self, x_NCL: Tensor, rows: Rows) -> Tensor:
        """[N, out, L x stride]."""
        joined_NCL = self._past.join(x_NCL, rows)
        spread = F.conv_transpose1d(joined_NCL, self._weight, self._bias, self._stride, groups=self._groups)
        begin = self._steps * self._stride
        return spread[..., begin : begin + x_NCL.shape[-1] * self._stride]


class Block:
    """A residual block: two convolutions, an ELU before each."""

    def __init__(self, first: Conv, second: Conv) -> None:
        self._first, self._second = first, second

    def __call__(self, x_NCL: Tensor, rows: Rows) -> Tensor:
        inner_NCL = self._first(F.elu(x_NCL), rows)
        return x_NCL + self._second(F.elu(inner_NCL), rows)


def elu(x_NCL: Tensor, rows: Rows) -> Tensor:
    """A layer that remembers nothing."""
    return F.elu(x_NCL)


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One layer. What a checkpoint scales the two answers by is in `out` and `down` already."""

    input_norm: Tensor  # [E]
    input_norm_bias: Tensor
    qkv: Tensor  # [3 E, E]
    out: Tensor  # [E, E]
    post_norm: Tensor
    post_norm_bias: Tensor
    up: Tensor  # [I, E]
    down: Tensor  # [E, I]


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    heads: int
    window: int  # steps that one attends to, itself included
    piece: int  # steps that come at a time
    eps: float  # of the norms


class Transformer:
    """Layers of attention over a window, with rotary positions.

    Keys and values lie in rings, at a step's number modulo their length.
    """

    def __init__(
        self, memory: Memory, layers: list[AttentionWeights], rope: Rope, sizes: AttentionSizes
    ) -> None:
        hidden = layers[0].out.shape[0]
        self._layers, self._rope, self._sizes = layers, rope, sizes
        self._places = -(-(sizes.window + sizes.piece - 1) // _ALIGNED) * _ALIGNED
        self._age_S = memory.make(dtype=torch.int64)  # steps that came so far
        self._rings = [(memory.make(self._places, hidden), memory.make(self._places, hidden)) for _ in layers]

    def is_fresh(self, slot_N: Tensor) -> Tensor:
        """Bool [N]: nothing came yet."""
        return self._age_S[slot_N] == 0

    def __call__(self, x_NCL: Tensor, rows: Rows) -> Tensor:
        """[N, E, L] of [N, E, L], no final norm."""
        steps = x_NCL.shape[-1]
        start_N = self._age_S[rows.slot_N]
        index_NL = start_N.unsqueeze(1) + torch.arange(steps, device=start_N.device)
        self._age_S.index_copy_(0, rows.slot_N, start_N + steps)
        turn = self._rope.at(index_NL.reshape(-1, 1))
        place_T = (rows.slot_N.unsqueeze(1) * self._places + index_NL % self._places).flatten()
        sees_N1LR = self._sees(index_NL).unsqueeze(1)
        x_NLE = x_NCL.transpose(1, 2)
        for layer, (keys_SRE, values_SRE) in zip(self._layers, self._rings, strict=True):
            normed = self._norm(x_NLE, layer.input_norm, layer.input_norm_bias)
            query_NLE, key_TE, value_TE = self._project(normed, layer, turn)
            keys_SRE.flatten(0, 1).index_copy_(0, place_T, key_TE)
            values_SRE.flatten(0, 1).index_copy_(0, place_T, value_TE)
            mixed_NHLD = F.scaled_dot_product_attention(
                self._by_head(query_NLE),
                self._by_head(keys_SRE[rows.slot_N]),
                self._by_head(values_SRE[rows.slot_N]),
                attn_mask=sees_N1LR,
            )
            x_NLE = x_NLE + F.linear(mixed_NHLD.transpose(1, 2).flatten(2), layer.out)
            normed = self._norm(x_NLE, layer.post_norm, layer.post_norm_bias)
            x_NLE = x_NLE + F.linear(F.gelu(F.linear(normed, layer.up)), layer.down)
        return x_NLE.transpose(1, 2)

    def _sees(self, index_NL: Tensor) -> Tensor:
        """Bool [N, L, R]: which places each step attends to, once all of the piece are in the ring."""
        last_N1 = index_NL[:, -1:]
        place_R = torch.arange(self._places, device=index_NL.device)
        held_N1R = (last_N1 - (last_N1 - place_R) % self._places).unsqueeze(1)  # the step that a place holds
        index_NL1 = index_NL.unsqueeze(-1)
        sees_NLR: Tensor = (
            (held_N1R >= 0) & (held_N1R <= index_NL1) & (held_N1R > index_NL1 - self._sizes.window)
        )
        return sees_NLR

    def _project(
        self, normed_NLE: Tensor, layer: AttentionWeights, turn: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries [N, L, E], turned keys and values [N x L, E]."""
        query, key, value = F.linear(normed_NLE, layer.qkv).flatten(0, 1).chunk(3, dim=-1)
        size = (self._sizes.heads, query.shape[-1] // self._sizes.heads)
        query, key = (turn(x.unflatten(-1, size)).flatten(1) for x in (query, key))
        return query.view(normed_NLE.shape), key, value

    def _by_head(self, x_NLE: Tensor) -> Tensor:
        x_NLHD: Tensor = x_NLE.unflatten(-1, (self._sizes.heads, -1))
        return x_NLHD.transpose(1, 2)

    def _norm(self, x_NLE: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.layer_norm(x_NLE, weight.shape, weight, bias, self._sizes.eps)
