"""The rolling cache against references that see the whole history."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.window import Policy, Positions, Recycle, Unbounded, Window, most_blocks, sees

from .conftest import Tiny
from .reference import Reference

CASES = [(5, 9, 4), (1, 1, 4), (7, 3, 4), (0, 8, 4), (4, 16, 16), (2, 11, 1)]  # S, W, block size
LENGTHS = (0, 1, 7, 32)


def poisoned_engine(tiny: Tiny, block_size: int, blocks: int = 200, max_append: int = 33) -> Engine:
    """An engine whose free blocks hold NaN: whoever reads one is found out."""

    def poison(freed: Sequence[int]) -> None:
        engine.memory.fill(freed, float("nan"))

    engine = Engine(load_decoder(tiny.folder), blocks, block_size, max_append, on_release=poison)
    poison(list(range(blocks)))
    return engine


def assert_near(got: Tensor, want: Tensor) -> None:
    """Logits within 1e-3."""
    torch.testing.assert_close(got, want, rtol=0, atol=1e-3)


def some_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 97, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def pieces(count: int, seed: int, lengths: tuple[int, ...] = LENGTHS) -> Iterator[int]:
    """`count` cut into seeded pieces of the given lengths."""
    draw = random.Random(seed)
    while count > 0:
        piece = min(count, draw.choice(lengths))
        count -= piece
        yield piece


def roll(engine: Engine, session: int, ids: list[int], seed: int) -> Tensor:
    """Logits of `ids` fed to one session piece by piece, the pool's accounts checked after each."""
    out, at = [], 0
    for piece in pieces(len(ids), seed):
        output = engine.step([session], [piece], torch.tensor(ids[at : at + piece], dtype=torch.long))
        assert output.stalled == [False]
        out.append(engine.decoder.logits(output.hidden))
        at += piece
        engine.pool.check()
    return torch.cat(out)


def expected(tiny: Tiny, ids: list[int], policy: Policy, positions: Positions) -> Tensor:
    """The masked full-history reference."""

    def stand(t: int, p: int) -> int:
        if positions == "absolute" or not isinstance(policy, Window) or p >= policy.sinks:
            return t
        return min(t, policy.sinks + policy.window - 1)

    logits = Reference(tiny.model).masked_logits(ids, lambda t, p: sees(policy, t, p), stand)
    return logits.float()


@pytest.mark.parametrize("positions", ["absolute", "anchored"])
@pytest.mark.parametrize(("sinks", "window", "block_size"), CASES)
def test_the_rolling_cache_equals_the_masked_full_history(
    tiny: Tiny, sinks: int, window: int, block_size: int, positions: Positions
) -> None:
    policy = Window(window, sinks)
    ids = some_ids(3 * (sinks + window) + 5)
    engine = poisoned_engine(tiny, block_size)
    session = engine.open(policy, positions)
    assert session is not None
    got = roll(engine, session, ids, seed=sinks)
    assert_near(got, expected(tiny, ids, policy, positions))


@pytest.mark.parametrize(("sinks", "window", "block_size"), CASES)
def test_anchored_equals_turning_every_key_by_its_place_in_the_cache(
    llama: Tiny, sinks: int, window: int, block_size: int
) -> None:
    ids = some_ids(3 * (sinks + window) + 5, seed=1)
    engine = poisoned_engine(llama, block_size)
    session = engine.open(Window(window, sinks), "anchored")
    assert session is not None
    got = roll(engine, session, ids, seed=sinks)
    assert_near(got, Reference(llama.model).rerotated_logits(ids, window, sinks).float())


def test_anchored_and_absolute_differ_once_the_window_has_moved(llama: Tiny) -> None:
    ids = some_ids(60)
    policy = Window(9, 5)
    differ = (
        (expected(llama, ids, policy, "anchored") - expected(llama, ids, policy, "absolute")).abs().amax(-1)
    )
    assert differ[:14].max() == 0
    assert differ[20:].max() > 0.1


