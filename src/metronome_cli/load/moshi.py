"""The moshi.server protocol as a caller says and hears it: Ogg Opus at 24 kHz in binary messages.

Knows:   the kind byte that each message begins with, and the two Opus streams.
Ignores: sockets and clocks.

Kinds: 0 handshake, 1 sound, 2 text, 3 control, 4 metadata, 5 error, 6 ping; others are to be ignored.
A model that listens and speaks at once gives a second of sound back for each one sent: its cadence.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import soxr
from numpy.typing import NDArray

from ..errors import InputError, ProfileError
from ..speech import RATE
from .protocols import Begun, Event, Fault, Message, Sound, Token

MOSHI_RATE = 24_000
OPUS_SAMPLES = 480  # 20 ms: a frame size that Opus allows
HANDSHAKE, SOUND, TEXT, ERROR = 0, 1, 2, 5


class Moshi:
    """One call. ProfileError when the codec is not installed."""

    name = "moshi"
    binary = True

    def __init__(self) -> None:
        try:
            import sphn
        except ImportError:
            raise ProfileError("protocol", "moshi", "it speaks Opus: pip install sphn") from None
        self._writer = sphn.OpusStreamWriter(MOSHI_RATE)
        self._reader = sphn.OpusStreamReader(MOSHI_RATE)
        self._resample = soxr.ResampleStream(RATE, MOSHI_RATE, 1, dtype="float32", quality="QQ")
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)

    def opening(self) -> Sequence[Message]:
        return []

    def packet(self, pcm: bytes) -> Message | None:
        samples = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
        self._rest = np.concatenate([self._rest, self._resample.resample_chunk(samples)])
        pages = b""
        while len(self._rest) >= OPUS_SAMPLES:
            pages += self._writer.append_pcm(self._rest[:OPUS_SAMPLES])
            self._rest = self._rest[OPUS_SAMPLES:]
        return bytes([SOUND]) + pages if pages else None

    def closing(self) -> Sequence[Message]:
        return []

    def cancel(self) -> Message | None:
        return None

    def hear(self, message: Message) -> Sequence[Event]:
        if isinstance(message, str) or not message:
            raise InputError(
                "invalid_event", "message", message[:60], "expected a kind byte in a binary frame"
            )
        kind, payload = message[0], message[1:]
        match kind:
            case 0:
                return [Begun()]
            case 1:
                return [Sound(self._decoded(payload))]
            case 2:
                return [Token(payload.decode("utf-8", "replace"))]
            case 5:
                return [Fault(payload.decode("utf-8", "replace")[:60])]
        return []

    def _decoded(self, pages: bytes) -> bytes:
        try:
            samples = self._reader.append_bytes(pages)
            return bytes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
        except Exception as error:  # sphn raises bare ValueError and its own codec errors alike
            raise InputError("invalid_audio", "message", len(pages), f"expected Ogg Opus ({error})") from None
