"""Defects that a reader would not see, planted on purpose: the equality that guards the window finds each.

What a healthy engine passes here is tests/engine/test_window.py in small: the engine, piece by piece and with
eviction, against a forward over the whole history under the window's mask.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metronome_cli.engine import attention, decoder
from metronome_cli.engine.attention import Layout, attend
from metronome_cli.engine.blocks import BlockPool, Lane
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.rope import Rope
from metronome_cli.engine.weights import load_decoder
from metronome_cli.window import Policy, Window, reach

from .conftest import Tiny
from .test_window import expected, roll, some_ids

POLICY = Window(window=9, sinks=5)
IDS = some_ids(60)
SETTLED = POLICY.sinks + POLICY.window  # from here on the window has moved and something is out of sight


def difference(tiny: Tiny) -> Tensor:
    """By how much each token's logits miss those of the reference, [tokens]."""
    engine = Engine(load_decoder(tiny.folder), 20, 4, 33)
    session = engine.open(POLICY, "absolute")
    assert session is not None
    got = roll(engine, session, IDS, seed=5)
    return (got - expected(tiny, IDS, POLICY, "absolute")).abs().amax(-1)


def test_without_a_defect_nothing_is_found(llama: Tiny) -> None:
    assert difference(llama).max() < 1e-3


def test_sinks_silently_dropped_are_found(llama: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = BlockPool.open

    def sinkless(pool: BlockPool, policy: Policy, max_append: int) -> Lane | None:
        return honest(pool, Window(reach(policy)[0], 0), max_append)

    monkeypatch.setattr(BlockPool, "open", sinkless)
    missed = difference(llama)
    assert missed[:9].max() < 1e-3  # nobody misses a sink that is still inside of the window
    assert missed[SETTLED:].min() > 1e-2


def test_keys_turned_for_the_place_beside_their_own_are_found(
    llama: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_further = Rope(10_000.0 ** -(torch.arange(0, 8, 2) / 8)).at(torch.tensor([[1]]))

    def off_by_one(query: Tensor, sink_query: Tensor, keys: Tensor, values: Tensor, layout: Layout) -> Tensor:
        flat = keys.flatten(1, 2)
        turned = one_further(flat[:, layout.place_T].transpose(0, 1))
        flat[:, layout.place_T] = turned.transpose(0, 1)
        return attend(query, sink_query, keys, values, layout)

    monkeypatch.setattr(decoder, "attend", off_by_one)
    missed = difference(llama)
    assert missed[0] < 1e-3  # a token that sees itself alone cannot tell
    assert missed[1:].min() > 1e-2


def test_a_window_one_token_short_is_found(llama: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(policy: Policy) -> tuple[int, int]:
        window, sinks = reach(policy)
        return window - 1, sinks

    monkeypatch.setattr(attention, "reach", short)
    missed = difference(llama)
    assert missed[: SETTLED - 1].max() < 1e-3  # until then sinks and window still cover everything
    assert missed[SETTLED - 1 :].min() > 1e-2
