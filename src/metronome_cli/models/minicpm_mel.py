"""MiniCPM-o's log-mel features, one second at a time, for many calls at once.

Knows:   how the published streaming cuts a call into seconds; the floor that moves with the loudest sound.
Ignores: what reads the features (minicpm_ears.py), which call a place belongs to.

The published code keeps up to 30 s of audio and computes all its features anew every second, because the
floor lies 8 below the loudest of them (OpenBMB's processing_minicpmo.py, StreamingMelProcessorExact with the
settings of MiniCPMODuplex). Here the loudest level of each of those seconds is kept instead of its audio, and
the features come out the same, at the edges too, where the published code mirrors the audio.

Shape letters: B calls, S samples, T frames of 10 ms, W samples of a frame, F frequencies, M mel bins,
K seconds kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

RATE = 16_000  # samples per second
FRAMES = 100  # of a second
AROUND = 2  # frames before and after a second, so that the convolutions see what lies beside it
HOP, WINDOW = 160, 400  # samples
_HALF = WINDOW // 2
_LEAD = AROUND * HOP + _HALF  # samples before a second that its features depend on
LAG = 480  # after it: the first chunk of the published code is 1030 ms long
SEGMENT = _LEAD + RATE + LAG
# The published code puts 560 zeros in front of a call whose first second is 16,000 samples long. The samples
# before those are never part of it: they mirror zeros.
START = _LEAD + 560

_QUIETEST = -10.0  # log10 of the least power that is told apart
_RANGE = 8.0
_UNRANGED = 4  # seconds at the start of a call that no moving floor is laid under
_SLIDE, _MOST = 10, 30  # seconds: with `_MOST` kept, the published code drops the first `_SLIDE`


class Mel:
    """Features of one second of each of some calls. A call has a place, and keeps 60 numbers there."""

    def __init__(self, mels: int, places: int, device: torch.device) -> None:
        filters_FM = WhisperFeatureExtractor(feature_size=mels).mel_filters
        self._filters_FM = torch.from_numpy(filters_FM).to(device, torch.float32)
        self._window_W = torch.hann_window(WINDOW, device=device)
        # Of each second its loudest level: as it is, and as it would be with everything before it dropped.
        self._loudest_P2K = torch.full((places, 2, _MOST), _QUIETEST, device=device)

    def open(self, place: int) -> None:
        """A new call's."""
        self._loudest_P2K[place] = _QUIETEST

    def __call__(self, segments_BS: Tensor, places: Sequence[int], ages: Sequence[int]) -> Tensor:
        """Features [B, M, AROUND + FRAMES + AROUND], float32.

        `segments_BS`: `SEGMENT` samples of each call, -1..1; the next begin `RATE` later. `ages`: seconds of
        the call that came before. What lies before a call's first second is 0, as a convolution pads it.
        """
        places_B = torch.tensor(places, device=segments_BS.device)
        level_BTM = self._levels(torch.cat((segments_BS, segments_BS[:, -41:-1].flip(-1)), dim=-1))
        loudest_B = level_BTM[:, AROUND + FRAMES :].amax((1, 2))
        self._keep(level_BTM[:, AROUND : AROUND + FRAMES], self._first_levels(segments_BS), places_B, ages)
        in_view_B2K = torch.from_numpy(_in_view(ages)).to(segments_BS.device)
        kept_B2K = self._loudest_P2K[places_B].masked_fill(~in_view_B2K, _QUIETEST)
        floor_B = torch.maximum(loudest_B, kept_B2K.amax((1, 2))) - _RANGE
        young = [age < _UNRANGED for age in ages]
        floor_B = floor_B.masked_fill(torch.tensor(young, device=floor_B.device), _QUIETEST)
        level_BTM = torch.maximum(level_BTM[:, :-1], floor_B.view(-1, 1, 1))
        features_BMT = ((level_BTM + 4.0) / 4.0).transpose(1, 2)
        new = [row for row, age in enumerate(ages) if age == 0]
        features_BMT[new, :, :AROUND] = 0.0
        return features_BMT

    def _levels(self, samples_BS: Tensor) -> Tensor:
        """log10 of the power in each mel bin, [B, T, M], of all frames that lie within the samples."""
        frames_BTW = samples_BS.unfold(-1, WINDOW, HOP) * self._window_W
        power_BTF = torch.fft.rfft(frames_BTW).abs().square()
        level_BTM: Tensor = (power_BTF @ self._filters_FM).clamp_min(10**_QUIETEST).log10()
        return level_BTM

    def _first_levels(self, segments_BS: Tensor) -> Tensor:
        """Levels [B, 2, M] of the first two frames, were everything before the second dropped: mirrored."""
        second_BS = segments_BS[:, _LEAD:]
        mirrored_BS = second_BS[:, 1 : _HALF + 1].flip(-1)
        return self._levels(torch.cat((mirrored_BS, second_BS[:, : _HALF + HOP]), dim=-1))

    def _keep(self, level_BTM: Tensor, first_B2M: Tensor, places_B: Tensor, ages: Sequence[int]) -> None:
        at_B = torch.tensor([age % _MOST for age in ages], device=places_B.device)
        self._loudest_P2K[places_B, 0, at_B] = level_BTM.amax((1, 2))
        alone_BTM = torch.cat((first_B2M, level_BTM[:, 2:]), dim=1)
        self._loudest_P2K[places_B, 1, at_B] = alone_BTM.amax((1, 2))


def _in_view(ages: Sequence[int]) -> NDArray[np.bool_]:
    """Which kept seconds the published code would have at hand, [B, 2, K]; the first of them without what
    lies before it."""
    seen_B2K = np.zeros((len(ages), 2, _MOST), dtype=np.bool_)
    for row, age in enumerate(ages):
        first = max(0, ((age + 1) // _SLIDE - _MOST // _SLIDE + 1) * _SLIDE)
        seen_B2K[row, 0, np.arange(first, age + 1) % _MOST] = True
        if first:
            seen_B2K[row, :, first % _MOST] = [False, True]
    return seen_B2K
