"""The engine on a CUDA device against the same engine on the CPU in float64."""

from __future__ import annotations

import random

import pytest
import torch

from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.kv_pool import Narrow
from metronome_cli.engine.sampling import Sampling
from metronome_cli.window import Policy, Positions, Recycle, Unbounded, Window

from .conftest import off, twins

pytestmark = pytest.mark.gpu

PLAIN = DecoderConfig(128, 3, 6, 2, 64, 192, 500, 1e-6, qkv_bias=True)
NORMED = DecoderConfig(128, 2, 8, 1, 64, 192, 500, 1e-6, qk_norm=True, tied=True)
MIXED = DecoderConfig(128, 2, 4, 4, 128, 64, 500, 1e-6, qk_norm=True, experts=8, top=3)
CONFIGS = {"plain": PLAIN, "normed": NORMED, "mixed": MIXED}
POLICIES: list[Policy] = [Window(24, 5), Window(40, 20), Window(64), Unbounded(), Recycle(96, 30)]


@pytest.fixture(autouse=True)
def few_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few graphs, since capturing them takes longest; without a device these tests are skipped."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr("metronome_cli.engine.graphs.BUCKETS", (1, 8, 64, 512))


def opened(
    engine: Engine, policy: Policy, positions: Positions = "anchored", sampling: Sampling | None = None
) -> int:
    """A new session's number."""
    number = engine.open(policy, positions, sampling)
    assert number is not None
    return number


@pytest.mark.parametrize("name", CONFIGS)
def test_a_long_talk_of_many_sessions(name: str) -> None:
    fast, plain = twins(CONFIGS[name])
    engines = [Engine(decoder, 400, 16, max_append=30) for decoder in (fast, plain)]
    modes: tuple[Positions, ...] = ("anchored", "absolute")
    sessions = [[opened(engine, policy, mode) for policy in POLICIES for mode in modes] for engine in engines]
    assert sessions[0] == sessions[1]
    dice = random.Random(3)
    numbers = sessions[0]
    engines[0].memory.fill(list(range(400)), float("nan"))
    torch.manual_seed(5)
    for turn in range(40):
        chosen = dice.sample(numbers, dice.randint(1, len(numbers)))
        lengths = [dice.choice((0, 1, 3, 28)) or int(not engines[0].has_pending(n)) for n in chosen]
        asks = [length == 0 or dice.random() < 0.5 for length in lengths]
        ids = torch.randint(500, (sum(lengths),))
        inputs = ids if turn % 3 else plain.embed(ids).float()
        got = engines[0].step(chosen, lengths, inputs if turn % 3 else inputs.cuda(), sample=asks)
        want = engines[1].step(chosen, lengths, inputs if turn % 3 else inputs.double(), sample=asks)
        assert got.stalled == want.stalled
        assert got.appended == want.appended
        assert off(got.hidden, want.hidden) < 1e-4
        assert got.ids == want.ids  # of random logits; ties there are none
        assert [engines[0].held(n) for n in numbers] == [engines[1].held(n) for n in numbers]
        engines[0].pool.check()


def test_steps_too_large_for_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metronome_cli.engine.cuda._PIECE", 64)
    fast, plain = twins(PLAIN)
    engines = [Engine(decoder, 700, 16, max_append=60) for decoder in (fast, plain)]
    for engine in engines:
        for number in range(30):
            opened(engine, Window(50, 7), sampling=Sampling(0.7 * (number % 2), 0.9, number))
    torch.manual_seed(1)
    for _ in range(3):
        lengths = [random.Random(2).randint(1, 59) for _ in range(30)]
        ids = torch.randint(500, (sum(lengths),))
        asks = [number % 3 > 0 for number in range(30)]
        torch.cuda._sleep(10**8)  # the device is late: nothing may be overwritten that it has not copied yet
        got, want = (engine.step(range(1, 31), lengths, ids, sample=asks) for engine in engines)
        assert sum(lengths) > 512
        assert off(got.hidden, want.hidden) < 1e-4
        assert got.ids == want.ids


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_running_ahead_changes_nothing(temperature: float) -> None:
    """Frames of a prefill and five tokens, of which sessions leave early, are cancelled and closed."""
    fast, _ = twins(PLAIN)
    engines = [Engine(fast, 200, 16, max_append=8) for _ in range(2)]
    told: list[list[object]] = [[], []]
    for engine, ahead, seen in zip(engines, (False, True), told, strict=True):
        dice = random.Random(4)
        live = [opened(engine, Window(40, 6), sampling=Sampling(temperature, 0.9, seed)) for seed in range(6)]
        for frame in range(12):
            lengths = [dice.randint(1, 6) for _ in live]
            ids = torch.tensor([dice.randrange(500) for _ in range(sum(lengths))])
            seen.append(engine.step(live, lengths, ids, sample=[True] * len(live), ahead=ahead).ids)
            speakers = list(live)
            for step in range(4):
                speakers = [number for number in speakers if dice.random() < 0.8]
                if not speakers:
                    break
                none, rest = torch.empty(0, dtype=torch.long), [0] * len(speakers)
                going = ahead and step < 3
                out = engine.step(speakers, rest, none, sample=[True] * len(speakers), ahead=going)
                seen.append((out.ids, out.appended, out.hidden.float().cpu().norm().item()))
            if frame == 6:
                engine.close(live.pop(2))
                live.append(opened(engine, Window(40, 6), sampling=Sampling(temperature, 0.9, 77)))
            engine.pool.check()
    for one, other in zip(*told, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


def test_nothing_is_compiled_or_captured_during_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    fast, _ = twins(PLAIN)
    engine = Engine(fast, 400, 16, max_append=40)
    compiled: list[object] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **found: compiled.append(found))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", lambda *_, **__: pytest.fail("captured"))
    sessions = [opened(engine, Window(64, 4), sampling=Sampling(float(n % 2))) for n in range(20)]
    for lengths in ([1] * 20, [39] * 20, [9] * 20, [3] * 20, [0] * 20):  # a sampled token goes in front
        engine.step(sessions, lengths, torch.zeros(sum(lengths), dtype=torch.long), sample=[True] * 20)
    assert not compiled


def test_narrow_windows_stay_near_wide_ones_and_sinks_are_kept_apart() -> None:
    fast, plain = twins(PLAIN)
    engines = [
        Engine(fast, 200, 16, max_append=20, kv_dtype=Narrow(8, torch.float32)),
        Engine(plain, 200, 16, max_append=20),
    ]
    # One, two, none and three pinned blocks.
    policies = [Window(24, 5), Window(40, 20), Window(64), Window(30, 33)]
    numbers = [opened(engines[0], policy) for policy in policies]
    assert [opened(engines[1], policy) for policy in policies] == numbers
    torch.manual_seed(2)
    for turn in range(12):
        lengths = [1 + (turn + number) % 19 for number in numbers]
        ids = torch.randint(500, (sum(lengths),))
        got, want = (engine.step(numbers, lengths, ids) for engine in engines)
        assert off(got.hidden, want.hidden) < 0.1  # numbers of four significant bits
        engines[0].pool.check()
    assert opened(engines[0], Window(20, 16)) > 0  # the seventh of eight
    assert engines[0].open(Window(20, 40)) is None
