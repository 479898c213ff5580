"""Log-mel features of clips, as Whisper's feature extractor makes them, for many clips at once on any device.

Knows:   frames, mel filters, the floor under a clip's loudest level, what lies beyond a clip's two edges.
Ignores: what reads the features, where a clip was cut out of a call.

Shape letters: B clips, S samples, T frames, M mel bins, F frequencies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

_RANGE = 8.0  # log10 of power: nothing lies further below the loudest level of its clip
_LEAST = 1e-10  # power that is told apart from none


class LogMel:
    """Features of clips by the settings of `extractor`.

    `mirrored`: whether the audio is mirrored at a clip's end, as for a clip that the extractor gets alone;
    otherwise silence follows, as where it pads all clips to one length. Before a clip it is always mirrored.
    """

    def __init__(self, extractor: WhisperFeatureExtractor, device: torch.device, *, mirrored: bool) -> None:
        self.hop = int(extractor.hop_length)
        self._size = int(extractor.n_fft)
        self._mirrored = mirrored
        self._filters_MF = torch.from_numpy(extractor.mel_filters).to(device, torch.float32).T.contiguous()
        self._shape_S = torch.hann_window(self._size, device=device)

    def __call__(self, clips: Sequence[NDArray[np.float32]]) -> Tensor:
        """Features [B, M, T] in float32, of clips of whole hops, longer than half a window each.

        T is the longest clip's; past the end of a shorter one they are 0.
        """
        frames = [len(clip) // self.hop for clip in clips]
        power_BFT = self._power(self._laid_out(clips))
        level_BMT = (self._filters_MF @ power_BFT).clamp_min(_LEAST).log10()
        of_clip_BT = torch.tensor(frames).unsqueeze(1) > torch.arange(level_BMT.shape[-1])
        of_clip_B1T = of_clip_BT.unsqueeze(1).to(level_BMT.device)
        # In front of silence, the frames that reach over the end count for the loudest.
        heard_BMT = level_BMT.where(of_clip_B1T, -torch.inf) if self._mirrored else level_BMT
        floor_B11 = heard_BMT.amax((1, 2), keepdim=True) - _RANGE
        features_BMT = (torch.maximum(level_BMT, floor_B11) + 4.0) / 4.0
        return (features_BMT * of_clip_B1T)[:, :, : max(frames)]

    def _laid_out(self, clips: Sequence[NDArray[np.float32]]) -> Tensor:
        """Clips in rows [B, S] with what lies around them."""
        half = self._size // 2
        longest = max(map(len, clips))
        rows_BS = np.zeros((len(clips), half + longest + self._size), np.float32)
        for row, clip in zip(rows_BS, clips, strict=True):
            end = half + len(clip)
            row[:half] = clip[half:0:-1]
            row[half:end] = clip
            if self._mirrored:
                row[end : end + half] = clip[-2 : -half - 2 : -1]
        return torch.from_numpy(rows_BS).to(self._shape_S.device)

    def _power(self, rows_BS: Tensor) -> Tensor:
        waves = torch.stft(
            rows_BS, self._size, self.hop, window=self._shape_S, center=False, return_complex=True
        )
        return waves.abs().square()
