"""What a step and a frame cost on one GPU, beside the card's own floor and beside other ways to do it.

Run:  python -m evals.speed.run                          (about 5 minutes on one H200)
      python -m evals.speed.run --parts decode --sizes qwen2.5-7b

Random weights of real models' sizes, bfloat16, windows of 1,024 tokens and 20 sinks, full. Parts:

- decode: one token for B sessions, as a graph alone and through `Engine.step`, against the floor.
- narrow: the same decode step with FP8 windows and bfloat16 sinks, the memory of both pools, and what a text
  costs SmolLM2-135M-Instruct on either (its weights and the text: `metronome assets fetch`).
- attention: its kernel alone against the card's copy bandwidth, and torch's own on contiguous caches.
- peers: the same decode step in transformers, eager and by its continuous batching, as they come.
- frames: 50 tokens in and 25 out for N calls, through ticker, recorder and admission: what is not GPU work?
- ages: a frame's cost and the memory taken as calls grow from 1,000 to 1,000,000 tokens.
- calls: the most calls whose frames are over within 600 ms, and within 2 s, with an audio tower in the frame;
  of Moshi's size within 80 ms, a token in and out a frame. Codecs, depth transformer and sockets are not in.
- cliff: 96 and 128 calls of Qwen3-30B-A3B's size on one pool, unbounded and windowed, ten draws each.
- bounds: ticks under the window, under Recycle and when the window is computed anew every frame.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metronome_cli.clock import SystemClock
from metronome_cli.engine.cuda import Begun, CudaSteps
from metronome_cli.engine.decoder import Decoder
from metronome_cli.engine.device import Need, block_bytes, fit_pool
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.graphs import Graphs
from metronome_cli.engine.kv_pool import Narrow
from metronome_cli.engine.random_weights import SIZES, sized_decoder
from metronome_cli.engine.rows import Row
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.stats import percentiles
from metronome_cli.window import Policy, Recycle

from ..calls import Calls
from ..settled import settled
from .card import Card, floor_ms, replays, say
from .cliff import BLOCKS_OF_ALL, cliff
from .narrow import perplexity
from .peers import attention, transformers_steps
from .sizes import (
    AGES,
    APPEND,
    BATCHES,
    BLOCK,
    BLOCKS,
    CALLS,
    FILLED,
    FRAME_S,
    TOKENS_IN,
    TOKENS_OUT,
    VLLM_MS,
    WINDOW,
)
from .talk import RandomTalk
from .tower import TOWER_BYTES, Tower

RESULTS = Path(__file__).parent / "results"


def steps_of(engine: Engine) -> CudaSteps:
    steps = engine._steps
    assert isinstance(steps, CudaSteps)
    return steps


# ---- A step ----


def decode(name: str, engine: Engine, card: Card, kind: str = "") -> list[dict[str, Any]]:
    """One token for B sessions of different ages."""
    rows = []
    for batch, vllm in zip(BATCHES[name], VLLM_MS[name], strict=True):
        talk = RandomTalk(engine, WINDOW, 1, 1, temperature=0.0)  # what it says begins at random
        for call in range(batch):
            talk.open(call, 0)
            talk.age(call, 3000 + call)
        numbers = list(talk._numbers.values())
        engine.step(numbers, [1] * batch, talk._ids(batch), sample=[True] * batch)
        _decode_on(engine, numbers, 4)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        _decode_on(engine, numbers, 30)
        torch.cuda.synchronize()
        through_ms = (time.perf_counter() - begun) / 30 * 1e3
        graphs = steps_of(engine)._graphs
        graph_ms = replays(graphs._captured[graphs.bucket(batch)])
        floor = floor_ms(engine.decoder.config, batch, 1044, card)
        rows.append(
            say(
                f"decode{kind} {name} B={batch}",
                floor_ms=round(floor, 2),
                graph_ms=round(graph_ms, 2),
                engine_ms=round(through_ms, 2),
                vllm_ms=vllm,
                kernels_us=_kernels(graphs, batch),
            )
        )
        for call in range(batch):
            talk.close(call)
    return rows


def _decode_on(engine: Engine, numbers: Sequence[int], steps: int) -> None:
    nothing = torch.empty(0, dtype=torch.long)
    for left in range(steps, 0, -1):
        engine.step(numbers, [0] * len(numbers), nothing, sample=[True] * len(numbers), ahead=left > 1)


def _kernels(graphs: Graphs, batch: int) -> dict[str, list[float]]:
    """Device time of the ten costliest kernels, in microseconds, and how often each ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        graphs.replay(graphs.bucket(batch))
        torch.cuda.synchronize()
    rows = sorted(seen.key_averages(), key=lambda row: -float(row.device_time_total))
    return {row.key[:40]: [round(row.device_time_total), row.count] for row in rows[:10]}


