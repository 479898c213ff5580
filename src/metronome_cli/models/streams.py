"""What a frame of Moshi is beside the backbone: ears and sums before it, depth transformer and mouth after.

Knows:   every slot's last text and codes, acoustic delays, buffers that graphs read and write.
Ignores: calls, their audio that waits, the pool (moshi.py); what the parts compute (mimi.py, depth.py).

A position holds one text id and 2 x K codes, the model's own before the caller's. A voice's first book, the
semantic one, stands where its frame does; the others, the acoustic ones, one position later. So position p
reads of the caller: frame p, and frame p - 1; and what it adds to the model's own voice completes the frame
whose semantic code was chosen at p - 1. Where there is no code yet, an id past the book's own stands for it.
That is how the model was trained (transformers: build_delay_pattern_mask; kyutai: lm.py, LMGen).

Position 0 holds no code at all: a call's first frame is in the past when the model begins, and is not heard.
Shape letters: N rows, K books, L samples, E hidden size, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .depth import Depth
from .moshi_weights import Parts
from .replay import Replay

_SLOT, _EAR, _STAGE = range(3)  # rows of what `hear` is told
_MOUTH, _TEXT = 1, 2  # of what `think` is told, beside _SLOT
_LOUDEST = 32_767


@dataclass(frozen=True, slots=True)
class Place:
    """One call's row of a batch."""

    slot: int
    position: int  # of this frame in the call


