"""Rolling perplexity of a long text through the engine, block eviction and all.

Run:  python -m evals.perplexity.run            (about 15 minutes on 2 cores; --quick: 4096 tokens)
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metronome_cli.clock import SystemClock
from metronome_cli.models.assets import locate
from metronome_cli.models.perplexity import Scorer
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report
from metronome_cli.window import Policy, Positions, Unbounded, Window


@dataclass(frozen=True)
class Row:
    """One line of the table; `published` is the figure of the design (section 5)."""

    name: str
    policy: Policy
    positions: Positions
    tokens: int
    last: int  # perplexity over so many last tokens
    published: float


SHORT = [
    Row("full", Unbounded(), "anchored", 4096, 4095, 43.66),
    Row("W=508 S=4 absolute", Window(508, 4), "absolute", 4096, 4095, 44.77),
    Row("W=508 S=4 anchored", Window(508, 4), "anchored", 4096, 4095, 44.52),
    Row("W=512 S=0", Window(512, 0), "anchored", 4096, 4095, 75.02),
    Row("W=252 S=4 absolute", Window(252, 4), "absolute", 4096, 4095, 46.68),
    Row("W=252 S=4 anchored", Window(252, 4), "anchored", 4096, 4095, 46.39),
    Row("W=256 S=0", Window(256, 0), "anchored", 4096, 4095, 87.6),
]
LONG = [
    Row("full, past the trained 8192", Unbounded(), "anchored", 12288, 2048, 48.83),
    Row("W=1020 S=4 absolute, past 8192", Window(1020, 4), "absolute", 12288, 2048, 29.50),
    Row("W=1020 S=4 anchored, past 8192", Window(1020, 4), "anchored", 12288, 2048, 28.70),
]


def measure(row: Row, scorer: Scorer, ids: list[int]) -> dict[str, Any]:
    """Teacher-forced perplexity, and the most blocks that were held; fails when the bound is passed."""
    scored = scorer.nll(ids[: row.tokens], row.policy, row.positions)
    assert scored.blocks_peak <= scored.blocks_bound, f"{row.name}: {scored.blocks_peak} blocks held"
    perplexity = float(np.exp(scored.nll[-row.last :].mean()))
    return {
        "row": row.name,
        "perplexity": round(perplexity, 3),
        "published": row.published,
        "off_percent": round(100 * (perplexity / row.published - 1), 2),
        "blocks_peak": scored.blocks_peak,
        "blocks_bound": scored.blocks_bound,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="4096 tokens only")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    scorer = Scorer(locate("smollm2-135m-instruct"), threads=options.threads)
    ids = scorer.encode((locate("moby-dick") / "data.txt").read_text("utf-8")[:120_000])
    report = new_report("eval-perplexity", load_profile("laptop"), SystemClock())
    rows = []
    for row in SHORT if options.quick else SHORT + LONG:
        rows.append(measure(row, scorer, ids))
        print(rows[-1], flush=True)
    report.results = {"text": "moby-dick, from its first character", "rows": rows}
    report.held = all(abs(row["off_percent"]) <= 1 for row in rows)
    folder_out = Path(__file__).parent / "results"
    folder_out.mkdir(exist_ok=True)
    report.save(folder_out)


if __name__ == "__main__":
    main()
