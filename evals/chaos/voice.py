"""Sound to speak with: the spoken questions of the package, one after another."""

from __future__ import annotations

from functools import cache

import numpy as np
import soundfile
import soxr

from metronome_cli.models.assets import locate

SPOKEN_RATE = 16_000
_QUESTIONS = 6


@cache
def voice(rate: int) -> bytes:
    """Some 15 s of PCM16 at `rate`."""
    files = sorted(locate("questions").glob("*.flac"))[:_QUESTIONS]
    samples = np.concatenate([soundfile.read(file, dtype="float32")[0] for file in files])
    heard = samples if rate == SPOKEN_RATE else soxr.resample(samples, SPOKEN_RATE, rate)
    return bytes((heard * 32767).clip(-32768, 32767).astype("<i2").tobytes())
