"""Where a checkpoint's attention lies: how much of each head's mass falls on each place of a chat.

Knows:   the decoder's own weights and attention; a chat of a header, a question, its answer and a text.
Ignores: what follows from it (probes/sinks.py), pictures, time.

A session that never forgets reads the chat through the engine; an attention of the same signature as
`engine.attention.attend` stands in its place and adds up the softmax that it computes.
Shape letters: N layers, Q query heads, H KV heads, G = Q/H, T tokens of a step, P places, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from ..engine.attention import Layout
from ..engine.decoder import DecoderConfig
from ..engine.engine import Engine
from ..engine.weights import load_decoder
from ..errors import FieldError
from ..window import Unbounded, blocks_for
from .chat import After, Chat
from .perplexity import BLOCK, PIECE, opened

REPLY = 24  # tokens of the answer, at most: header, question and answer are to lie within the first 64 places
FIRST = 128  # no query before this index counts: those see few places, and much of their mass on each

Told = Callable[[int], None]  # how many tokens have been read


@dataclass(frozen=True, slots=True)
class Marks:
    """Indexes at which the parts of the chat begin."""

    content: int  # the first word of the first question
    generated: int  # the first token that the model said
    text: int  # the turn that brings the long text


@dataclass(frozen=True, slots=True)
class AttentionMass:
    """`mass[n, q, p]`: mean share of layer n's head q that lies on place p, over the queries that count.

    Those are the tokens of the long text, from index `first_query` on. A head's shares sum to 1.
    """

    mass: NDArray[np.float64]  # [N, Q, P]
    ids: list[int]  # [P]
    spelled: list[str]  # [P], as the tokenizer writes them
    header: int  # tokens of the chat header
    marks: Marks
    first_query: int


class WatchedAttention:
    """`engine.attention.attend` for one session that never forgets, in full view of its weights.

    Queries from index `first` on are added up in `mass_NQP`; a step calls it once a layer, in order.
    """

    def __init__(self, config: DecoderConfig, places: int) -> None:
        self.mass_NQP = torch.zeros(config.layers, config.heads, places, dtype=torch.float64)
        self.places = places
        self.first = places  # none, until it is told from where
        self._calls = 0

    def __call__(
        self, query_TQD: Tensor, sink_query_TQD: Tensor, keys: Tensor, values: Tensor, layout: Layout
    ) -> Tensor:
        """[T, Q, D]. Without a window there are no sinks, hence no use for the second query."""
        (lane,) = layout.lanes
        kv_heads, _, block, size = keys.shape
        at = torch.tensor([lane.table[p // block] * block + p % block for p in range(lane.length)])
        keys_HPD, values_HPD = (pool.flatten(1, 2)[:, at] for pool in (keys, values))
        query_HGTD = query_TQD.unflatten(1, (kv_heads, -1)).permute(1, 2, 0, 3)
        scores_HGTP = query_HGTD @ keys_HPD.unsqueeze(1).transpose(2, 3) * size**-0.5
        hidden_TP = torch.arange(lane.length) > layout.index_T.unsqueeze(1)
        weights_HGTP = scores_HGTP.masked_fill_(hidden_TP, float("-inf")).softmax(-1)
        counted_HGP = weights_HGTP[:, :, layout.index_T >= self.first].sum(2).double()
        self.mass_NQP[self._calls % len(self.mass_NQP), :, : lane.length] += counted_HGP.flatten(0, 1)
        self._calls += 1
        mixed_HGTD: Tensor = weights_HGTP @ values_HPD.unsqueeze(1)
        return mixed_HGTD.flatten(0, 1).transpose(0, 1)


class _Reader:
    """One session that reads and answers, and keeps what it has read and said."""

    def __init__(self, engine: Engine, told: Told) -> None:
        self.ids: list[int] = []
        self._engine, self._told = engine, told
        self._session = opened(engine, Unbounded())
        self._last_E = engine.decoder.nothing()

    def read(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), PIECE):
            piece = list(ids[start : start + PIECE])
            output = self._engine.step([self._session], [len(piece)], torch.tensor(piece))
            self._last_E = output.hidden[-1]
            self.ids += piece
            self._told(len(self.ids))

    def answer(self, ends: Collection[int]) -> None:
        """Say the likeliest tokens, REPLY at most, an end token included."""
        for _ in range(REPLY):
            token = int(self._engine.decoder.logits(self._last_E).argmax())
            self.read([token])
            if token in ends:
                return


def attention_mass(
    folder: Path, header: str, question: str, text: str, tokens: int, told: Told = lambda _: None
) -> AttentionMass:
    """Read a chat of `tokens` tokens: header, question, the model's own answer, then what fits of `text`.

    AssetError when the checkpoint cannot chat; FieldError when `text` is too short or `tokens` are too few.
    """
    chat, decoder = Chat(folder, header), load_decoder(folder)
    asked = chat.turn(question, "header")
    opening = chat.header + asked
    watch = WatchedAttention(decoder.config, max(tokens, len(opening) + REPLY))
    decoder.attend = watch
    reader = _Reader(Engine(decoder, blocks_for(watch.places, BLOCK), BLOCK, PIECE), told)
    reader.read(opening)
    reader.answer(chat.ends)
    begun = len(reader.ids)
    watch.first = max(FIRST, begun)
    if tokens < 2 * watch.first:
        raise FieldError("tokens", tokens, f"use {2 * watch.first} or more: half of them are to count")
    after: After = "end" if reader.ids[-1] in chat.ends else "answer"
    # Cut before it is encoded, which would take seconds for a book; few tokens are 16 characters long.
    rest = chat.turn(text[: tokens * 16], after)[: tokens - begun]
    if begun + len(rest) < tokens:
        raise FieldError("text", text[:20], f"too short: give {tokens} tokens, or use fewer --tokens")
    reader.read(rest)
    spell = Tokenizer.from_file(str(folder / "tokenizer.json")).id_to_token
    return AttentionMass(
        mass=(watch.mass_NQP / (tokens - watch.first)).cpu().numpy(),
        ids=reader.ids,
        spelled=[spell(token) or "" for token in reader.ids],
        header=len(chat.header),
        marks=Marks(len(chat.header) + _shared(asked, chat.turn("", "header")), len(opening), begun),
        first_query=watch.first,
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
