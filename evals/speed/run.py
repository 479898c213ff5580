"""What a step and a frame cost on one GPU, beside the card's own floor and beside other ways to do it.

Run:  python -m evals.speed.run                          (about 5 minutes on one H200)
      python -m evals.speed.run --parts decode --sizes qwen2.5-7b

Random weights of real models' sizes, bfloat16, windows of 1,024 tokens and 20 sinks, full. Parts:

- decode: one token for B sessions, as a graph alone and through `Engine.step`, against the floor.
- narrow: the same decode step with FP8 windows and bfloat16 sinks, and the memory of both pools.
- attention: its kernel alone against the card's copy bandwidth, and torch's own on contiguous caches.
- peers: the same decode step in transformers, eager, as it comes.
- frames: 50 tokens in and 25 out for N calls, through ticker, recorder and admission: what is not GPU work?
- ages: a frame's cost and the memory taken as calls grow from 1,000 to 1,000,000 tokens.
- calls: the most calls whose frames are over within 600 ms, and within 2 s, with an audio tower in the frame;
  of Moshi's size within 80 ms, a token in and out a frame. Codecs, depth transformer and sockets are not in.
- bounds: ticks under the window, under Recycle and when the window is computed anew every frame.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metronome_cli.clock import SystemClock
from metronome_cli.engine.cuda import Begun, CudaSteps
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.graphs import Graphs
from metronome_cli.engine.kv_pool import LayerMemory, Narrow
from metronome_cli.engine.random_weights import SIZES, sized_decoder
from metronome_cli.engine.rows import Row
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.runtime.admission.choice import chosen
from metronome_cli.stats import percentiles
from metronome_cli.window import Policy, Recycle, Window

from ..calls import Calls
from .card import Card, floor_ms, milliseconds, replays
from .talk import RandomTalk
from .tower import Tower

RESULTS = Path(__file__).parent / "results"
WINDOW = Window(1024, 20)
BLOCK, APPEND = 64, 64
BLOCKS = 19  # that a windowed call reserves: one of sinks, 17 of 1,023 + 64 tokens, and one more
BATCHES = {
    "qwen2.5-7b": (1, 32, 128, 256),
    "moshi-temporal": (1, 32, 64, 128),
    "qwen3-30b-a3b": (1, 32, 128, 256),
}
VLLM_MS = {  # 0.23.0 with CUDA graphs, the same card, context 1,044 (design, section 5)
    "qwen2.5-7b": (4.74, 5.61, 7.33, 12.02),
    "moshi-temporal": (4.64, 9.31, 13.40, 22.63),
    "qwen3-30b-a3b": (4.33, 16.37, 21.04, 26.13),
}
FRAME_S, TOKENS_IN, TOKENS_OUT = 2.0, 50, 25
CALLS = (32, 128, 256, 512)
FILLED = 21  # frames of 50 tokens that fill 1,024
AGES = (1_000, 10_000, 100_000, 1_000_000)


def steps_of(engine: Engine) -> CudaSteps:
    steps = engine._steps
    assert isinstance(steps, CudaSteps)
    return steps


def say(what: str, **found: object) -> dict[str, Any]:
    """One row of the answer, printed as it is found."""
    print(what, json.dumps(found), flush=True)
    return {"what": what, **found}


# ---- A step ----


def decode(name: str, engine: Engine, card: Card) -> list[dict[str, Any]]:
    """One token for B sessions of different ages."""
    rows = []
    for batch, vllm in zip(BATCHES[name], VLLM_MS[name], strict=True):
        talk = RandomTalk(engine, WINDOW, 1, 1)
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
                f"decode {name} B={batch}",
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
    """Qwen2.5-7B's size, windows of 8 bits."""
    name, rows = "qwen2.5-7b", []
    most = max(BATCHES[name])
    for kv in (torch.bfloat16, Narrow(most)):
        decoder = sized_decoder(name, torch.bfloat16, "cuda")
        engine = Engine(decoder, BLOCKS * most, BLOCK, APPEND, kv_dtype=kv)
        found = decode(name, engine, card)
        kind = "fp8" if isinstance(kv, Narrow) else "bf16"
        rows.append(
            say(f"narrow {kind}", pool_bytes=engine.memory.bytes, graph_ms=[row["graph_ms"] for row in found])
        )
        del engine, decoder
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def attention(card: Card) -> list[dict[str, Any]]:
    """One layer over full windows: our kernel on its pool, torch's on contiguous caches of the same keys."""
    from metronome_cli.engine.blocks import BlockPool
    from metronome_cli.engine.kernels.attention import attend, splits_for
    from metronome_cli.engine.layout import lay_out
    from metronome_cli.engine.rows import Session
    from metronome_cli.engine.sampling import Chooser, Sampling

    found = []
    for batch, queries, kv_heads in ((32, 28, 4), (128, 28, 4), (256, 28, 4), (256, 32, 4), (128, 32, 32)):
        for block in (64, 16):
            accounts = BlockPool(batch * (BLOCKS if block == 64 else 72), block)
            rows = []
            for call in range(batch):
                lane = accounts.open(WINDOW, APPEND)
                assert lane is not None
                for _ in range(47):
                    lane.extend(APPEND)
                    lane.retire()
                lane.extend(1 + call % APPEND)
                lane.retire()
                lane.extend(1)
                rows.append(
                    Row(Session(lane, "anchored", Chooser(Sampling())), [0], None, None, 0, 1, 1, True)
                )
            laid = lay_out(rows, block, 1, 1)
            tasks, table = torch.from_numpy(laid.tasks).cuda(), torch.from_numpy(laid.table).cuda()
            shape = (3, kv_heads, accounts.total + 1, block, 128)  # three layers: more than the cache holds
            keys, values = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            query = torch.randn(batch, queries, 128, dtype=torch.bfloat16, device="cuda")
            splits = splits_for(batch, kv_heads)

            layers = [LayerMemory(k, v, k, v, None) for k, v in zip(keys, values, strict=True)]

            def ours(q: Tensor = query, of: Sequence[LayerMemory] = layers, s: int = splits) -> None:
                for layer in of:
                    attend(q, q, layer, tasks, table, tokens=1, splits=s)  # noqa: B023

            moved = 2 * 2 * batch * kv_heads * 1044 * 128
            ours_ms = milliseconds(ours) / 3
            share = round(moved / ours_ms * 1e3 / card.copy, 3)
            name = f"attention B={batch} heads={queries}/{kv_heads} block={block}"
            found.append(say(name, us=round(ours_ms * 1e3, 1), of_copy=share))
        whole = (3, batch, kv_heads, 1044, 128)
        keys, values = (torch.randn(whole, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        query = query.unsqueeze(2)

        def torchs(q: Tensor = query, k: Tensor = keys, v: Tensor = values) -> None:
            for layer in range(3):
                F.scaled_dot_product_attention(q, k[layer], v[layer], enable_gqa=True)

        torch_ms = milliseconds(torchs) / 3
        share = round(moved / torch_ms * 1e3 / card.copy, 3)
        found.append(
            say(
                f"torch attention B={batch} heads={queries}/{kv_heads}",
                us=round(torch_ms * 1e3, 1),
                of_copy=share,
            )
        )
    return found


def peers() -> list[dict[str, Any]]:
    """transformers' own decode step of Qwen2.5-7B's size, eager, on a cache of 1,043 tokens."""
    from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

    size = SIZES["qwen2.5-7b"]
    config = Qwen2Config(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.intermediate,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.kv_heads,
        tie_word_embeddings=False, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen2ForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    rows = []
    for batch in (1, 32, 128):
        cache = DynamicCache()
        for layer in range(size.layers):
            shape = (batch, size.kv_heads, 1043, size.head_dim)
            some = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
            cache.update(some, some.clone(), layer)
        ids = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
        spans = []
        with torch.inference_mode():
            for _ in range(8):
                torch.cuda.synchronize()
                begun = time.perf_counter()
                model(ids, past_key_values=cache, use_cache=True).logits.argmax(-1)
                torch.cuda.synchronize()
                spans.append(time.perf_counter() - begun)
        rows.append(
            say(f"transformers eager qwen2.5-7b B={batch}", ms=round(1e3 * float(np.median(spans[2:])), 1))
        )
    return rows


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
    with device_time(engine) as spans:
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
    }


def most_calls(name: str, engine: Engine, most: int) -> list[dict[str, Any]]:
    """The largest N whose slowest frame keeps a limit, by bisection; ticks of fresh calls for each N."""
    is_moshi = name == "moshi-temporal"
    tower = None if is_moshi else Tower(engine.decoder.config.hidden)
    kind = Kind(age=3000, asked=(1, 1) if is_moshi else (TOKENS_IN, TOKENS_OUT), tower=tower)
    found = []
    for limit_s in (0.08,) if is_moshi else (0.6, FRAME_S):
        low, high, slowest = 0, most + 1, {}
        while high - low > max(1, low // 50):
            calls = (low + high) // 2
            told = hold(engine, WINDOW, calls, 5, kind)
            slowest[calls] = told["tick_s"]["p100"]
            low, high = (calls, high) if slowest[calls] <= limit_s else (low, calls)
        found.append(say(f"calls {name} within {limit_s} s", calls=low, of_at_most=most, slowest_s=slowest))
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = ("decode", "narrow", "attention", "peers", "frames", "ages", "bounds", "calls")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    card = Card.measure()
    rows = [say("card", **card.as_dict())]
    if "attention" in options.parts:
        rows += attention(card)
    if "narrow" in options.parts:
        rows += narrow(card)
    for name in options.sizes:
        gc.collect()
        torch.cuda.empty_cache()
        calls = max(BATCHES[name] if name == "moshi-temporal" else CALLS)
        begun = time.perf_counter()
        engine = Engine(sized_decoder(name, torch.bfloat16, "cuda"), BLOCKS * calls, BLOCK, APPEND)
        torch.cuda.synchronize()
        rows.append(say(f"start {name}", seconds=round(time.perf_counter() - begun, 1)))
        engine.memory.keys.normal_()
        engine.memory.values.normal_()
        if "decode" in options.parts:
            rows += decode(name, engine, card)
        if "calls" in options.parts:
            rows += most_calls(name, engine, calls)
        if name == "moshi-temporal":  # its frame is a token in and a token out: the decode step
            continue
        for part, measure in (("frames", frames), ("ages", ages), ("bounds", bounds)):
            if part in options.parts and not (part != "frames" and name != "qwen2.5-7b"):
                rows += measure(name, engine)
        del engine
    if "peers" in options.parts:
        gc.collect()
        torch.cuda.empty_cache()
        rows += peers()
    report = new_report("eval-speed", None, SystemClock(), 0)
    report.results = {"rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)


if __name__ == "__main__":
    main()
