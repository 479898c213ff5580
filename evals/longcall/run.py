"""One call that does not end: block count, step time and limits over 100,000 real and 1,000,000 tiny tokens.

Run:  python -m evals.longcall.run tiny         (about 3 minutes on 2 quiet cores)
      python -m evals.longcall.run real         (about 15)
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

PIECE, BLOCK, BINS = 32, 16, 100
POLICY = Window(508, 4)


class Timed:
    """Sessions of one engine whose steps are timed, all fed the same endless text."""

    def __init__(self, decoder: Decoder, ids: torch.Tensor, clock: Clock) -> None:
        self.bound = most_blocks(POLICY, BLOCK, PIECE) or 0
        self.engine = Engine(decoder, 2 * self.bound, BLOCK, PIECE)
        self._ids = ids
        self._clock = clock
        self._young: int | None = None
        self._young_age = 0

    def open(self) -> int:
        session = self.engine.open(POLICY)
        assert session is not None
        return session

    def step(self, session: int, at: int, length: int) -> float:
        """Seconds that `length` tokens of the text from `at` on took."""
        piece = self._ids[torch.arange(at, at + length) % len(self._ids)]
        start = self._clock.now()
        output = self.engine.step([session], [length], piece)
        took = self._clock.now() - start
        assert not output.stalled[0]
        assert output.hidden.isfinite().all()
        return took

    def young_step(self, at: int) -> float:
        """The same piece in a session whose window is full and whose age stays small."""
        if self._young is None or self._young_age > 8 * POLICY.window:
            if self._young is not None:
                self.engine.close(self._young)
            self._young, self._young_age = self.open(), 0
            while self._young_age < POLICY.window + POLICY.sinks:
                self.step(self._young, self._young_age, PIECE)
                self._young_age += PIECE
        self._young_age += PIECE
        return self.step(self._young, at, PIECE)


def long_call(decoder: Decoder, ids: torch.Tensor, tokens: int, clock: Clock, seed: int) -> dict[str, Any]:
    """Append `tokens` in seeded pieces; every fourth full piece is timed beside a young session."""
    timed = Timed(decoder, ids, clock)
    session = timed.open()
    draw = random.Random(seed)
    fed, held, ages, times, ratios = 0, set(), [], [], []
    while fed < tokens:
        length = PIECE if draw.random() < 0.9 else draw.randint(1, PIECE - 1)
        took = timed.step(session, fed, length)
        if length == PIECE and fed > 4 * POLICY.window and draw.random() < 0.25:
            ages.append(fed)
            times.append(took)
            ratios.append(took / timed.young_step(fed))
        fed += length
        if fed > 4 * POLICY.window:
            held.add(timed.engine.held(session))
        if fed % 50_000 < length:
            print(f"  {fed} tokens, {sorted(held)} blocks", flush=True)
    return {"tokens": fed, "blocks_bound": timed.bound, "blocks_seen": sorted(held)} | slopes(
        ages, times, ratios
    )


def slopes(ages: list[int], times: list[float], ratios: list[float]) -> dict[str, Any]:
    """Theil-Sen over medians of BINS bins. The ratio to a young session tells age from a machine's moods."""
    size = max(1, len(ages) // BINS)
    starts = range(0, len(ages) - size + 1, size)
    x = [ages[i + size // 2] for i in starts]
    found: dict[str, Any] = {
        "step_ms_median": round(statistics.median(times) * 1000, 3),
        "old_to_young_median": round(statistics.median(ratios), 4),
    }
    for name, values in (("ratio", ratios), ("raw", times)):
        slope = theil_sen(x, [statistics.median(values[i : i + size]) for i in starts])
        assert slope is not None
        scale = 1e5 / statistics.median(values) * 100
        found[f"slope_percent_per_100k_{name}"] = {
            end: round(getattr(slope, end) * scale, 3) for end in ("estimate", "low", "high")
        }
    return found


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
    parser.add_argument("which", choices=("tiny", "real"))
    parser.add_argument("--tokens", type=int, help="default: 1,000,000 tiny, 100,000 real")
    parser.add_argument(
        "--threads", type=int, default=2, help="real only; tiny products are too small to share"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads if options.which == "real" else 1)
    clock = SystemClock()
    report = new_report("eval-longcall", load_profile("laptop"), clock)
    if options.which == "tiny":
        decoder, ids = (
            tiny_decoder(),
            torch.randint(0, 97, (10_000,), generator=torch.Generator().manual_seed(0)),
        )
    else:
        folder = locate("smollm2-135m-instruct")
        text = (locate("moby-dick") / "data.txt").read_text("utf-8")
        ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids)
        decoder = load_decoder(folder)
    tokens = options.tokens or {"tiny": 1_000_000, "real": 100_000}[options.which]
    report.results = long_call(decoder, ids, tokens, clock, report.seed)
    print(report.results, flush=True)
    slope = report.results["slope_percent_per_100k_ratio"]
    report.held = len(report.results["blocks_seen"]) <= 2 and slope["estimate"] < 1
    folder_out = Path(__file__).parent / "results" / options.which
    folder_out.mkdir(parents=True, exist_ok=True)
    report.save(folder_out)


if __name__ == "__main__":
    main()
