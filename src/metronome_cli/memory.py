"""How much memory a program may still take.

Knows:   where Linux tells of free memory, and of a container's limit.
Ignores: what it is wanted for.
"""

from __future__ import annotations

import re
from pathlib import Path


def free_memory() -> int | None:
    """Bytes that programs can still take, the limit of a container counted; None where nobody tells."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    free = int(found[1]) * 1024 if found else None
    group = Path("/sys/fs/cgroup")
    try:
        left = int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())
    except (OSError, ValueError):  # no such group, or "max": no limit
        return free
    return left if free is None else min(free, left)
