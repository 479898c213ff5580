"""What a caller may send: audio at its own rate, settings and typed messages, checked.

Knows:   which values we can meet, and how audio reaches the pace of the ears.
Ignores: connections, sessions, limits.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from .. import wire
from ..errors import InputError
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


def checked(settings: wire.SessionSettings) -> tuple[int | None, bool | None]:
    """(rate, ticks) asked for, None where nothing was; InputError when a value cannot be met."""
    if settings.type != "realtime":
        raise InputError("unsupported_session", "session.type", settings.type, 'use "realtime"')
    if settings.output_modalities not in (None, ["text"]):
        modalities = str(settings.output_modalities)[:60]
        raise InputError("unsupported_modality", "session.output_modalities", modalities, 'use ["text"]')
    form = settings.audio.input.format if settings.audio and settings.audio.input else None
    field = "session.audio.input.format"
    if form and form.type != wire.PCM:
        raise InputError("unsupported_format", f"{field}.type", form.type[:60], f'use "{wire.PCM}"')
    if form and form.rate is not None and form.rate not in wire.RATES:
        rates = ", ".join(map(str, wire.RATES))
        raise InputError("unsupported_rate", f"{field}.rate", form.rate, f"use one of {rates}")
    rate = (form.rate or wire.RATES[0]) if form else None
    return rate, settings.metronome.ticks if settings.metronome else None


def typed(item: wire.Item) -> str:
    """The text of a typed message; InputError for any other kind of item."""
    if item.type != "message":
        raise InputError("unsupported_item", "item.type", item.type[:60], 'use "message"')
    if item.role != "user":
        raise InputError("unsupported_item", "item.role", item.role[:60], 'use "user"')
    for number, part in enumerate(item.content):
        if part.type != "input_text":
            field = f"item.content[{number}].type"
            raise InputError("unsupported_content", field, part.type[:60], 'use "input_text"')
    return "\n".join(part.text for part in item.content)
