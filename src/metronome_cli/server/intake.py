"""A caller's audio at its own rate, brought to the rate of the model.

Knows:   PCM16, resampling, and that both cost less for much audio at once than for little at a time.
Ignores: connections, sessions, limits.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

_BYTES = 2  # of a PCM16 sample
_UNIT = np.float32(1 / 32768)
_NOTHING = np.zeros(0, np.float32)


class Intake:
    """A caller's PCM16 audio, held until it is wanted as float32 samples at the rate `to`."""

    def __init__(self, rate: int, to: int) -> None:
        self.rate = rate
        self._to = to
        self.held_s = 0.0  # of audio that was put and not taken
        self._held: list[bytes] = []
        self._resampler = self._fresh()

    def put(self, pcm: bytes) -> None:
        """Whole samples, of any number."""
        self._held.append(pcm)
        self.held_s += len(pcm) / _BYTES / self.rate

    def take(self) -> NDArray[np.float32]:
        """The samples of all that was put and are ready; a filter keeps a few hundredths of a second back."""
        pcm, self._held, self.held_s = b"".join(self._held), [], 0.0
        samples: NDArray[np.float32] = np.multiply(np.frombuffer(pcm, "<i2"), _UNIT, dtype=np.float32)
        return self._resampler.resample_chunk(samples) if self._resampler else samples

    def finish(self) -> NDArray[np.float32]:
        """`take`, and what the filter still holds; audio after this begins anew."""
        rest = self.take()
        if self._resampler:
            rest = np.concatenate((rest, self._resampler.resample_chunk(_NOTHING, last=True)))
            self._resampler = self._fresh()
        return rest

    def _fresh(self) -> soxr.ResampleStream | None:
        return None if self.rate == self._to else soxr.ResampleStream(self.rate, self._to, 1)
