"""Recorded speech as a caller's microphone would send it: 20 ms at a time, without end.

Knows:   audio files, clips of 16 kHz mono, PCM16 packets, a seeded order of clips and gaps.
Ignores: sockets, clocks and events; whoever plays a stream decides when a packet is due.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from .errors import FieldError

RATE = 16_000  # samples per second of every clip and packet
PACKET_S = 0.02
PACKET_SAMPLES = 320
SCRIPT = "script.json"
SOUND = 10 ** (-45 / 10)  # mean square of -45 dBFS: above a quiet room, below a soft voice
GAP_S = (0.2, 1.0)  # silence between two clips: the shortest, the longest

_SUFFIXES = (".wav", ".flac")


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording: mono float32 at RATE, -1..1, and what is said in it, when that is known."""

    name: str
    samples: NDArray[np.float32]
    text: str | None = None

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


def read_clips(folder: Path) -> list[Clip]:
    """Every .wav and .flac of `folder`, by name, at any rate and channel count.

    A script.json there, {file: text or null}, says what is spoken. FieldError names the file that is wrong.
    """
    files = sorted(path for path in _listing(folder) if path.suffix.lower() in _SUFFIXES)
    if not files:
        raise FieldError("speech", str(folder), "give a folder that holds .wav or .flac files")
    script = _read_script(folder / SCRIPT)
    return [Clip(path.name, _read_audio(path), script.get(path.name)) for path in files]


def at_rate(samples: NDArray[np.float32], rate: int, of: int = RATE) -> NDArray[np.float32]:
    """Mono `samples` at the rate `of`, brought to `rate` as a whole."""
    resampled: NDArray[np.float32] = samples if rate == of else soxr.resample(samples, of, rate)
    return resampled


def decode_clip(name: str, file: bytes, text: str | None = None) -> Clip:
    """The clip in the bytes of an audio file, at any rate and channel count."""
    return Clip(name, _read_audio(Path(name), io.BytesIO(file)), text)


@dataclass(frozen=True, slots=True)
class Passage:
    """One stretch of a stream, in samples from its start. A gap has no clip.

    `text` is None when it is unknown or when only the end of the clip is played.
    """

    start: int
    stop: int
    clip: str | None = None
    text: str | None = None


class Stream:
    """One caller's endless speech: all clips in a seeded order, again and again, with gaps between them.

    `caller` makes each stream of one seed its own: another order, other gaps, another place in the
    first clip to begin at. `gap_s`: the shortest and the longest gap.
    """

    def __init__(
        self, clips: Sequence[Clip], seed: int, caller: int = 0, gap_s: tuple[float, float] = GAP_S
    ) -> None:
        if not clips:
            raise ValueError("a stream needs at least one clip")
        self._clips = clips
        self._gap_s = gap_s
        self._random = np.random.default_rng((seed, caller))
        self._coming: list[Clip] = []
        self._ahead: NDArray[np.float32] = np.zeros(0, np.float32)
        self.passages: list[Passage] = []
        self.sent = 0  # samples given out so far

    def packet(self) -> bytes:
        """The next 20 ms, PCM16 little-endian mono: always 640 bytes."""
        while len(self._ahead) < PACKET_SAMPLES:
            self._ahead = np.concatenate([self._ahead, self._next_passage()])
        now, self._ahead = self._ahead[:PACKET_SAMPLES], self._ahead[PACKET_SAMPLES:]
        self.sent += PACKET_SAMPLES
        return (np.clip(now, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()

    def playing(self, at_s: float) -> Passage:
        """What is heard `at_s` seconds into the part given out so far; its end is the last moment."""
        if not self.passages:
            raise ValueError("nothing was given out yet")
        at = min(max(0, int(at_s * RATE)), self.sent - 1)
        return self.passages[bisect_right(self.passages, at, key=lambda passage: passage.start) - 1]

    def speech_ends(self) -> list[float]:
        """Seconds at which a clip ended, in the part given out so far."""
        return [p.stop / RATE for p in self.passages if p.clip is not None and p.stop <= self.sent]

    @property
    def speech_share(self) -> float:
        """How much of the part given out lies inside a clip, 0..1."""
        spoken = sum(
            min(p.stop, self.sent) - p.start for p in self.passages if p.clip and p.start < self.sent
        )
        return spoken / self.sent if self.sent else 0.0

    def _next_passage(self) -> NDArray[np.float32]:
        """Append a clip after a gap and a gap after a clip; the first clip begins anywhere in itself."""
        if self.passages and self.passages[-1].clip is not None:
            gap = np.zeros(int(self._random.uniform(*self._gap_s) * RATE), np.float32)
            return self._append(gap, None, None)
        if not self._coming:
            self._coming = [self._clips[i] for i in self._random.permutation(len(self._clips))]
        clip = self._coming.pop()
        if self.passages:
            return self._append(clip.samples, clip.name, clip.text)
        # The text would promise words that were never played, so a clip entered halfway has none.
        return self._append(clip.samples[self._random.integers(len(clip.samples)) :], clip.name, None)

    def _append(
        self, samples: NDArray[np.float32], clip: str | None, text: str | None
    ) -> NDArray[np.float32]:
        start = self.passages[-1].stop if self.passages else 0
        self.passages.append(Passage(start, start + len(samples), clip, text))
        return samples


def _listing(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise FieldError(
            "speech", str(folder), f"give a folder of .wav or .flac files ({error.strerror})"
        ) from None


def _read_script(path: Path) -> dict[str, str | None]:
    if not path.exists():
        return {}
    try:
        script = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise FieldError(str(path), "", f"expected JSON, {{file: text or null}} ({error})") from None
    if not isinstance(script, dict) or not all(isinstance(text, str | None) for text in script.values()):
        raise FieldError(str(path), type(script).__name__, "expected one JSON object, {file: text or null}")
    return script


def _read_audio(path: Path, contents: BinaryIO | None = None) -> NDArray[np.float32]:
    try:
        samples, rate = soundfile.read(contents or path, dtype="float32", always_2d=True)
    except (OSError, RuntimeError) as error:
        raise FieldError(str(path), path.name, f"not readable as audio ({error})") from None
    mono: NDArray[np.float32] = samples.mean(axis=1)
    mono = at_rate(mono, RATE, rate) if len(mono) else mono
    if len(mono) < PACKET_SAMPLES:
        raise FieldError(
            str(path), len(mono), f"use a recording of at least {PACKET_SAMPLES} samples at 16 kHz"
        )
    if not np.isfinite(mono).all():
        raise FieldError(str(path), "NaN or infinity", "use finite samples")
    return mono
