"""The parts of a model that hears and answers by itself: ears and mouth, around the windowed backbone.

Knows:   what each part takes and gives, for many calls at once.
Ignores: how it is done (one file a model), the backbone (engine/), whose turn it is (omni.py, moshi.py).

A call's state in either part is bounded, however long the call: the window bounds the backbone alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

State = TypeVar("State")


class Ears(Protocol[State]):
    """Audio into what the backbone reads, streaming, all due calls in one batch."""

    rate: int  # samples per second that it takes

    def open(self) -> State:
        """A new call's state."""
        ...

    def hear(
        self, calls: Sequence[State], pieces: Sequence[NDArray[np.float32]], ends: Sequence[bool]
    ) -> list[Tensor]:
        """A frame of each call (mono, `rate`, -1..1, any length): embeddings [T, hidden] or codes [T, books].

        T may be 0: what is too short for a position waits in the call's state; where `ends`, an utterance
        ends and nothing is to wait. Rows of a call whose audio cannot be heard (NaN) are not finite, and no
        other call's rows change by it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Spoken:
    """What one decoded position of one call becomes."""

    text: str
    pcm: bytes = b""  # PCM16 little-endian mono, 24 kHz


class Mouth(Protocol[State]):
    """Sampled tokens and the states they were sampled from, into text and perhaps sound."""

    def open(self) -> State:
        """A new call's (or reply's) state."""
        ...

    def speak(self, calls: Sequence[State], ids: Sequence[int], hidden: Tensor) -> list[Spoken]:
        """One position of each call. `hidden` [calls, hidden]: the backbone's final states."""
        ...
