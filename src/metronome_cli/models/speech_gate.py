"""Where a buffer holds sound that could be speech: an energy gate over the call's own noise.

Knows:   loudness in 20 ms hops, and the noise floor of one call.
Ignores: words. It is cheap on purpose: what passes it is Whisper's to judge.

Levels are in dB of full scale (0 dB: a mean square of 1).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

HOP = 320  # samples, 20 ms at 16 kHz
HOP_S = 0.02
QUIETEST_FLOOR = -65.0  # where a call starts; also what digital silence counts as
_DIGITAL_SILENCE = -70.0  # gaps that a codec or a noise gate cut out tell nothing of the microphone's noise
_LOUDEST_FLOOR = -40.0
_ABOVE_FLOOR = 10.0  # 20 ms of steady noise stray about 3 dB from their mean
_RISE = 3.0  # dB per second: noise that begins is taken for speech no longer than some seconds
_SMOOTH = 5  # hops of the median filter: a click of up to 40 ms is no speech


def levels(audio: NDArray[np.float32]) -> NDArray[np.float64]:
    """Loudness of each whole hop, without clicks."""
    hops = audio[: len(audio) // HOP * HOP].reshape(-1, HOP).astype(np.float64)
    loudness = 10 * np.log10(np.square(hops).mean(-1) + 1e-10)
    smooth: NDArray[np.float64] = median_filter(loudness, _SMOOTH) if len(loudness) else loudness
    return smooth


def voiced(audio: NDArray[np.float32], floor: float) -> NDArray[np.bool_]:
    """Which hops stand out of the noise."""
    return levels(audio) > floor + _ABOVE_FLOOR


def next_floor(floor: float, audio: NDArray[np.float32]) -> float:
    """The noise floor after more audio: falls at once to the quietest moment, rises slowly."""
    sounding = levels(audio)
    sounding = sounding[sounding > _DIGITAL_SILENCE]
    if not len(sounding):
        return floor
    risen = floor + _RISE * len(sounding) * HOP_S
    return float(np.clip(min(risen, sounding.min()), QUIETEST_FLOOR, _LOUDEST_FLOOR))
