"""Moshi's depth transformer: a state of the backbone and its text token into a frame's codes, book by book.

Knows:   weights of its own for every book, attention to the frame's earlier books, how a code is chosen.
Ignores: calls and frames (streams.py): nothing of it lasts longer than one frame.

It has no positions: each book's weights say where it stands. All steps are written out one after the other,
with nothing that the host must see, so that one graph holds them.
Shape letters: N rows, K books, B codes of a book, E the backbone's hidden size, M its own, H heads, D their
size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.decoder import swiglu
from ..engine.sampling import nucleus


@dataclass(frozen=True, slots=True)
class DepthLayer:
    """One layer's weights, of all books."""

    input_norm: Tensor  # [M]
    qkv: Tensor  # [K, 3 M, M]
    out: Tensor  # [K, M, M]
    post_norm: Tensor  # [M]
    gate_up: Tensor  # [K, 2 I, M]
    down: Tensor  # [K, M, I]


@dataclass(frozen=True, slots=True)
class DepthWeights:
    text: Tensor  # [text ids + 1, M]
    codes: list[Tensor]  # of each book but the last: [B + 1, M]
    inward: Tensor  # [K, M, E]
    layers: list[DepthLayer]
    heads: Tensor  # [K, B, M]: from a book's state to its logits


class Depth:
    """`temperature` 0 is greedy; otherwise a code is drawn from the smallest set that reaches `top_p`."""

    def __init__(
        self, weights: DepthWeights, *, heads: int, eps: float, temperature: float = 0.0, top_p: float = 1.0
    ) -> None:
        self._weights = weights
        self._heads, self._eps = heads, eps
        self._temperature, self._top_p = temperature, top_p

    def __call__(self, hidden_NE: Tensor, text_N: Tensor, uniform_NK: Tensor) -> Tensor:
        """Codes [N, K]. `uniform_NK`: float32, 0 <= u < 1, what codes are drawn with."""
        weights = self._weights
        books, width, _ = weights.inward.shape
        inward_NKM = F.linear(hidden_NE, weights.inward.flatten(0, 1)).unflatten(-1, (books, width))
        shape = (len(hidden_NE), self._heads, books, width // self._heads)
        rings = [(hidden_NE.new_empty(shape), hidden_NE.new_empty(shape)) for _ in weights.layers]
        chosen: list[Tensor] = []
        for book in range(books):
            before_NM = (
                F.embedding(chosen[-1], weights.codes[book - 1])
                if book
                else F.embedding(text_N, weights.text)
            )
            logits_NB = self._step(before_NM + inward_NKM[:, book], book, rings)
            chosen.append(self.choose(logits_NB, uniform_NK[:, book : book + 1]))
        return torch.stack(chosen, -1)

    def choose(self, logits_NB: Tensor, uniform_N1: Tensor) -> Tensor:
        """A code of each row, int64 [N]."""
        if self._temperature == 0:
            return logits_NB.argmax(-1)
        return nucleus(logits_NB.float() / self._temperature, self._top_p, uniform_N1)

    def _step(self, x_NM: Tensor, book: int, rings: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Logits [N, B] of one book; its keys and values join those of the books before it."""
        for layer, (keys_NHKD, values_NHKD) in zip(self._weights.layers, rings, strict=True):
            qkv_NM = F.linear(self._norm(x_NM, layer.input_norm), layer.qkv[book])
            query_NHD, key_NHD, value_NHD = qkv_NM.unflatten(-1, (3, self._heads, -1)).unbind(1)
            keys_NHKD[:, :, book], values_NHKD[:, :, book] = key_NHD, value_NHD
            mixed_NHD = F.scaled_dot_product_attention(
                query_NHD.unsqueeze(2), keys_NHKD[:, :, : book + 1], values_NHKD[:, :, : book + 1]
            )
            x_NM = x_NM + F.linear(mixed_NHD.flatten(1), layer.out[book])
            inner = swiglu(F.linear(self._norm(x_NM, layer.post_norm), layer.gate_up[book]))
            x_NM = x_NM + F.linear(inner, layer.down[book])
        return F.linear(x_NM, self._weights.heads[book])

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)
