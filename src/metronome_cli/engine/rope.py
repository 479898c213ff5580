"""Rotary positions: angles from integers, and the rotation itself.

Knows:   inverse frequencies, which position axis drives which frequency (mRoPE), the anchored shift.
Ignores: masks, blocks and policies' names. A token's rotary position is not its index.

Angles are float64, so a call never gets too old: at position 1e6 a float32 angle is off by 0.06 rad.
Shape letters: T tokens, A axes, H heads, D head size, F = D/2 frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin of one set of positions, [T, 1, F], ready to turn any number of heads."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x_THD: Tensor) -> Tensor:
        """Turn each head; halves are paired (i, i + D/2) as in Llama, Qwen and Moshi's ported weights."""
        first, second = x_THD.chunk(2, dim=-1)
        return torch.cat((first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1)


@dataclass(frozen=True, slots=True)
class Turns:
    """A step's two rotations: a token's own, and the one its query takes to meet the sinks."""

    own: Rotation
    to_sinks: Rotation


class Rope:
    """Makes rotations for positions of one or several axes.

    `inverse_F` are the inverse frequencies; `axis_F` names the position axis each frequency follows
    (all zero for ordinary text).
    """

    def __init__(self, inverse_F: Tensor, axis_F: Tensor | None = None, dtype: torch.dtype = torch.float32):
        self._inverse_F = inverse_F.double()
        self._axis_F = torch.zeros_like(inverse_F, dtype=torch.long) if axis_F is None else axis_F
        self._dtype = dtype

    @property
    def axes(self) -> int:
        return int(self._axis_F.max()) + 1

    def to(self, device: torch.device) -> Rope:
        """The same on another device."""
        return Rope(self._inverse_F.to(device), self._axis_F.to(device), self._dtype)

    def angles(self, rotary_TA: Tensor) -> Tensor:
        """Angles [T, F] in float64."""
        return rotary_TA[:, self._axis_F].double() * self._inverse_F

    def at(self, rotary_TA: Tensor) -> Rotation:
        """The rotation of tokens at integer positions [T, A]."""
        angle_TF = self.angles(rotary_TA)
        return Rotation(
            angle_TF.cos().to(self._dtype).unsqueeze(1), angle_TF.sin().to(self._dtype).unsqueeze(1)
        )


def mrope_axes(section: Sequence[int], interleaved: bool) -> Tensor:
    """The axis each of F frequencies follows, by a config's mrope_section: sizes of the parts of three axes.

    In runs (Qwen2.5-Omni), or interleaved (Qwen3-Omni): axes 1 and 2 have every third frequency, up to their
    size, and axis 0 has the rest.
    """
    if not interleaved:
        runs = [torch.full((size,), place % 3) for place, size in enumerate(section)]
        return torch.cat(runs)
    axis_F = torch.zeros(sum(section), dtype=torch.long)
    for axis in (1, 2):
        axis_F[axis : 3 * section[axis] : 3] = axis
    return axis_F


def anchored(rotary_TA: Tensor, index_T: Tensor, window_T: Tensor, sinks_T: Tensor) -> Tensor:
    """Where a query stands when it looks at the sinks: as if they sat just before the window.

    For a token at index t that is min(t, S + W - 1) on a single axis; other axes shift by the same
    amount (StreamingLLM's positions without ever turning a key again; design, section 4).
    """
    shift_T = (index_T - (sinks_T + window_T - 1)).clamp_min(0)
    return rotary_TA - shift_T.unsqueeze(1)
