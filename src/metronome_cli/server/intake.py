"""A caller's audio at its own rate, brought to the rate of the ears.

Knows:   PCM16 and resampling.
Ignores: connections, sessions, limits.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from ..frame import HEARING_RATE


class Intake:
    """A caller's PCM16 audio, turned into float32 samples at HEARING_RATE."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self._resampler = self._fresh()

    def take(self, pcm: bytes) -> NDArray[np.float32]:
        """The samples that are ready; a filter keeps a few hundredths of a second back."""
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / np.float32(32768)
        return self._resampler.resample_chunk(samples) if self._resampler else samples

    def finish(self) -> NDArray[np.float32]:
        """What the filter still holds; audio after this begins anew."""
        rest = np.zeros(0, np.float32)
        if self._resampler:
            rest = self._resampler.resample_chunk(rest, last=True)
            self._resampler = self._fresh()
        return rest

    def _fresh(self) -> soxr.ResampleStream | None:
        return None if self.rate == HEARING_RATE else soxr.ResampleStream(self.rate, HEARING_RATE, 1)