def test_sessions_of_any_policy_age_and_length_share_a_batch_without_a_trace(llama: Tiny) -> None:
    kinds: list[tuple[Policy, Positions]] = [
        (Window(9, 5), "anchored"),
        (Window(9, 5), "absolute"),
        (Window(8, 0), "anchored"),
        (Window(40, 20), "anchored"),
        (Unbounded(), "anchored"),
        (Window(1, 1), "absolute"),
    ]
    engine = poisoned_engine(llama, block_size=4)
    feeds: dict[int, list[int]] = {}
    done: dict[int, list[Tensor]] = {}
    policy_of: dict[int, tuple[Policy, Positions]] = {}
    draw = random.Random(7)
    fed: dict[int, int] = {}
    while len(feeds) < len(kinds) or any(fed[s] < len(feeds[s]) for s in feeds):
        if len(feeds) < len(kinds):  # one joins a step, so ages differ
            policy, positions = kinds[len(feeds)]
            session = engine.open(policy, positions)
            assert session is not None
            feeds[session], done[session], fed[session] = some_ids(90, seed=session), [], 0
            policy_of[session] = (policy, positions)
        lengths = {s: min(draw.choice(LENGTHS), len(feeds[s]) - fed[s]) for s in feeds}
        flat = [i for s, n in lengths.items() for i in feeds[s][fed[s] : fed[s] + n]]
        output = engine.step(list(lengths), list(lengths.values()), torch.tensor(flat, dtype=torch.long))
        logits = engine.decoder.logits(output.hidden)
        for session, share in zip(lengths, logits.split(output.appended), strict=True):
            done[session].append(share)
        for session, n in lengths.items():
            fed[session] += n
        engine.pool.check()
    for session, (policy, positions) in policy_of.items():
        want = expected(llama, feeds[session], policy, positions)
        assert_near(torch.cat(done[session]), want)


def test_recycle_equals_a_fresh_prefill_of_what_it_carries(llama: Tiny) -> None:
    policy = Recycle(window=48, carry=12)
    ids = some_ids(150)
    engine = poisoned_engine(llama, block_size=4)
    session = engine.open(policy)
    assert session is not None
    reference = Reference(llama.model)
    held: list[int] = []
    at = recycled = 0
    for piece in pieces(len(ids), seed=3, lengths=(1, 7, 32)):
        new = ids[at : at + piece]
        output = engine.step([session], [piece], torch.tensor(new))
        if len(held) + piece > policy.window:
            held, recycled = held[-policy.carry :], recycled + 1
        held += new
        at += piece
        want = reference.masked_logits(held, lambda t, p: p <= t, lambda t, p: t)[-piece:]
        assert_near(engine.decoder.logits(output.hidden), want.float())
        engine.pool.check()
    assert recycled >= 2


def test_a_window_never_holds_more_than_its_bound(llama: Tiny) -> None:
    policy = Window(9, 5)
    engine = poisoned_engine(llama, block_size=4, max_append=8)
    session = engine.open(policy)
    assert session is not None
    for seed in range(100):
        engine.step([session], [8], torch.tensor(some_ids(8, seed)))
        assert engine.held(session) <= (most_blocks(policy, 4, 8) or 0)
    assert engine.pool.leased == engine.held(session)


def test_positions_far_beyond_the_trained_range_change_nothing_when_anchored(llama: Tiny) -> None:
    """W = S = 1 sees its sink and itself alone, so 10,000 tokens between the two must not matter."""
    engine = poisoned_engine(llama, block_size=16)
    session = engine.open(Window(1, 1))
    assert session is not None
    first = some_ids(1)
    engine.step([session], [1], torch.tensor(first))
    for seed in range(320):
        engine.step([session], [32], torch.tensor(some_ids(32, seed)))
    last = some_ids(2, seed=9)
    got = engine.decoder.logits(engine.step([session], [2], torch.tensor(last)).hidden)
    want = Reference(llama.model).rerotated_logits(first + last, 1, 1)[-1].float()
    assert_near(got[-1], want)
