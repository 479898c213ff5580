"""A listener: what somebody hears who knows nothing of what was meant.

Knows:   Whisper, whole clips, batches.
Ignores: calls and frames (ears.py hears those), what the clips should say, error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..speech import RATE
from .assets import locate
from .whisper_batch import WhisperBatch, load_whisper

_BATCH = 8
_MOST_TOKENS = 220  # of one clip: what Whisper itself allows
# A clip that leaves a second of padding is heard in the short context, at a third of the cost of 30 s.
_SHORT_S, _WHOLE_S = 10.0, 30.0


class Listener:
    """Whisper (an asset, a folder or a .pt file), greedy and offline: each clip by itself, as a whole.

    AssetError when the checkpoint is missing or damaged.
    """

    def __init__(self, checkpoint: str | Path = "whisper-tiny.en") -> None:
        self.name = f"openai-whisper {Path(checkpoint).name}"
        self._folder = locate(str(checkpoint))
        self._whispers: dict[float, WhisperBatch] = {_SHORT_S: WhisperBatch(self._folder, _SHORT_S)}

    def write(self, clips: Sequence[NDArray[np.float32]]) -> list[str]:
        """The words in each clip (mono float32, 16 kHz, any length); "" for an empty one.

        What two clips share is heard once: a probe speaks many replies again and again.
        """
        keys = [clip.tobytes() for clip in clips]
        heard: dict[bytes, str] = {b"": ""}
        new = {key: clip for key, clip in zip(keys, clips, strict=True) if key not in heard}
        # By length, so that few batches mix both contexts.
        waiting = sorted(new, key=len)
        for context in (_SHORT_S, _WHOLE_S):
            fit = [key for key in waiting if len(new[key]) <= _fits(context)]
            waiting = waiting[len(fit) :]
            for start in range(0, len(fit), _BATCH):
                batch = fit[start : start + _BATCH]
                heard |= zip(batch, self._hear([new[key] for key in batch], context), strict=True)
        heard |= {key: self._hear_long(new[key]) for key in waiting}
        return [heard[key] for key in keys]

    def _hear(self, clips: Sequence[NDArray[np.float32]], context_s: float) -> list[str]:
        if context_s not in self._whispers:
            self._whispers[context_s] = WhisperBatch(self._folder, context_s)
        whisper = self._whispers[context_s]
        found = whisper.decode(clips, [[] for _ in clips], _MOST_TOKENS)
        return [whisper.text(one.tokens).strip() for one in found]

    def _hear_long(self, clip: NDArray[np.float32]) -> str:
        """Whisper's own way through a long recording, window by window."""
        whisper = load_whisper(self._folder)
        found = whisper.transcribe(
            clip, language="en", temperature=0.0, fp16=False, condition_on_previous_text=False
        )
        return str(found["text"]).strip()


def _fits(context_s: float) -> int:
    """Most samples of a clip for a context; the whole one needs no padding."""
    return round((context_s if context_s == _WHOLE_S else context_s - 1.0) * RATE)