def narrow(card: Card) -> list[dict[str, Any]]:
    """Qwen2.5-7B's size, windows of 8 bits; `decode` has the same in bfloat16."""
    name = "qwen2.5-7b"
    most, decoder = max(BATCHES[name]), sized_decoder(name, torch.bfloat16, "cuda")
    engine = Engine(decoder, BLOCKS * most, BLOCK, APPEND, kv_dtype=Narrow(most))
    plain = engine.pool.total * block_bytes(decoder.config, BLOCK, torch.bfloat16)
    graphs = [row["graph_ms"] for row in decode(name, engine, card, ", windows of 8 bits,")]
    return [say("narrow fp8", pool_bytes=engine.memory.bytes, of_bf16=plain, graph_ms=graphs)]


# ---- A frame ----


@contextmanager
def device_time(engine: Engine) -> Iterator[list[tuple[torch.cuda.Event, torch.cuda.Event]]]:
    """Marks around every step that the engine begins: what the device was busy with, in its own order."""
    steps, spans = steps_of(engine), []
    plain = steps.begin

    def begin(rows: Sequence[Row]) -> Begun:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        computed = plain(rows)
        after.record()
        spans.append((before, after))
        return computed

    steps.begin = begin  # type: ignore[method-assign]
    try:
        yield spans
    finally:
        steps.begin = plain  # type: ignore[method-assign]


@dataclass(frozen=True)
class Kind:
    """What calls are like: tokens behind each, how many frames apart they began, what a frame brings."""

    age: int = 0
    phases: int = 1
    asked: tuple[int, int] = (TOKENS_IN, TOKENS_OUT)
    tower: Tower | None = None


ALIKE = Kind()


def hold(engine: Engine, policy: Policy, calls: int, frames: int, kind: Kind = ALIKE) -> dict[str, Any]:
    """`calls` calls through ticker, recorder and admission; ticks after the first two, which fill them."""
    own = {"model.kind": "null", "admission.max_sessions": calls, "beat.frame_s": FRAME_S}
    profile = load_profile("laptop", own)
    talk = RandomTalk(engine, policy, *kind.asked, kind.tower)
    held = Calls(talk, profile, chosen(profile), 0, 0)
    opened = [call for _ in range(calls) if (call := held.open()) is not None]
    for call in opened if kind.age else ():
        talk.age(call, kind.age)
    if kind.phases > 1:  # what they have heard fills a window, and then some frames more or less
        phase = np.random.default_rng(0).integers(kind.phases, size=calls)
        for frame in range(FILLED + kind.phases):
            some = [call for call, late in zip(opened, phase, strict=True) if frame < FILLED + late]
            talk.hear(some, TOKENS_IN)
    held.tick()
    held.tick()
    with settled(), device_time(engine) as spans:
        ticks = [held.tick() for _ in range(frames)]
        torch.cuda.synchronize()
    busy_s = sum(before.elapsed_time(after) for before, after in spans) / 1e3
    took = [tick.done - tick.start for tick in ticks]
    held.close_all()
    return {
        "calls": calls,
        "tick_s": {name: round(value, 4) for name, value in (percentiles(took, (50, 90, 100)) or {}).items()},
        "not_gpu_share": round(1 - busy_s / sum(took), 4),
        "stalled": sum(tick.stalled for tick in ticks),
        "different_tokens": len(talk.said),
    }


def most_calls(name: str, decoder: Decoder) -> list[dict[str, Any]]:
    """The largest N whose slowest frame keeps a limit, with all the memory that the card has left."""
    is_moshi = name == "moshi-temporal"
    tower = None if is_moshi else Tower(decoder.config.hidden)
    kind = Kind(age=3000, asked=(1, 1) if is_moshi else (TOKENS_IN, TOKENS_OUT), tower=tower)
    block = block_bytes(decoder.config, BLOCK, torch.bfloat16)
    engine = Engine(decoder, fit_pool("free", Need(TOWER_BYTES, block), decoder.device), BLOCK, APPEND)
    most = engine.pool.total // BLOCKS
    held: dict[int, dict[str, Any]] = {}

    def slowest_of(calls: int) -> float:
        if calls not in held:
            held[calls] = hold(engine, WINDOW, calls, 4, kind)
        return float(held[calls]["tick_s"]["p100"])

    found = []
    for limit_s in (0.08,) if is_moshi else (0.6, FRAME_S):
        calls = largest(slowest_of, limit_s, most)
        told = {
            "slowest_s": {calls: slowest_of(calls) for calls in sorted(held)},
            "different_tokens": {calls: held[calls]["different_tokens"] for calls in sorted(held)},
        }
        found.append(say(f"calls {name} within {limit_s} s", calls=calls, room=most, **told))
    return found


