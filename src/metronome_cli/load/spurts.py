"""Speech recut into spurts of one length, for callers that talk and pause in a fixed measure.

Knows:   clips.
Ignores: who plays them; a Stream puts the pauses between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..speech import PACKET_SAMPLES, RATE, Clip


def spurts(clips: Sequence[Clip], talk_s: float) -> list[Clip]:
    """All speech of `clips` on end, cut every `talk_s` seconds; the last spurt is filled up from the start.

    A spurt may begin and end within a word, so none of them has a text.
    """
    length = max(PACKET_SAMPLES, round(talk_s * RATE))
    speech = np.concatenate([clip.samples for clip in clips])
    count = -(-len(speech) // length)
    whole = np.resize(speech, count * length)  # repeats from the start to fill the last one
    return [Clip(f"spurt-{n}", whole[n * length : (n + 1) * length]) for n in range(count)]
