"""How well a checkpoint foretells a text: teacher-forced, through the engine's rolling cache and evictions.

Knows:   checkpoints, the engine, policies, token ids.
Ignores: which text and why (probes/), averages and intervals, time.

Figures are negative log-likelihoods in nats, one a token; perplexity is exp of their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from ..engine.checkpoint import count_weights
from ..engine.device import block_bytes
from ..engine.engine import Engine
from ..engine.kv_pool import Narrow
from ..engine.weights import dtype_of, load_decoder, read_decoder_config
from ..errors import AssetError, FieldError, NotMeasured
from ..memory import free_memory
from ..window import Policy, Positions, Recycle, Unbounded, blocks_for, most_blocks, reach
from .assets import locate

PIECE = 128  # tokens appended per session and step
BLOCK = 16
JUDGED = 4096  # tokens of context and reply for which a judge must have room

SHARED_KV = 2**30  # bytes of keys and values, at most, of sessions that share their steps


@dataclass(frozen=True, slots=True)
class Scored:
    """One text under one policy. `nll[i]` belongs to token i + 1: the first has nothing to go by."""

    nll: NDArray[np.float64]  # [tokens - 1]
    blocks_peak: int  # most blocks that its session held between two steps
    blocks_bound: int  # what the policy promises


@dataclass(slots=True)
class _Reading:
    """One text on its way through the engine."""

    session: int
    ids: Sequence[int]
    bound: int
    losses: list[Tensor]
    at: int = 0
    peak: int = 0

    @property
    def left(self) -> int:
        """Tokens still to append; the last one is foretold and never read."""
        return len(self.ids) - 1 - self.at


class Scorer:
    """One checkpoint, loaded. AssetError when it is missing, incomplete or of an unknown architecture.

    It computes where torch makes its tensors (torch.set_default_device).
    """

    def __init__(
        self,
        folder: Path,
        dtype: str = "float32",
        threads: int | None = None,
        shared_kv: int = SHARED_KV,
        products: torch.dtype | None = None,
        narrow: bool = False,
    ) -> None:
        """`narrow`: windows are kept in 8 bits and sinks in `dtype`, on a CUDA device alone."""
        if threads is not None:
            torch.set_num_threads(threads)
        self._decoder = load_decoder(folder, dtype, products)
        self._shared_kv = shared_kv
        self._narrow = narrow
        self._tokenizer = _tokenizer(folder)

    def encode(self, text: str) -> list[int]:
        """The ids of plain text, without the tokens that a tokenizer may put around it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def nll(self, ids: Sequence[int], policy: Policy, positions: Positions = "anchored") -> Scored:
        """What each token of a text of two or more costs a session that is as old as the text is long."""
        return self.nll_of_all([ids], policy, positions)[0]

    def nll_of_all(
        self, texts: Sequence[Sequence[int]], policy: Policy, positions: Positions = "anchored"
    ) -> list[Scored]:
        """`nll` of several texts, each in a session of its own, as many in one step as fit into memory.

        The pool holds exactly what the policy promises, so a session that took more would fail.
        """
        for ids in texts:
            if len(ids) < 2:
                raise FieldError(
                    "text", list(ids), "give 2 tokens or more: the first one has nothing to go by"
                )
        piece = _piece(policy)
        bounds = [_bound(policy, piece, len(ids)) for ids in texts]
        scored: list[Scored] = []
        blocks = self._shared_kv // block_bytes(self._decoder.config, BLOCK, self._decoder.dtype)
        for start, end in _groups(bounds, blocks):
            pinned = (end - start) * blocks_for(reach(policy)[1], BLOCK)
            kv = Narrow(pinned, self._decoder.dtype) if self._narrow else None
            engine = Engine(self._decoder, sum(bounds[start:end]), BLOCK, piece, kv_dtype=kv)
            scored += self._read(engine, texts[start:end], bounds[start:end], policy, positions)
        return scored

    def nll_of(self, context_ids: Sequence[int], reply_ids: Sequence[int]) -> NDArray[np.float64]:
        """What each token of a reply costs a judge who has the whole context before it, afresh: [reply]."""
        return self.nll_of_replies([context_ids], [reply_ids])[0]

    def nll_of_replies(
        self, contexts: Sequence[Sequence[int]], replies: Sequence[Sequence[int]]
    ) -> list[NDArray[np.float64]]:
        """`nll_of` each reply in its own context, as many in one step as fit into memory."""
        if not all(len(context) for context in contexts):
            raise FieldError("context", [], "give the tokens that the reply answers")
        texts = [[*context, *reply] for context, reply in zip(contexts, replies, strict=True) if len(reply)]
        scored = iter(self.nll_of_all(texts, Unbounded()))
        return [
            next(scored).nll[len(context) - 1 :] if len(reply) else np.zeros(0)
            for context, reply in zip(contexts, replies, strict=True)
        ]

    @torch.inference_mode()
    def _read(
        self,
        engine: Engine,
        texts: Sequence[Sequence[int]],
        bounds: Sequence[int],
        policy: Policy,
        positions: Positions,
    ) -> list[Scored]:
        readings = [
            _Reading(opened(engine, policy, positions), ids, bound, [])
            for ids, bound in zip(texts, bounds, strict=True)
        ]
        while going := [reading for reading in readings if reading.left]:
            self._step(engine, going)
        engine.pool.check()
        return [
            Scored(torch.cat(reading.losses).double().cpu().numpy(), reading.peak, reading.bound)
            for reading in readings
        ]

    def _step(self, engine: Engine, going: Sequence[_Reading]) -> None:
        lengths = [min(engine.max_append, reading.left) for reading in going]
        shares = [
            torch.tensor(reading.ids[reading.at : reading.at + length + 1])
            for reading, length in zip(going, lengths, strict=True)
        ]
        read = torch.cat([share[:-1] for share in shares])
        output = engine.step([reading.session for reading in going], lengths, read)
        for reading, share, hidden in zip(going, shares, output.hidden.split(lengths), strict=True):
            logits = self._decoder.logits(hidden).float()
            reading.losses.append(F.cross_entropy(logits, share[1:], reduction="none"))
            reading.at += len(hidden)
            reading.peak = max(reading.peak, engine.held(reading.session))