def largest(slowest_of: Callable[[int], float], limit: float, most: int) -> int:
    """The largest N up to `most`, to 2 %, that keeps `limit`; what it costs rises about as a line."""
    low, high, at = 0, most + 1, min(most, 64)
    took: dict[int, float] = {0: 0.0}
    while high - low > max(1, low // 50):
        took[at] = slowest_of(at)
        low, high = (at, high) if took[at] <= limit else (low, at)
        (x0, y0), (x1, y1) = sorted(took.items(), key=lambda one: abs(one[1] - limit))[:2]
        guess = x0 + (limit - y0) * (x1 - x0) / (y1 - y0) if y1 != y0 else (low + high) / 2
        margin = max(1, (high - low) // 8)  # not so near an end that hardly anything is learnt
        at = round(min(max(guess, low + margin), high - margin)) if high - low > 2 else low + 1
    return low


def frames(name: str, engine: Engine) -> list[dict[str, Any]]:
    return [say(f"frame {name} N={calls}", **hold(engine, WINDOW, calls, 4)) for calls in CALLS]


def ages(name: str, engine: Engine) -> list[dict[str, Any]]:
    rows = []
    for age in AGES:
        found = hold(engine, WINDOW, 128, 6, Kind(age=age))
        rows.append(say(f"age {name} {age} tokens", **found, bytes=torch.cuda.memory_allocated()))
    return rows


def bounds(name: str, engine: Engine) -> list[dict[str, Any]]:
    """The same calls and kernels; Recycle takes half of its window up again, or all of it every frame."""
    policies: dict[str, Policy] = {
        "window": WINDOW,
        "recycle": Recycle(1024, 512),
        "recompute": Recycle(1024 + TOKENS_IN + TOKENS_OUT, 1024 - 1),
    }
    return [
        say(f"bound {name} {which} N={calls}", **hold(engine, policy, calls, 10, Kind(phases=8)))
        for calls in (32, 128)
        for which, policy in policies.items()
    ]


def measure(name: str, parts: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The parts that want a decoder of one size."""
    together = {"decode", "frames", "ages", "bounds"}.intersection(parts)
    if not together and not {"calls", "cliff"}.intersection(parts):
        return
    begun = time.perf_counter()
    decoder = sized_decoder(name, torch.bfloat16, "cuda")
    yield from of_many(name, decoder, parts, begun) if together else ()
    clear()
    yield from most_calls(name, decoder) if "calls" in parts else ()
    clear()
    if name == "qwen3-30b-a3b" and "cliff" in parts:
        yield from cliff(Engine(decoder, BLOCKS_OF_ALL, BLOCK, APPEND))


def of_many(name: str, decoder: Decoder, parts: Sequence[str], begun: float) -> Iterator[dict[str, Any]]:
    """The parts that share one pool for as many calls as any of them holds."""
    calls = max(BATCHES[name] if name == "moshi-temporal" else CALLS)
    engine = Engine(decoder, BLOCKS * calls, BLOCK, APPEND)
    torch.cuda.synchronize()
    yield say(f"start {name}", seconds=round(time.perf_counter() - begun, 1))
    engine.memory.keys.normal_()
    engine.memory.values.normal_()
    yield from decode(name, engine, Card.measured()) if "decode" in parts else ()
    if name != "moshi-temporal":  # its frame is a token in and a token out: the decode step
        yield from frames(name, engine) if "frames" in parts else ()
    if name == "qwen2.5-7b":
        yield from ages(name, engine) if "ages" in parts else ()
        yield from bounds(name, engine) if "bounds" in parts else ()


def clear() -> None:
    """Give the card back what nobody holds any more."""
    gc.collect()
    torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("decode", "narrow", "attention", "peers", "frames", "ages", "bounds", "calls", "cliff")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    card = Card.measured()
    rows = [say("card", **card.as_dict())]
    rows += attention(card) if "attention" in options.parts else []
    rows += narrow(card) if "narrow" in options.parts else []
    rows += perplexity() if "narrow" in options.parts else []
    for name in options.sizes:
        clear()
        rows += measure(name, options.parts)
    clear()
    rows += transformers_steps() if "peers" in options.parts else []
    report = new_report("eval-speed", None, SystemClock(), 0)
    report.results = {"rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)


if __name__ == "__main__":
    main()
