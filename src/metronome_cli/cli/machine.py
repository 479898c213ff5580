"""What this machine is and has: facts for `metronome doctor`, each read once, none judged.

Knows:   where Linux and macOS tell of cores, disks, limits, a GPU; torch's build without torch.
Ignores: what any of it is good for (checks.py).
"""

from __future__ import annotations

import os
import re
import resource
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from ..clock import Clock
from ..memory import free_memory

BEAT_S = 0.02
_BEATS = 25
_GPU = (Path("/dev/nvidiactl"), Path("/proc/driver/nvidia/version"))


@dataclass(frozen=True, slots=True)
class Machine:
    """Sizes in bytes; None where the system does not tell."""

    cores: int  # that this process may use
    load: float  # processes that ran or wanted to, on average over the last minute
    free_memory: int | None
    cache_disk: int
    runs_disk: int
    torch: str | None  # its version; None when it is not installed
    torch_cuda: str | None  # the CUDA version that it was built for
    gpu: bool  # whether an NVIDIA driver is loaded
    open_files: int
    late_s: tuple[float, ...]  # how late this process woke, beat by beat
    env: Mapping[str, str]
    wants: tuple[str, ...]  # the package's own requirements; empty when it is not installed


def look(cache: Path, runs: Path, clock: Clock) -> Machine:
    """Read it all, in about BEAT_S x 25."""
    torch, cuda = _torch()
    return Machine(
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        load=os.getloadavg()[0],
        free_memory=free_memory(),
        cache_disk=_free_disk(cache),
        runs_disk=_free_disk(runs),
        torch=torch,
        torch_cuda=cuda,
        gpu=any(place.exists() for place in _GPU),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        late_s=_lateness(clock),
        env=os.environ,
        wants=_wants(),
    )


def _lateness(clock: Clock) -> tuple[float, ...]:
    late = []
    due = clock.now()
    for _ in range(_BEATS):
        due += BEAT_S
        clock.wait_until(due)
        late.append(clock.now() - due)
    return tuple(late)


def _free_disk(folder: Path) -> int:
    """Free bytes where `folder` is, or would be made."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _torch() -> tuple[str | None, str | None]:
    """(version, CUDA version) as torch's own file has them: importing it takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    text = (Path(spec.origin).parent / "version.py").read_text("utf-8")
    found = dict(re.findall(r"^(\w+)[^=\n]*= '([^']*)'$", text, re.MULTILINE))
    return found.get("__version__"), found.get("cuda")


def _wants() -> tuple[str, ...]:
    try:
        return tuple(metadata.requires("metronome-cli") or ())
    except metadata.PackageNotFoundError:
        return ()