def load_judge(
    name: str, dtype: str = "float32", threads: int | None = None, free: int | None = None
) -> Scorer:
    """The Scorer of an asset, folder or hub id, once it is sure to fit; else NotMeasured, with the numbers.

    `free`: bytes it may take; what the machine has free, when left out.
    """
    folder = locate(name)
    needed, free = memory_needed(folder, dtype), free_memory() if free is None else free
    if free is not None and needed > free:
        raise NotMeasured(
            f"judge {name} needs {_gib(needed)} GiB as {dtype}, and {_gib(free)} GiB are free: name a "
            "smaller checkpoint with --judge, or leave --judge out, and the model judges with its own weights"
        )
    return Scorer(folder, dtype, threads)


def memory_needed(folder: Path, dtype: str, tokens: int = JUDGED) -> int:
    """About how many bytes a Scorer takes: weights, keys and values of `tokens`, one piece's logits twice."""
    config, kept = read_decoder_config(folder), dtype_of(dtype)
    # A tied embedding is held twice: as the table of the input, and laid out for the product of the output.
    weights = count_weights(folder) + (config.vocab * config.hidden if config.tied else 0)
    return weights * kept.itemsize + block_bytes(config, tokens, kept) + 2 * PIECE * config.vocab * 4


def _tokenizer(folder: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare Exceptions
        raise AssetError(f"{folder}: no readable tokenizer.json ({error})") from None


def opened(engine: Engine, policy: Policy, positions: Positions = "anchored") -> int:
    """A new session in an engine that was made for it."""
    session = engine.open(policy, positions)
    if session is None:
        raise AssertionError("the pool was made for these sessions, and one of them does not fit")
    return session


def _piece(policy: Policy) -> int:
    """Tokens per append: what a recycled session carries and an append must fit its window together."""
    return min(PIECE, policy.window - policy.carry) if isinstance(policy, Recycle) else PIECE


def _bound(policy: Policy, piece: int, tokens: int) -> int:
    return most_blocks(policy, BLOCK, piece) or blocks_for(tokens, BLOCK)


def _groups(bounds: Sequence[int], blocks: int) -> list[tuple[int, int]]:
    """Consecutive texts whose sessions fit into `blocks` together, as (start, end); at least one each."""
    groups, start, held = [], 0, 0
    for number, bound in enumerate(bounds):
        if number > start and held + bound > blocks:
            groups.append((start, number))
            start, held = number, 0
        held += bound
    return [*groups, (start, len(bounds))]


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f}"
