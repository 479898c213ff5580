"""Steps on a CUDA device: small ones replay a graph, large ones are cut into pieces that fit.

Knows:   pinned and device buffers, which tokens the device itself sampled, sampling on the device.
Ignores: policies and accounts of blocks (engine.py), and what a layer does (fused.py).

A step goes over in one copy and its tokens come back in one; in between nobody waits, so that the next step
can be prepared, and even begun, while this one runs. Nothing is compiled or captured after `__init__`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .device import MOST_OF_A_ROW, MOST_ROWS
from .fused import Batch, forward
from .graphs import Graphs
from .kernels.attention import MOST_SPLIT, splits_for
from .kernels.sampling import sample
from .kv_pool import KvPool
from .layout import FIELDS, Laid, lay_out
from .rows import Row

_PIECE = MOST_OF_A_ROW  # tokens that are computed at once: more would only take more memory
_APART = 128  # tokens of rows of several: from there on a row's tokens had better read its keys together
_LOGITS = 512  # rows of logits that are computed at once
_EMBEDDED = -1  # in place of an id: the token came as an embedding
_SETS = 16  # of ids that sessions may not say


class _Integers:
    """Arrays of a step in one block of memory, on the host twice and on the device once.

    Twice, because a step is prepared while the one before may not have been copied yet; the one before that
    must have been.
    """

    def __init__(self, tokens: int, axes: int, blocks: int, device: torch.device) -> None:
        wide = {"ids": tokens, "after": tokens, "place": tokens, "end": tokens}
        wide |= {"sink_place": tokens, "rotary": tokens * axes, "at_sinks": tokens * axes}
        narrow = {"tasks": tokens * FIELDS, "table": blocks, "ban": tokens, "settings": tokens * 3}
        narrow |= {"tokens": 1}
        size = 8 * sum(wide.values()) + 4 * sum(narrow.values())
        self._hosts = [torch.zeros(size, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(2)]
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self.on_device: dict[str, Tensor] = {}
        self._views: list[dict[str, np.ndarray]] = [{}, {}]
        at = 0
        for names, kind, numpy_kind in ((wide, torch.int64, np.int64), (narrow, torch.int32, np.int32)):
            for name, count in names.items():
                end = at + count * kind.itemsize
                self.on_device[name] = self._device[at:end].view(kind)
                for host, views in zip(self._hosts, self._views, strict=True):
                    views[name] = host.numpy()[at:end].view(numpy_kind)
                at = end
        self.on_device["settings"] = self.on_device["settings"].view(torch.float32)
        for views in self._views:
            views["settings"] = views["settings"].view(np.float32)
        self._copied = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def next(self) -> dict[str, np.ndarray]:
        """Arrays to fill for the next step."""
        self._turn = 1 - self._turn
        self._copied[self._turn].synchronize()
        return self._views[self._turn]

    def send(self) -> None:
        self._device.copy_(self._hosts[self._turn], non_blocking=True)
        self._copied[self._turn].record()


@dataclass(slots=True)
class Begun:
    """A step that was handed to the device."""

    hidden: Tensor
    _sampled: Tensor  # pinned
    _count: int
    _done: torch.cuda.Event

    def ids(self) -> list[int]:
        self._done.synchronize()
        ids: list[int] = self._sampled[: self._count].tolist()
        return ids


class CudaSteps:
    """Steps of one decoder over one pool on one device. Making it captures graphs, for seconds."""

    can_run_ahead = True
    most_of_a_row = _PIECE

    def __init__(self, decoder: Decoder, memory: KvPool) -> None:
        config = decoder.config
        self._decoder, self._memory = decoder, memory
        self._axes, self._group = decoder.rope.axes, config.heads // config.kv_heads
        device, blocks = decoder.device, memory.scratch + memory.sink_keys.shape[2]
        self._graphs = Graphs(self._replayed)
        most = self._graphs.most
        self._small = _Integers(most, self._axes, blocks, device)
        self._large = _Integers(_PIECE, self._axes, blocks, device)
        self._embedded = torch.zeros((most, config.hidden), dtype=decoder.dtype, device=device)
        self._hidden = torch.zeros_like(self._embedded)
        self._logits = self._embedded.new_zeros((max(most, _LOGITS), config.vocab))
        self._sampled = torch.zeros(MOST_ROWS, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(MOST_SPLIT, dtype=torch.int32, device=device)
        self._told = [
            torch.zeros(MOST_ROWS, dtype=torch.int64, device="cpu", pin_memory=True) for _ in range(2)
        ]
        self._banned = torch.zeros((_SETS, config.vocab), dtype=torch.uint8, device=device)
        self._sets: dict[tuple[int, ...], int] = {(): 0}
        self._warm_up()

    def begin(self, rows: Sequence[Row]) -> Begun:
        tokens = sum(row.tokens for row in rows)
        most = self._graphs.most if tokens == len(rows) else _APART
        hidden = self._replay(rows, tokens) if tokens <= most else self._pieces(rows)
        self._told.reverse()
        count = sum(row.sample for row in rows)
        told = self._told[0]
        if count:
            told[:count].copy_(self._sampled[:count], non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return Begun(hidden, told, count, done)

    # ---- Small steps ----

    def _replay(self, rows: Sequence[Row], tokens: int) -> Tensor:
        bucket = self._graphs.bucket(tokens)
        laid = self._lay_out(rows, 1)
        arrays = self._fill(self._small, rows, laid, bucket)
        sampling = [row for row in rows if row.sample]
        self._fill_sampling(arrays, sampling)
        self._embed_into(self._embedded, rows)
        self._small.send()
        self._graphs.replay(bucket)
        self._choose(self._small, self._logits, 0, len(sampling))
        return self._hidden[:tokens].clone()

    def _replayed(self, bucket: int) -> None:
        """What the graph of `bucket` computes: hidden states of all tokens, logits where rows end."""
        arrays = self._small.on_device
        hidden_TE = self._first(arrays, bucket, self._embedded)
        narrow = self._memory.key_scales is not None
        splits = splits_for(bucket, self._decoder.config.kv_heads, narrow)
        batch = self._batch(arrays, bucket, bucket, 1, splits)
        done_TE = forward(self._decoder, hidden_TE, batch, self._memory)
        self._hidden[:bucket] = done_TE
        self._decoder.logits_into(done_TE[arrays["end"][:bucket]], self._logits[:bucket])

    # ---- Large steps ----

    def _pieces(self, rows: Sequence[Row]) -> Tensor:
        """Rows in pieces of at most `_PIECE` tokens; one row is never cut."""
        hidden, ends, sampling = [], [], []
        for piece in _cut(rows, _PIECE):
            done_TE, end_R = self._piece(piece)
            hidden.append(done_TE)
            ends.append(done_TE[end_R])
            sampling += [row for row in piece if row.sample]
        last_RE = torch.cat(ends)
        for at in range(0, len(sampling), _LOGITS):
            some = sampling[at : at + _LOGITS]
            self._fill_sampling(self._small.next(), some)
            self._small.send()
            logits = self._logits[: len(some)]
            self._decoder.logits_into(last_RE[at : at + len(some)], logits)
            self._choose(self._small, logits, at, len(some))
        return torch.cat(hidden)

    def _piece(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Hidden states of some rows, and where those that sample end."""
        tokens = sum(row.tokens for row in rows)
        together = max(1, 64 // self._group)
        laid = self._lay_out(rows, together)
        self._fill(self._large, rows, laid, tokens)
        embedded = self._hidden.new_empty((tokens, self._decoder.config.hidden))
        self._embed_into(embedded, rows)
        self._large.send()
        arrays = self._large.on_device
        hidden_TE = self._first(arrays, tokens, embedded)
        batch = self._batch(arrays, tokens, len(laid.tasks), together)
        done_TE = forward(self._decoder, hidden_TE, batch, self._memory)
        return done_TE, arrays["end"][: sum(row.sample for row in rows)].clone()

    # ---- What both share ----

    def _lay_out(self, rows: Sequence[Row], tokens_a_task: int) -> Laid:
        apart = self._memory.key_scales is not None
        scratch = self._memory.scratch if apart else None
        return lay_out(rows, self._memory.block_size, self._axes, tokens_a_task, scratch)

    def _fill(
        self, integers: _Integers, rows: Sequence[Row], laid: Laid, padded: int
    ) -> dict[str, np.ndarray]:
        """Arrays of a step to be sent; tokens past its own, up to `padded`, go to the scratch block."""
        arrays, tokens = integers.next(), len(laid.place_T)
        ids, after = arrays["ids"], arrays["after"]
        ids[:padded], after[:padded] = 0, -1
        at = 0
        for row in rows:
            if row.after is not None:
                after[at] = row.after
            else:
                ids[at : at + len(row.ids)] = row.ids
                ids[at + len(row.ids) : at + row.tokens] = _EMBEDDED
            at += row.tokens
        arrays["place"][tokens:padded] = self._memory.scratch * self._memory.block_size
        arrays["place"][:tokens] = laid.place_T
        arrays["sink_place"][:padded] = -1
        if laid.sink_place_T is not None:
            arrays["sink_place"][:tokens] = laid.sink_place_T
        axes = self._axes
        arrays["rotary"][: tokens * axes] = laid.rotary_TA.ravel()
        arrays["at_sinks"][: tokens * axes] = laid.at_sinks_TA.ravel()
        tasks = arrays["tasks"].reshape(-1, FIELDS)
        tasks[: len(laid.tasks)] = laid.tasks
        tasks[len(laid.tasks) : padded, 1] = 0
        arrays["table"][: len(laid.table)] = laid.table
        is_sampling_R = np.fromiter((row.sample for row in rows), bool, len(rows))
        ends = laid.end_R[is_sampling_R]
        arrays["end"][:padded] = 0
        arrays["end"][: len(ends)] = ends
        arrays["tokens"][0] = tokens
        return arrays

    def _fill_sampling(self, arrays: dict[str, np.ndarray], rows: Sequence[Row]) -> None:
        settings = arrays["settings"].reshape(-1, 3)
        settings[: len(rows), 0] = 0.0
        arrays["ban"][: len(rows)] = [self._set(row.session.chooser.sampling.suppress) for row in rows]
        for number, row in enumerate(rows):
            chooser = row.session.chooser
            if chooser.sampling.temperature > 0:
                settings[number] = chooser.sampling.temperature, chooser.sampling.top_p, chooser.uniform()

    def _first(self, arrays: dict[str, Tensor], tokens: int, embedded_TE: Tensor) -> Tensor:
        """Embeddings of tokens: told ids, ids that the device sampled the step before, or given ones."""
        ids_T, after_T = arrays["ids"][:tokens], arrays["after"][:tokens]
        ids_T = torch.where(after_T >= 0, self._sampled[after_T.clamp_min(0)], ids_T)
        hidden_TE = F.embedding(ids_T.clamp_min(0), self._decoder.weights.embedding)
        return torch.where((ids_T == _EMBEDDED).unsqueeze(1), embedded_TE[:tokens], hidden_TE)

    def _batch(
        self, arrays: dict[str, Tensor], tokens: int, tasks: int, tokens_a_task: int, splits: int = 1
    ) -> Batch:
        axes = self._axes
        return Batch(
            arrays["place"][:tokens],
            arrays["sink_place"][:tokens],
            arrays["rotary"][: tokens * axes].view(-1, axes),
            arrays["at_sinks"][: tokens * axes].view(-1, axes),
            arrays["tasks"][: tasks * FIELDS].view(-1, FIELDS),
            arrays["table"],
            self._arrived,
            arrays["tokens"],
            tokens_a_task,
            splits,
        )

    def _embed_into(self, embedded_TE: Tensor, rows: Sequence[Row]) -> None:
        """Given embeddings to their tokens' places, in one copy; what is between them is not looked at."""
        if all(row.embedded is None for row in rows):
            return
        gaps = [row.tokens if row.embedded is None else len(row.ids) for row in rows]
        nothing = embedded_TE.new_empty((max(gaps), embedded_TE.shape[1]))
        parts = []
        for row, gap in zip(rows, gaps, strict=True):
            parts.append(nothing[:gap])
            if row.embedded is not None:
                parts.append(row.embedded.to(embedded_TE))
        torch.cat(parts, out=embedded_TE[: sum(row.tokens for row in rows)])

    def _choose(self, integers: _Integers, logits: Tensor, at: int, count: int) -> None:
        if count:
            arrays = integers.on_device
            settings = arrays["settings"][: 3 * count].view(-1, 3)
            sample(logits[:count], self._banned, arrays["ban"], settings, self._sampled[at : at + count])

    def _set(self, suppress: tuple[int, ...]) -> int:
        """The number of a set of ids that may not be said."""
        number = self._sets.get(suppress)
        if number is None:
            if len(self._sets) == _SETS:
                raise ValueError(f"more than {_SETS} different sets of suppressed ids")
            number = self._sets[suppress] = len(self._sets)
            self._banned[number, list(suppress)] = 1
        return number

    def _warm_up(self) -> None:
        """Compile every kernel and capture every graph: a call must not wait for that."""
        arrays = self._large.next()
        for array in arrays.values():
            array.fill(0)
        arrays["after"].fill(-1)
        self._large.send()
        together = max(1, 64 // self._group)
        tokens = min(_PIECE, 1024)
        device = self._large.on_device
        hidden_TE = self._first(device, tokens, self._hidden.new_zeros((tokens, self._decoder.config.hidden)))
        forward(self._decoder, hidden_TE, self._batch(device, tokens, tokens, together), self._memory)
        small = self._small.next()
        for array in small.values():
            array.fill(0)
        small["after"].fill(-1)
        self._small.send()
        self._graphs.capture()
        self._choose(self._small, self._logits, 0, 1)
        torch.cuda.synchronize()


def _cut(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Rows in order, in pieces of at most `most` tokens; a row of more is a piece by itself."""
    pieces: list[list[Row]] = [[]]
    tokens = 0
    for row in rows:
        if pieces[-1] and tokens + row.tokens > most:
            pieces.append([])
            tokens = 0
        pieces[-1].append(row)
        tokens += row.tokens
    return pieces
