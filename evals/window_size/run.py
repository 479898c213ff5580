"""What a window's size costs: a frame's time and a session's memory, W from 128 to 4,096, all in one run.

Run:  python -m evals.window_size.run          (about 5 minutes on 2 cores)

Sessions of every window live in one engine and take turns, frame by frame, so a slow minute slows all alike.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch

from metronome_cli.clock import Clock, SystemClock
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.linear import products_of
from metronome_cli.engine.weights import load_decoder
from metronome_cli.models.assets import locate
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.window import Window, most_blocks

RESULTS = Path(__file__).parent / "results"
WINDOWS = (128, 256, 512, 1024, 2048, 4096)
SINKS = 18  # the laptop profile's header
HEARD = 8  # tokens a session hears in a frame, as measured in evals/beat


@dataclass
class Group:
    """The sessions of one window."""

    window: int
    sessions: list[int]
    frame_s: list[float] = field(default_factory=list)


def fill(engine: Engine, group: Group, piece: int, random: torch.Generator) -> None:
    """Append until the window has been outgrown by a quarter."""
    left = group.window + group.window // 4
    while left > 0:
        length = min(piece, left)
        ids = _ids(engine, len(group.sessions) * length, random)
        engine.step(group.sessions, [length] * len(group.sessions), ids)
        left -= length


def frame(engine: Engine, group: Group, tau: int, random: torch.Generator, clock: Clock) -> float:
    """Seconds of one frame of all its sessions: what was heard, and `tau` tokens."""
    count = len(group.sessions)
    began = clock.now()
    for token in range(tau):
        heard = HEARD if token == 0 else 0
        engine.step(
            group.sessions, [heard] * count, _ids(engine, heard * count, random), sample=[True] * count
        )
    return clock.now() - began


def _opened(number: int | None) -> int:
    assert number is not None, "the pool holds every session's bound"
    return number


def _ids(engine: Engine, count: int, random: torch.Generator) -> torch.Tensor:
    return torch.randint(0, engine.decoder.config.vocab, (count,), generator=random)


def measure(profile: Profile, options: argparse.Namespace, clock: Clock) -> list[dict[str, Any]]:
    """One row a window."""
    torch.set_num_threads(profile.run.threads)
    random = torch.Generator().manual_seed(options.seed)
    decoder = load_decoder(
        locate(profile.model.thinker), profile.model.dtype, products_of(profile.model.products)
    )
    block, piece = profile.pool.block_size, profile.beat.prefill_tokens
    bound = {window: most_blocks(Window(window, SINKS), block, piece) or 0 for window in WINDOWS}
    engine = Engine(decoder, options.sessions * sum(bound.values()), block, piece)
    groups = []
    for window in WINDOWS:
        opened = [engine.open(Window(window, SINKS)) for _ in range(options.sessions)]
        groups.append(Group(window, [_opened(number) for number in opened]))
        fill(engine, groups[-1], piece, random)
        print(f"W={window}: full", flush=True)
    for turn in range(options.frames + 2):
        for group in groups:
            took = frame(engine, group, profile.beat.tau, random, clock)
            if turn >= 2:  # the first frames of a size also allocate
                group.frame_s.append(took)
    token = engine.memory.bytes / (engine.memory.scratch + 1) / block
    return [_row(group, bound[group.window], token, profile) for group in groups]


def _row(group: Group, bound: int, token_bytes: float, profile: Profile) -> dict[str, Any]:
    held = bound * profile.pool.block_size * token_bytes
    return {
        "window": group.window,
        "frame_s": {f"p{point}": float(np.percentile(group.frame_s, point)) for point in (10, 50, 90)},
        "blocks_bound": bound,
        "kv_mib_per_session": held / 2**20,
        "sessions_per_gib": int(2**30 // held),
        "pool_share": bound / profile.pool.count,
    }


def draw_picture(rows: list[dict[str, Any]], target: Path) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    windows = [row["window"] for row in rows]
    middle = np.array([row["frame_s"]["p50"] for row in rows])
    spread = np.array([[row["frame_s"][p] for row in rows] for p in ("p10", "p90")])
    left.errorbar(windows, middle, abs(spread - middle), marker="o", capsize=3)
    left.set(xlabel="window W (tokens)", ylabel="seconds a frame", xscale="log", ylim=(0, None))
    right.plot(windows, [row["kv_mib_per_session"] for row in rows], marker="o")
    right.set(xlabel="window W (tokens)", ylabel="MiB a session", xscale="log", yscale="log")
    for axis in (left, right):
        axis.set_xticks(windows, [str(window) for window in windows])
        axis.minorticks_off()
    figure.savefig(target / "window-size.png", dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--frames", type=int, default=15, help="measured, of each window")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    profile = load_profile("laptop")
    report = new_report("eval-window-size", profile, SystemClock(), options.seed)
    rows = measure(profile, options, SystemClock())
    by_window = {row["window"]: row["frame_s"]["p50"] for row in rows}
    grown = by_window[2048] / by_window[512]
    report.results = {"sessions": options.sessions, "rows": rows, "frame_2048_over_512": grown}
    report.held = True  # nothing is asked of it
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)
    draw_picture(rows, options.out)
    for row in rows:
        print(row)
    print("a frame at W=2,048 over one at 512:", round(grown, 2))


if __name__ == "__main__":
    main()
