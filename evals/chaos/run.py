"""A server and what the world does to it: callers that vanish, events of rubbish.

Run:  python -m evals.chaos.run vanish --clients 2000 --seed 0      (about 5 minutes)
      python -m evals.chaos.run fuzz --events 200000 --seed 0
      python -m evals.chaos.run fuzz --seed 0 --replay 17           (one connection of such a run again)

Exit code 3 when something did not hold; the report's `faults` says what.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from metronome_cli.clock import SystemClock
from metronome_cli.profile import load_profile
from metronome_cli.report import new_report

from . import fuzz, vanish


def main() -> None:
    options = _parser().parse_args()
    profile, work = {"vanish": _vanish, "fuzz": _fuzz}[options.which](options)
    report = new_report(f"eval-chaos-{options.which}", load_profile(str(profile)), SystemClock())
    report.seed = options.seed
    report.results = asyncio.run(work)
    report.held = not report.results["faults"]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        report.save(options.out)
    print(json.dumps(report.results, indent=2))
    sys.exit(0 if report.held else 3)


def _vanish(options: argparse.Namespace) -> tuple[Path, Any]:
    return vanish.PROFILE, vanish.vanish(options.clients, options.warm_up, options.seed, options.quiet_s)


def _fuzz(options: argparse.Namespace) -> tuple[Path, Any]:
    return fuzz.PROFILE, fuzz.fuzz(options.events, options.seed, options.quiet_s, options.replay)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", choices=("vanish", "fuzz"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for report.json")
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--replay", type=int, metavar="N", help="only connection N of a fuzz run")
    parser.add_argument("--quiet-s", type=float, default=vanish.QUIET_S)
    return parser


if __name__ == "__main__":
    main()
