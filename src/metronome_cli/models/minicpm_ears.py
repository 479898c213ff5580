"""MiniCPM-o's ears: a call's audio into ten embeddings a second, many calls in one batch.

Knows:   what waits until a second is whole, and which place of the encoder's cache is whose.
Ignores: how a second becomes features (minicpm_mel.py) and embeddings (minicpm_encoder.py), whose turn it is.

A call's state is the same size at any age: its place, and less than 1.1 s of audio.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ProfileError
from .minicpm_encoder import POSITIONS, Encoder
from .minicpm_mel import LAG, RATE, SEGMENT, START, Mel


@dataclass(slots=True, eq=False, weakref_slot=True)
class Hearing:
    """One call's hearing. Its place is free again when this is let go of."""

    place: int  # in the encoder's cache and among the levels
    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(START, np.float32))
    age: int = 0  # seconds that were heard
    past: int = 0  # encoder positions in the cache


class MiniCpmEars:
    """Ears for at most `calls` calls at a time; their caches are there from the start.

    There is one place more: a call that is to forget what it heard opens anew before it lets go.
    """

    rate = RATE

    def __init__(self, encoder: Encoder, calls: int) -> None:
        places = calls + 1
        encoder.make_room(places)
        self._encoder = encoder
        self._mel = Mel(encoder.config.num_mel_bins, places, encoder.device)
        self._calls = calls
        self.rows = encoder.rows  # embeddings of a second
        self._samples = RATE // self.rows  # of an embedding
        self._free = list(range(places))  # a heap: low places first, so that the batch's places lie close

    @property
    def has_room(self) -> bool:
        """Whether one more call can be let in."""
        return len(self._free) > 1

    def open(self) -> Hearing:
        """A new call's state. ProfileError when no place is left."""
        if not self._free:
            cure = "each call has a place of its own in the audio encoder's cache; use more, or close a call"
            raise ProfileError("admission.max_sessions", self._calls, cure)
        hearing = Hearing(heapq.heappop(self._free))
        weakref.finalize(hearing, heapq.heappush, self._free, hearing.place).atexit = False
        self._encoder.open(hearing.place)
        self._mel.open(hearing.place)
        return hearing

    def positions(self, samples: int) -> int:
        """Most embeddings that a frame of so many samples becomes, with what waited before it."""
        return self.rows * -(-samples // RATE)

    @torch.inference_mode()
    def hear(
        self, calls: Sequence[Hearing], pieces: Sequence[NDArray[np.float32]], ends: Sequence[bool]
    ) -> list[Tensor]:
        """A frame of each call (mono, 16 kHz, -1..1, any length): embeddings [T, out], ten for each second
        that is whole now.

        Where `ends`, an utterance is over: what waits is heard as if silence followed, and gives an embedding
        for each tenth of a second. A row that is not finite comes of audio that was not; no other call's is
        touched by it.
        """
        for call, piece in zip(calls, pieces, strict=True):
            call.audio = np.concatenate((call.audio, piece))
        kept = [self._kept(call, end) for call, end in zip(calls, ends, strict=True)]
        heard: list[list[Tensor]] = [[] for _ in calls]
        while ready := [row for row, call in enumerate(calls) if len(call.audio) >= SEGMENT]:
            for row, embedded in zip(ready, self._next_second([calls[row] for row in ready]), strict=True):
                heard[row].append(embedded)
        nothing = self._encoder.nothing()
        return [
            (parts[0] if len(parts) == 1 else torch.cat([nothing, *parts]))[:most]
            for parts, most in zip(heard, kept, strict=True)
        ]

    def _kept(self, call: Hearing, end: bool) -> int:
        """Embeddings of what waits that are worth reading; at an utterance's end it is filled up to a whole
        second, unless next to nothing waits."""
        whole, rest = divmod(len(call.audio) - (SEGMENT - RATE), RATE)
        if end and rest >= self._samples:
            call.audio = np.concatenate((call.audio, np.zeros(RATE - rest, np.float32)))
            return whole * self.rows + -(-(rest + LAG) // self._samples)
        return whole * self.rows

    def _next_second(self, calls: Sequence[Hearing]) -> Sequence[Tensor]:
        """One second of each."""
        device = self._encoder.device
        segments = np.stack([call.audio[:SEGMENT] for call in calls])
        places = [call.place for call in calls]
        ages = [call.age for call in calls]
        pasts = [self._encoder.next_past(call.past) for call in calls]
        features_BMT = self._mel(torch.from_numpy(segments).to(device), places, ages)
        embedded = self._encoder(features_BMT, places, pasts, ages)
        for call, past in zip(calls, pasts, strict=True):
            call.audio = call.audio[RATE:].copy()
            call.age += 1
            call.past = past + POSITIONS
        return embedded.unbind()
