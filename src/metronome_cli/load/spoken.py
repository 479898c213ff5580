"""What a call's server said aloud: kept for a while, written as a WAV, and held against its own transcript.

Knows:   the sound and the text of one call as they arrive, how much is kept, word errors between the two.
Ignores: sockets, who listens (it is given texts), how words are normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from ..frame import SPEAKING_RATE
from ..speech import RATE, at_rate
from .heard import added_up, compare

MOST_S = 60.0  # of speech that is kept of one call: 3 MB
FOLDER = "spoken"  # of a run's folder
_MOST_BYTES = int(MOST_S * SPEAKING_RATE) * 2
_TAIL = 6  # last words of a text that its sound may not have come to when it was cut off


@dataclass(slots=True)
class Spoken:
    """The first MOST_S seconds that one call heard, and the text that came with them."""

    call: int
    pcm: bytearray = field(default_factory=bytearray)  # PCM16 little-endian mono, SPEAKING_RATE
    _text: list[str] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return len(self.pcm) >= _MOST_BYTES

    @property
    def text(self) -> str:
        return "".join(self._text)

    def hear(self, pcm: bytes) -> None:
        self.pcm += pcm[: _MOST_BYTES - len(self.pcm)]

    def read(self, text: str) -> None:
        if text and not self.is_full:
            self._text.append(text)

    @property
    def whole(self) -> NDArray[np.int16]:
        """The samples: half of one at the end is left out, which a stranger's server may have sent."""
        return np.frombuffer(bytes(self.pcm[: len(self.pcm) // 2 * 2]), "<i2")

    def samples(self) -> NDArray[np.float32]:
        """What was heard as somebody at RATE hears it."""
        samples = np.multiply(self.whole, 1 / 32768, dtype=np.float32)
        return at_rate(samples, RATE, SPEAKING_RATE) if len(samples) else samples


def write_all(spoken: Sequence[Spoken], folder: Path) -> list[str]:
    """One WAV a call that was spoken to, in FOLDER of a run's folder; their names within that."""
    names = []
    for one in spoken:
        if one.pcm:
            (folder / FOLDER).mkdir(exist_ok=True)
            names.append(f"{FOLDER}/call-{one.call:04}.wav")
            soundfile.write(folder / names[-1], one.whole, SPEAKING_RATE, subtype="PCM_16")
    return names


def spoken_errors(
    spoken: Sequence[Spoken], heard: Sequence[str], normal: Callable[[str], str]
) -> dict[str, Any] | None:
    """Word errors of what a listener heard of each call against the transcript that its server gave.

    None when no call has both a sound and a text. The last words of a text may lack: it runs ahead.
    """
    outputs = []
    for one, words in zip(spoken, heard, strict=True):
        if one.pcm and (said := normal(one.text).split()):
            outputs.append(compare(said, normal(words).split(), 0, _TAIL))
    return added_up(outputs)
