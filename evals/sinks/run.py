"""What the first tokens are worth: perplexity of long excerpts through the rolling cache, by policy and age.

Run:  python -m evals.sinks.run --device cuda                     (one H200: 2 minutes)
      python -m evals.sinks.run --parts short --sessions 3        (about 25 minutes on 2 cores)
      python -m evals.sinks.run --parts                           (summary.md and the picture again)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.models.assets import locate
from metronome_cli.models.perplexity import SHARED_KV, Scorer
from metronome_cli.probes.stream import Nll, Stream, perplexity, places, ratio, read_stream, summary
from metronome_cli.report import Report, new_report, read_report
from metronome_cli.reporting.ages import draw_by_age
from metronome_cli.reporting.tables import Table
from metronome_cli.stats import Interval
from metronome_cli.window import Policy, Positions, Recycle, Unbounded, Window

RESULTS = Path(__file__).parent / "results"
TRAINED = 8192  # positions that the model was trained on
FULL = "full"


@dataclass(frozen=True)
class Read:
    """One policy, by the name that it has in the report."""

    name: str
    policy: Policy
    positions: Positions = "anchored"


@dataclass(frozen=True)
class Part:
    """Excerpts of one length, read under several policies; the first is what the others are held against."""

    name: str
    tokens: int
    sessions: int
    reads: tuple[Read, ...]


def windows(*bounds: tuple[int, int]) -> Iterator[Read]:
    """Windows with sinks, in both kinds of positions."""
    for window, sinks in bounds:
        for positions in ("absolute", "anchored"):
            yield Read(f"W={window} S={sinks} {positions}", Window(window, sinks), positions)


SHORT = Part(
    "4,096 tokens",
    4096,
    16,
    (
        Read(FULL, Unbounded()),
        Read("W=256 S=0", Window(256, 0)),
        Read("W=512 S=0", Window(512, 0)),
        *windows((252, 4), (508, 4)),
        Read("W=255 S=1 anchored", Window(255, 1)),
        Read("W=511 S=1 anchored", Window(511, 1)),
        Read("recycle 256", Recycle(256)),
        Read("recycle 512", Recycle(512)),
    ),
)
BEYOND = Part("16,384 tokens", 16384, 8, (Read(FULL, Unbounded()), *windows((1020, 4))))
# Without the full cache: past 16,384 tokens it has nothing to tell, and at 65,536 it takes 3 GB a session.
LONG = Part("65,536 tokens, W=1020", 65536, 4, tuple(windows((1020, 4))))
PARTS = {"short": SHORT, "beyond": BEYOND, "long": LONG}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", nargs="*", choices=PARTS, default=list(PARTS), help="the others stay as they are"
    )
    parser.add_argument("--sessions", type=int, help="fewer excerpts a part")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    parts = [PARTS[name] for name in options.parts]
    if options.sessions:
        parts = [replace(part, sessions=options.sessions) for part in parts]
    if parts:
        torch.set_default_device(options.device)
        measure(parts, options, SystemClock())
    show(read_report(options.out), options.out)


def measure(parts: Sequence[Part], options: argparse.Namespace, clock: Clock) -> None:
    """Part by part, each saved when it is finished beside those of an earlier run."""
    # A card holds the caches of all excerpts at once; on a CPU large batches bring nothing.
    shared_kv = SHARED_KV if options.device == "cpu" else 2**35
    scorer = Scorer(locate("smollm2-135m-instruct"), threads=options.threads, shared_kv=shared_kv)
    ids = scorer.encode((locate("moby-dick") / "data.txt").read_text("utf-8"))
    report = new_report("eval-sinks", None, clock, options.seed)
    report.device["computed_on"] = torch.cuda.get_device_name() if options.device != "cpu" else "cpu"
    kept = read_report(options.out).results if (options.out / "report.json").exists() else {}
    report.results = kept | {"text": "moby-dick", "text_tokens": len(ids), "parts": kept.get("parts", {})}
    for part in parts:
        starts = places(len(ids), part.sessions, part.tokens, options.seed)
        streams: dict[str, Stream] = {}
        for read in part.reads:
            begun = clock.now()
            streams[read.name] = read_stream(scorer, ids, starts, part.tokens, read.policy, read.positions)
            paid = perplexity(streams[read.name].nll_SA, options.seed)
            print(f"{part.name}, {read.name}: {paid}, {clock.now() - begun:.1f} s", flush=True)
        report.results["parts"][part.name] = {
            "starts": starts,
            "rows": summary(streams, part.reads[0].name, options.seed),
            "limits": list(limits(part, {name: s.nll_SA for name, s in streams.items()}, options.seed)),
        }
        if part.name == SHORT.name:
            report.results["afresh"] = list(afresh(scorer, ids, starts, streams, options.seed))
        report.held = all(limit["held"] for limit in _limits(report))
        report.save(options.out)


def afresh(
    scorer: Scorer, ids: Sequence[int], starts: Sequence[int], streams: Mapping[str, Stream], seed: int
) -> Iterator[dict[str, Any]]:
    """Is it the cache, or the context that is gone? Every 32nd token, foretold from the W before it alone,
    read afresh, beside what it costs each rolling cache; ratios are to the full cache over the same tokens.
    """
    for window in (256, 512):
        at = list(range(window, SHORT.tokens, 32))
        texts = [ids[start + a - window : start + a + 1] for start in starts for a in at]
        read = np.array(
            [one.nll[-1] for group in _in_groups(texts) for one in scorer.nll_of_all(group, Unbounded())]
        )
        columns = np.array(at) - 1  # column a holds the token at index a + 1
        full = streams[FULL].nll_SA[:, columns]
        paid = {f"the last {window} tokens afresh": read.reshape(len(starts), len(at))}
        paid |= {
            name: stream.nll_SA[:, columns]
            for name, stream in streams.items()
            if name.startswith((f"W={window - 4} ", f"W={window} ", f"recycle {window}"))
        }
        for name, nll in paid.items():
            yield {"name": name, "tokens": full.size, "ratio": asdict(ratio(nll, full, seed))}


def _in_groups(texts: Sequence[Sequence[int]], size: int = 128) -> Iterator[Sequence[Sequence[int]]]:
    """As many short texts at once as leave room for what a step computes."""
    return (texts[at : at + size] for at in range(0, len(texts), size))


def _limits(report: Report) -> list[dict[str, Any]]:
    return [limit for part in report.results["parts"].values() for limit in part["limits"]]


def limits(part: Part, nll: Mapping[str, Nll], seed: int) -> Iterator[dict[str, Any]]:
    """What was to be shown: an end of the interval of a ratio to the full cache, against a number."""
    base = nll[part.reads[0].name]
    if part.tokens == SHORT.tokens:
        for name in ("W=256 S=0", "W=512 S=0"):
            yield _limit(f"{name}: ratio to full", ratio(nll[name], base, seed), 1.6, least=True)
        for window, most in ((252, 1.08), (508, 1.04)):
            for positions in ("absolute", "anchored"):
                name = f"W={window} S=4 {positions}"
                yield _limit(f"{name}: ratio to full", ratio(nll[name], base, seed), most, least=False)
        return
    for read in part.reads[1:]:
        late = ratio(nll[read.name][:, TRAINED:], base[:, TRAINED:], seed)
        name = f"{read.name}, {part.tokens:,} tokens: ratio to {part.reads[0].name} past {TRAINED:,}"
        yield _limit(name, late, 1.0, least=False)


def _limit(name: str, of: Interval, limit: float, least: bool) -> dict[str, Any]:
    held = of.low >= limit if least else of.high <= limit
    sign = "at least" if least else "at most"
    return {"name": name, "limit": f"{sign} {limit:g}", "measured": asdict(of), "held": held}


def show(report: Report, folder: Path) -> None:
    """summary.md and the picture, from the report."""
    parts = report.results["parts"]
    tables = [limits_table(_limits(report))]
    tables += [afresh_table(report.results["afresh"])] if "afresh" in report.results else []
    tables += [part_table(name, part["rows"]) for name, part in parts.items()]
    tables += [ages_table(name, part["rows"]) for name, part in parts.items()]
    verdict = "held" if report.held else "a limit was missed"
    text = "\n".join([f"# evals/sinks: {verdict}\n", *(table.markdown() for table in tables)])
    (folder / "summary.md").write_text(text + "\n![by age](by-age.png)\n", "utf-8")
    draw_by_age(
        folder / "by-age.png",
        "SmolLM2-135M-Instruct on Moby-Dick, mean over excerpts, 95 % intervals",
        {name: part["rows"] for name, part in parts.items()},
    )


def limits_table(limits: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (item["name"], item["limit"], _interval(item["measured"], 3), "yes" if item["held"] else "NO")
        for item in limits
    ]
    return Table(
        "Limits (the whole interval is to keep them)", ("what", "limit", "measured", "held"), tuple(rows)
    )


def afresh_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        "The same tokens, foretold from a window's worth of text read afresh",
        ("what is read", "tokens", "perplexity over full's"),
        tuple((row["name"], f"{row['tokens']:,}", _interval(row["ratio"], 3)) for row in rows),
    )


def part_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("policy", "perplexity", "ratio to the first", "slope of log-ppl per 1k tokens", "blocks")
    return Table(
        f"{name}, {rows[0]['sessions']} excerpts",
        columns,
        tuple(
            (
                row["name"],
                _interval(row["perplexity"], 2),
                _interval(row["ratio"], 3),
                _interval(row["slope_per_1k"], 4),
                f"{row['blocks_peak']} of {row['blocks_bound']}",
            )
            for row in rows
        ),
    )


def ages_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = ("policy", *(f"{cut['from']:,}-{cut['to']:,}" for cut in rows[0]["by_age"]))
    body = [(row["name"], *(_interval(cut, 1) for cut in row["by_age"])) for row in rows]
    return Table(f"{name}, perplexity by age", columns, tuple(body))


def _interval(of: Mapping[str, float] | None, digits: int) -> str:
    return (
        "-" if of is None else f"{of['mean']:.{digits}f} ({of['low']:.{digits}f} to {of['high']:.{digits}f})"
    )


if __name__ == "__main__":
    main()
