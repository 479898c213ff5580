"""One call that does not end: block count, step time and limits over 100,000 real and 1,000,000 tiny tokens.

Run:  python -m evals.longcall.run              (about 15 minutes on 2 quiet cores)
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.engine.decoder import Decoder
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.models.assets import locate
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.stats import theil_sen
from metronome_cli.window import Window, most_blocks

PIECE, BLOCK, BINS = 32, 16, 400
POLICY = Window(508, 4)


def long_call(decoder: Decoder, ids: torch.Tensor, tokens: int, clock: Clock, seed: int) -> dict[str, Any]:
    """Append `tokens` (the text over and over) in seeded pieces of 1 to PIECE; time the full-length steps."""
    bound = most_blocks(POLICY, BLOCK, PIECE) or 0
    engine = Engine(decoder, bound, BLOCK, PIECE)
    session = engine.open(POLICY)
    assert session is not None
    draw = random.Random(seed)
    fed, held, ages, times = 0, set(), [], []
    while fed < tokens:
        length = PIECE if draw.random() < 0.9 else draw.randint(1, PIECE - 1)
        piece = ids[torch.arange(fed, fed + length) % len(ids)]
        start = clock.now()
        output = engine.step([session], [length], piece)
        if length == PIECE:
            times.append(clock.now() - start)
            ages.append(fed)
        assert not output.stalled[0], f"stalled at {fed}"
        fed += length
        if fed > 4 * POLICY.window:
            held.add(engine.held(session))
        if len(times) % 500 == 0:
            print(f"  {fed} tokens, {held} blocks", flush=True)
    assert output.hidden.isfinite().all()
    return summary(fed, held, bound, ages, times)


def summary(fed: int, held: set[int], bound: int, ages: list[int], times: list[float]) -> dict[str, Any]:
    """Slopes over medians of equal bins: single steps on a shared machine are too noisy for a 1 % claim."""
    size = max(1, len(times) // BINS)
    middle = statistics.median(times)
    binned = [
        (ages[i + size // 2], statistics.median(times[i : i + size]))
        for i in range(0, len(times) - size, size)
    ]
    slope = theil_sen([age for age, _ in binned], [time for _, time in binned])
    assert slope is not None
    percent = {
        name: round(getattr(slope, name) * 1e5 / middle * 100, 3) for name in ("estimate", "low", "high")
    }
    return {
        "tokens": fed,
        "blocks_bound": bound,
        "blocks_seen_after_warm_up": sorted(held),
        "step_ms_median": round(middle * 1000, 3),
        "slope_percent_per_100k_tokens": percent,
    }


def tiny_decoder() -> Decoder:
    """Two random layers: what matters here is the engine, for a very long time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, initializer_range=0.3,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(config).save_pretrained(folder)
        return load_decoder(Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", type=int, default=100_000, help="tokens on SmolLM2's weights")
    parser.add_argument("--tiny", type=int, default=1_000_000, help="tokens on the tiny random model")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = SystemClock()
    report = new_report("eval-longcall", load_profile("laptop"), clock)
    if options.tiny:
        torch.set_num_threads(1)  # the tiny model's products are too small to share
        ids = torch.randint(0, 97, (10_000,), generator=torch.Generator().manual_seed(0))
        report.results["tiny"] = long_call(tiny_decoder(), ids, options.tiny, clock, report.seed)
        print(report.results, flush=True)
        torch.set_num_threads(options.threads)
    if options.real:
        folder = locate("smollm2-135m-instruct")
        text = (locate("moby-dick") / "data.txt").read_text("utf-8")
        ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)
        report.results["real"] = long_call(load_decoder(folder), ids, options.real, clock, report.seed)
        print(report.results["real"], flush=True)
    report.held = all(
        len(part["blocks_seen_after_warm_up"]) <= 2 and part["slope_percent_per_100k_tokens"]["estimate"] < 1
        for part in report.results.values()
    )
    folder_out = Path(__file__).parent / "results"
    folder_out.mkdir(exist_ok=True)
    report.save(folder_out)


if __name__ == "__main__":
    main()
