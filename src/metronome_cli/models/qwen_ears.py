"""The ears of the Qwen-Omni models: each frame's audio is a clip, heard as the model's processor hears one.

Knows:   where clips are cut, that a call keeps less than 0.2 s of audio, batches of clips of bounded memory.
Ignores: features (log_mel.py), the tower (qwen_tower.py), whose turn it is.

Neither the features nor the tower's convolutions look beyond a clip, so nothing of what was heard is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .log_mel import LogMel
from .qwen_tower import Tower

RATE = 16_000  # samples per second
_LEAST = 1600  # samples, 0.1 s: less waits for more,
_LAST = 480  # or, at the end of an utterance, is left out when it is less than that
_LEFT = (
    3200  # less than that behind a whole chunk waits: packets come early or late, and a chunk is to be whole
)
_BATCH = 512 * RATE  # samples, padding included, that are heard at once

_NOTHING = np.zeros(0, np.float32)


@dataclass(slots=True)
class Waiting:
    """One call's audio that was not heard yet; less than `_LEFT` samples."""

    samples: NDArray[np.float32] = field(default_factory=lambda: _NOTHING)


class QwenEars:
    """Hears any number of calls; `tower` and `mel` live on `device`. `hidden`: size of an embedding."""

    rate = RATE

    def __init__(self, tower: Tower, mel: LogMel, hidden: int, device: torch.device) -> None:
        self._tower = tower
        self._mel = mel
        self._nothing = torch.zeros((0, hidden), device=device)

    def open(self) -> Waiting:
        return Waiting()

    def positions(self, samples: int) -> int:
        return self._tower.positions(samples // self._mel.hop)

    @torch.inference_mode()
    def hear(
        self, calls: Sequence[Waiting], pieces: Sequence[NDArray[np.float32]], ends: Sequence[bool]
    ) -> list[Tensor]:
        """Embeddings [T, hidden] of each call's clip, as `parts.Ears.hear`. NaN stays within its call."""
        clips = [self._cut(call, piece, end) for call, piece, end in zip(calls, pieces, ends, strict=True)]
        heard = [self._nothing] * len(clips)
        # By length, so that few are padded much.
        order = sorted((row for row, clip in enumerate(clips) if len(clip)), key=lambda row: len(clips[row]))
        for rows in _batches(order, [len(clip) for clip in clips]):
            some = [clips[row] for row in rows]
            frames = [len(clip) // self._mel.hop for clip in some]
            for row, embedded_TE in zip(rows, self._tower(self._mel(some), frames), strict=True):
                heard[row] = embedded_TE
        return heard

    def _cut(self, call: Waiting, piece: NDArray[np.float32], end: bool) -> NDArray[np.float32]:
        """The call's next clip, of whole hops; what is left of its audio waits."""
        audio = np.concatenate((call.samples, piece)) if len(call.samples) else piece
        chunk = self._tower.chunk * self._mel.hop
        size = len(audio) // self._mel.hop * self._mel.hop
        whole = len(audio) // chunk * chunk
        if end:
            call.samples = _NOTHING
            return audio[:size] if size >= _LAST else _NOTHING
        if whole and len(audio) - whole < _LEFT:
            size = whole
        elif len(audio) < _LEAST:
            size = 0
        call.samples = audio[size:].copy()
        return audio[:size]


def _batches(order: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Clips, shortest first, in batches of at most `_BATCH` samples with padding; a longer one is alone."""
    batches: list[list[int]] = []
    for row in order:
        if batches and (len(batches[-1]) + 1) * lengths[row] <= _BATCH:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches
