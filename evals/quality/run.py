"""The paper's quality table on our model: turn-based and free-running by age, over windows and sinks.

Run:  python -m evals.quality.run --device cuda --processes 9     (one H200)
      python -m evals.quality.run --seeds 0 --sessions 2          (2 cores: an hour or so)
      python -m evals.quality.run --conclude                      (report and picture from played cells)

Cells are kept in --cells as they end; the command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import torch

from metronome_cli.clock import SystemClock
from metronome_cli.probes.cells import Plan
from metronome_cli.probes.grid import PLAYED, Cell, Grid, Sinks, side_by_side
from metronome_cli.probes.quality import Material, Probe
from metronome_cli.probes.verdict import conclude, in_words, refusal
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report, write_whole
from metronome_cli.reporting.summary import redraw

_probe: Probe  # of this process
RESULTS = Path(__file__).parent / "results"
WINDOWS: Sequence[int] = (256, 512, 1024)
SINKS: Sequence[Sinks] = (0, 4, "header", 64)
SEGMENT_FRAMES = 7  # of 2 s: a question, and time to answer it
FREE_FRAMES = 240  # 8 minutes


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--sessions", type=int, default=12, help="calls of a bound and seed")
    parser.add_argument("--questions", type=int, default=20, help="of a turn-based call")
    parser.add_argument("--free-frames", type=int, default=FREE_FRAMES)
    parser.add_argument("--side", type=int, default=16, help="bounds that are played side by side")
    parser.add_argument("--stream-tokens", type=int, default=8192)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--cells", type=Path, default=Path("runs/eval-quality"))
    parser.add_argument("--conclude", action="store_true", help="play nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for folder in (options.cells, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    grid = Grid(WINDOWS, SINKS, kinds=("turn", "free", "stream"), seeds=options.seeds)
    if not options.conclude:
        play(grid, options)
    write(grid, options)


def play(grid: Grid, options: argparse.Namespace) -> None:
    """Every group of cells in a process of its own; the longest first, so that none is waited for alone."""
    left = [cell for cell in grid.cells() if not _file(options.cells, cell).exists()]
    groups = sorted(side_by_side(left, options.side), key=len, reverse=True)
    # CUDA does not survive a fork.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, spawn, _set_up, (options,)) as pool:
        begun = [pool.submit(_play, group, options.cells) for group in groups]
        for number, done in enumerate(as_completed(begun), start=1):
            print(f"{number}/{len(groups)} {done.result()}", flush=True)


def _set_up(options: argparse.Namespace) -> None:
    """Once in each process: a probe keeps its weights and texts."""
    global _probe  # noqa: PLW0603  # a pool's initialiser has no other way to hand anything on
    torch.set_default_device(options.device)
    profile = load_profile("laptop", {"run.threads": options.threads, "run.device": options.device})
    plan = Plan(
        sessions=options.sessions,
        per_call=options.questions,
        segments=options.free_frames // SEGMENT_FRAMES - 1,
        segment_frames=SEGMENT_FRAMES,
    )
    material = Material(stream_tokens=options.stream_tokens, stream_sessions=4)
    _probe = Probe(profile, plan, material, WINDOWS, SystemClock())


def _play(group: Sequence[Cell], folder: Path) -> str:
    found = _probe.run(group, lambda share: None)
    for cell, one in zip(group, found, strict=True):
        write_whole(_file(folder, cell), json.dumps(one) + "\n")
    took = sum(one["wall_s"] for one in found)
    return f"{group[0].name}, {len(group)} side by side: {took:.0f} s"


def write(grid: Grid, options: argparse.Namespace) -> None:
    """report.json, summary.md and the picture. Held when every control answered enough to lose."""
    played = {
        cell: json.loads(file.read_text("utf-8"))
        for cell in grid.cells()
        if (file := _file(options.cells, cell)).exists()
    }
    profile = load_profile("laptop")
    report = new_report("probe-quality", profile, SystemClock(), options.seeds[0])
    rows = conclude(grid.bounds, played, profile, options.seeds[0])
    controls = [cell for cell in played if cell.bound == grid.bounds[0] and cell.kind in PLAYED]
    report.notes = [why for cell in controls if (why := refusal(cell.kind, played[cell]))]
    report.held = not report.notes and len(played) == len(grid.cells())
    report.results = {
        "asked": {"windows": WINDOWS, "sinks": SINKS, "seeds": options.seeds},
        "cells": f"{len(played)} of {len(grid.cells())}",
        "rows": rows,
        "verdict": in_words(rows, profile),
    }
    report.save(options.out)
    redraw(options.out)
    print(in_words(rows, profile))


def _file(folder: Path, cell: Cell) -> Path:
    return folder / f"{cell.slug}.json"


if __name__ == "__main__":
    main()
