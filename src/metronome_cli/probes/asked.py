"""One question of a probe's call, and what was said to it.

Knows:   the two records that every mode of play shares.
Ignores: how they come about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["question", "fresh", "recall"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its gold answers; `audio` (mono, 16 kHz) where it is spoken instead of typed."""

    id: str
    text: str
    answers: tuple[str, ...]
    audio: NDArray[np.float32] | None = None
    kind: Kind = "question"


@dataclass(frozen=True, slots=True)
class Said:
    """What a call said to one question, and how old it was when it was asked."""

    asked: Asked
    heard: str  # by the ears; "" where the question was typed
    said: str
    age_s: float
    age_tokens: int  # heard and said before
    stalled: int  # frames without a block
    pcm: bytes = b""  # how it was said, as frame.Said has it; b"" by a model that only writes
