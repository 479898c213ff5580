"""Do our logits equal transformers', and the rolling cache a masked full history?

Run:  python -m evals.parity.run                (about 2 minutes on 2 cores; from the top of a checkout)
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from metronome_cli.clock import SystemClock
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.models.assets import locate
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.window import Policy, Positions, Unbounded, Window, sees
from tests.engine.conftest import FAMILIES, save_tiny
from tests.engine.reference import Reference

CASES = [(5, 9, 4), (1, 1, 4), (7, 3, 4), (0, 8, 4), (4, 16, 16)]  # S, W, block size
PIECES = (7, 32, 1)
POSITIONS: tuple[Positions, ...] = ("absolute", "anchored")


def through_the_engine(
    folder: Path, ids: torch.Tensor, policy: Policy, positions: Positions = "anchored", block_size: int = 16
) -> torch.Tensor:
    """Logits of one session, appended in pieces of 7, 32 and 1 in turn; free blocks hold NaN."""

    def poison(freed: Sequence[int]) -> None:
        engine.memory.fill(freed, float("nan"))

    blocks = len(ids) // block_size + 40
    engine = Engine(load_decoder(folder), blocks, block_size, max(PIECES), on_release=poison)
    poison(range(blocks))
    session = engine.open(policy, positions)
    assert session is not None
    hidden: list[torch.Tensor] = []
    at = 0
    while at < len(ids):
        piece = ids[at : at + PIECES[len(hidden) % len(PIECES)]]
        hidden.append(engine.step([session], [len(piece)], piece).hidden)
        at += len(piece)
    return engine.decoder.logits(torch.cat(hidden))


def real_weights() -> dict[str, Any]:
    """SmolLM2 on real text: the largest difference at 512 tokens, and how it grows with position."""
    folder = locate("smollm2-135m-instruct")
    text = (locate("moby-dick") / "data.txt").read_text("utf-8")
    ids = torch.tensor(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text[:9000]).ids[:2048])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        difference = (
            (through_the_engine(folder, ids, Unbounded()) - model(ids[None]).logits[0]).abs().amax(-1)
        )
    return {f"first_{n}": float(difference[:n].max()) for n in (128, 512, 1024, len(ids))}


def stand(sinks: int, last: int, t: int, p: int) -> int:
    """Where the token at index `t` stands when it looks at `p`: at `last` at most for a sink."""
    return min(t, last) if p < sinks else t


def tiny_family(family: str, folder: Path) -> dict[str, Any]:
    """Full attention against transformers; each window against the masked full history, in float64."""
    tiny = save_tiny(folder, family)
    ids = torch.randint(0, 97, (200,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        full = (through_the_engine(folder, ids, Unbounded()) - tiny.model(ids[None]).logits[0]).abs().max()
    found: dict[str, Any] = {"transformers": float(full)}
    reference = Reference(tiny.model)
    for sinks, window, block_size in CASES:
        policy = Window(window, sinks)
        part = ids[: 3 * (sinks + window) + 5]
        for positions in POSITIONS:
            last = sinks + window - 1 if positions == "anchored" else len(part)
            want = reference.masked_logits(part.tolist(), partial(sees, policy), partial(stand, sinks, last))
            got = through_the_engine(folder, part, policy, positions, block_size)
            found[f"S={sinks} W={window} block={block_size} {positions}"] = float((got - want).abs().max())
    return found


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    report = new_report("eval-parity", load_profile("laptop"), SystemClock())
    with tempfile.TemporaryDirectory() as folder:
        report.results = {family: tiny_family(family, Path(folder) / family) for family in FAMILIES}
    report.results["smollm2-135m-instruct"] = real = real_weights()
    tiny = [value for family in FAMILIES for value in report.results[family].values()]
    report.held = max(*tiny, real["first_512"]) < 1e-3
    print(f"largest difference: tiny {max(tiny):.1e}; real weights {real}; held: {report.held}")
    folder_out = Path(__file__).parent / "results"
    folder_out.mkdir(exist_ok=True)
    report.save(folder_out)


if __name__ == "__main__":
    main()
