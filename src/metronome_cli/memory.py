"""How much memory a program may still take, and sizes as people read them.

Knows:   where Linux tells of free memory, and of a container's limit.
Ignores: what it is wanted for.
"""

from __future__ import annotations

import re
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that programs can still take, the limit of a container counted; None where nobody tells."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    free = int(found[1]) * 1024 if found else None
    try:
        limit, used = (int((_GROUP / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    left = limit - used + _kept_files()
    return left if free is None else min(free, left)


def in_bytes(size: float) -> str:
    """A size as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _kept_files() -> int:
    """Bytes of files that the container's system keeps at hand, and lets go of for whoever wants memory."""
    try:
        text = (_GROUP / "memory.stat").read_text()
    except OSError:
        return 0
    return sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE)))
