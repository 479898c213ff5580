"""When a caller speaks and when he pauses, frame by frame, for models that hear without writing words down.

Knows:   the energy gate (speech_gate.py), how long a silence ends an utterance, how long one may be.
Ignores: words, models, whose turn it is. Frames are all the time it goes by.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .speech_gate import HOP_S, QUIETEST_FLOOR, next_floor, voiced

PAUSE_S = 0.6  # silence that ends an utterance
LEAST_SPEECH_S = 0.06  # less sound than that is no word
LONGEST_S = 20.0  # who never pauses is answered all the same


@dataclass(slots=True)
class Pauses:
    """One caller, listened to at 16 kHz; it keeps four numbers."""

    floor: float = QUIETEST_FLOOR
    speaking: bool = False  # within an utterance
    silent_s: float = 0.0  # since the last sound
    length_s: float = 0.0  # of the utterance

    def take(self, audio: NDArray[np.float32]) -> tuple[bool, bool]:
        """A frame of any length: whether it holds speech, and whether an utterance is over at its end."""
        self.floor = next_floor(self.floor, audio)
        sound = np.flatnonzero(hops := voiced(audio, self.floor))
        spoke = len(sound) * HOP_S >= LEAST_SPEECH_S
        length_s = len(hops) * HOP_S
        self.silent_s = length_s - float(sound[-1] + 1) * HOP_S if spoke else self.silent_s + length_s
        self.speaking = self.speaking or spoke
        if self.speaking:
            self.length_s += length_s
        over = self.speaking and (self.silent_s >= PAUSE_S or self.length_s >= LONGEST_S)
        if over:
            self.reset()
        return spoke, over

    def reset(self) -> None:
        """The utterance is over, whoever ended it."""
        self.speaking, self.length_s = False, 0.0
