"""Parts of an eval that do not depend on each other, played once each, in processes of their own.

Knows:   functions that can be pickled, what they return as JSON, and the folder that keeps it.
Ignores: what is played. A part that is there is not played again, so an interrupted eval goes on.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from metronome_cli.report import write_whole

Job = Callable[[], Any]  # a functools.partial of a function at the top of its module


def play_all(jobs: Mapping[str, Job], folder: Path, processes: int) -> dict[str, Any]:
    """What each job returned, now or in an earlier run; in the jobs' order."""
    folder.mkdir(parents=True, exist_ok=True)
    left = {name: job for name, job in jobs.items() if not (folder / f"{name}.json").exists()}
    # A fork would copy torch's threads in the middle of whatever they do.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        begun = {pool.submit(job): name for name, job in left.items()}
        for number, done in enumerate(as_completed(begun), start=1):
            write_whole(folder / f"{begun[done]}.json", json.dumps(done.result()) + "\n")
            print(f"{number}/{len(left)} {begun[done]}", flush=True)
    return {name: json.loads((folder / f"{name}.json").read_text("utf-8")) for name in jobs}