class Streams:
    """`slots` calls on one device. A frame of some of them is `hear`, the backbone's step, `think`, `speak`.

    Creating it captures graphs where the device has them.
    """

    def __init__(self, parts: Parts, slots: int, temperature: float = 0.0, top_p: float = 1.0) -> None:
        self._parts, self._scratch = parts, slots
        device, dtype = parts.decoder.device, parts.decoder.dtype
        self._depth = Depth(
            parts.depth, heads=parts.depth_heads, eps=parts.depth_eps, temperature=temperature, top_p=top_p
        )
        books, samples, hidden = parts.books, parts.codec.frame_samples, parts.decoder.config.hidden
        with device:
            self._text_S = torch.full((slots + 1,), parts.no_text)
            self._own_SK = torch.full((slots + 1, books), parts.no_code)
            self._heard_SK = torch.full((slots + 1, books), parts.no_code)
            self._first_K = torch.arange(2 * books) * (parts.no_code + 1)
            self._finite_N = torch.ones(slots, dtype=torch.bool)
            self._codes_NK = torch.zeros((slots, books), dtype=torch.int64)
            self._spoken_NK = torch.zeros((slots, books), dtype=torch.int64)
            self._embedded_NE = torch.zeros((slots, hidden), dtype=dtype)
            self._hidden_NE = torch.zeros((slots, hidden), dtype=dtype)
            self._sound_NL = torch.zeros((slots, samples + 1), dtype=torch.int16)
        self._heard = _Both(torch.full((3, slots), slots), device)
        self._thought = _Both(torch.full((3, slots), slots), device)
        self._audio = _Both(torch.zeros((slots, samples)), device)
        self._uniform = _Both(torch.zeros((slots, books)), device)
        self._rows = 0
        self._ears = Replay(self._hear, slots, device)
        self._mind = Replay(self._think, slots, device)
        self._mouth = Replay(self._speak, slots, device)
        for stage in (self._ears, self._mind, self._mouth):
            stage.capture()

    def wipe(self, slot: int) -> None:
        """A new call takes `slot`: nothing is left of the one that had it."""
        self._text_S[slot] = self._parts.no_text
        self._own_SK[slot] = self._parts.no_code
        self._heard_SK[slot] = self._parts.no_code
        self._parts.codec.memory.wipe(slot)

    @property
    def slot_bytes(self) -> int:
        """Memory of one call, beside its blocks of the pool."""
        return self._parts.codec.memory.slot_bytes + 8 * (1 + 2 * self._parts.books)

    def hear(self, places: Sequence[Place], audio_NL: NDArray[np.float32]) -> Tensor:
        """Embeddings [N, E] of each call's next position, from one frame of its audio each."""
        rows, numbers = len(places), self._heard.host
        self._rows = rows
        numbers[:] = self._scratch
        for row, place in enumerate(places):
            numbers[_SLOT, row] = place.slot
            numbers[_EAR, row] = place.slot if place.position else self._scratch
            numbers[_STAGE, row] = min(place.position, 2)
        self._audio.host[:rows] = audio_NL
        self._heard.send()
        self._audio.send()
        self._ears(rows)
        return self._embedded_NE[:rows]

    def think(self, ids: Sequence[int | None], hidden: Tensor, uniform_NK: NDArray[np.float32]) -> None:
        """Choose a frame's codes for the rows of the last `hear`.

        `ids`: what text the backbone chose; None for a row that stalled: but for its ears it stays as it was
        before `hear`. `hidden`: final states [rows with an id, E].
        """
        rows, numbers = self._rows, self._thought.host
        numbers[:] = self._scratch
        numbers[_TEXT] = 0
        for row, token in enumerate(ids):
            if token is not None:
                numbers[_SLOT, row], numbers[_MOUTH, row] = self._heard.host[: _EAR + 1, row]
                numbers[_TEXT, row] = token
        going = [row for row, token in enumerate(ids) if token is not None]
        self._hidden_NE[going if len(going) < rows else slice(rows)] = hidden
        self._uniform.host[:rows] = uniform_NK
        self._thought.send()
        self._uniform.send()
        self._mind(rows)

    def speak(self) -> tuple[list[bytes], list[bool]]:
        """The frame that each row completed, PCM16, and whether what it heard is finite.

        Position 0 completes none, nor does a row that stalled.
        """
        rows = self._rows
        self._mouth(rows)
        sound_NL = self._sound_NL[:rows].cpu().numpy()
        is_silent_N = self._thought.host[_MOUTH, :rows] == self._scratch
        sound = [
            b"" if silent else row[:-1].astype("<i2").tobytes()
            for row, silent in zip(sound_NL, is_silent_N, strict=True)
        ]
        return sound, (sound_NL[:, -1] != 0).tolist()

    # ---- What graphs hold ----

    @torch.inference_mode()
    def _hear(self, rows: int) -> None:
        parts = self._parts
        slot_N, ear_N, stage_N = self._heard.device[:, :rows]
        stage_N1 = stage_N.unsqueeze(1)
        codes_NK, finite_N = parts.codec.encode(self._audio.device[:rows], ear_N)
        self._finite_N[:rows] = finite_N | (stage_N == 0)
        self._codes_NK[:rows] = torch.where(stage_N1 == 0, parts.no_code, codes_NK)
        own_NK, before_NK = self._own_SK[slot_N], self._heard_SK[slot_N]
        late_NK = torch.where(stage_N1 < 2, parts.no_code, own_NK)
        ids_NK = torch.cat((own_NK[:, :1], late_NK[:, 1:], self._codes_NK[:rows, :1], before_NK[:, 1:]), 1)
        sum_NE = F.embedding(ids_NK + self._first_K, parts.codes).float().sum(1)
        self._embedded_NE[:rows] = sum_NE + parts.decoder.embed(self._text_S[slot_N]).float()

    @torch.inference_mode()
    def _think(self, rows: int) -> None:
        slot_N, _, text_N = self._thought.device[:, :rows]
        chosen_NK = self._depth(self._hidden_NE[:rows], text_N, self._uniform.device[:rows])
        self._spoken_NK[:rows] = torch.cat((self._own_SK[slot_N][:, :1], chosen_NK[:, 1:]), 1)
        self._own_SK.index_copy_(0, slot_N, chosen_NK)
        self._heard_SK.index_copy_(0, slot_N, self._codes_NK[:rows])
        self._text_S.index_copy_(0, slot_N, text_N)

    @torch.inference_mode()
    def _speak(self, rows: int) -> None:
        codec = self._parts.codec
        # Rows without a frame hold an id that no book has: they go to the scratch slot, but must be in range.
        spoken_NK = self._spoken_NK[:rows].clamp_max(self._parts.no_code - 1)
        sound_NL = codec.decode(spoken_NK, self._thought.device[_MOUTH, :rows])
        self._sound_NL[:rows, :-1] = (sound_NL.clamp(-1, 1) * _LOUDEST).round().to(torch.int16)
        self._sound_NL[:rows, -1] = self._finite_N[:rows].to(torch.int16)


class _Both:
    """A buffer on the host, to be filled, and its copy on the device.

    It is filled again a frame later: the frame's sound was waited for in between.
    """

    def __init__(self, start: Tensor, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._pinned = start.pin_memory() if is_cuda else start
        self.host = self._pinned.numpy()
        self.device = start.to(device, copy=True)

    def send(self) -> None:
        self.device.copy_(self._pinned, non_blocking=True)
