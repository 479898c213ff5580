"""How much memory a program may still take, and sizes as people read them.

Knows:   where Linux tells of free memory, and of the limits of a container or a service.
Ignores: what it is wanted for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_GROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes that can still be taken, limits of a container or a service counted; None where nobody tells."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    free = [int(found[1]) * 1024] if found else []
    limits = (left for group in _groups() if (left := _left(group)) is not None)
    return min((*free, *limits), default=None)


def in_bytes(size: float) -> str:
    """A size as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _groups() -> Iterator[Path]:
    """The control group of this process and all that hold it; a container's own looks like the root."""
    yield _GROUP
    try:
        found = re.search(r"^0::/(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
    except OSError:
        return
    inner = _GROUP
    for part in Path(found[1] if found else "").parts:
        inner /= part
        yield inner


def _left(group: Path) -> int | None:
    """Bytes that a group may still take; None where it has no limit."""
    try:
        limit, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(limit - used + _kept_files(group), 0)


def _kept_files(group: Path) -> int:
    """Bytes of files that the system keeps at hand for a group, and lets go of for whoever wants memory."""
    try:
        text = (group / "memory.stat").read_text()
    except OSError:
        return 0
    return sum(map(int, re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE)))
