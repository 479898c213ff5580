"""Free memory, as the system and a container's limit tell of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from metronome_cli import memory


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the system's files hold; a file that is not there cannot be read."""
    held: dict[str, str] = {}

    def read(path: Path, *_: object) -> str:
        if str(path) not in held:
            raise FileNotFoundError(path)
        return held[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    return held


def test_a_containers_limit_counts_when_it_is_tighter(files: dict[str, str]) -> None:
    files["/proc/meminfo"] = "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n"
    assert memory.free_memory() == 8000 * 1024
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    files["/sys/fs/cgroup/memory.current"] = "1024\n"
    assert memory.free_memory() == 8000 * 1024
    files["/sys/fs/cgroup/memory.max"] = "5120\n"
    assert memory.free_memory() == 4096


def test_where_nobody_tells_nothing_is_known(files: dict[str, str]) -> None:
    assert memory.free_memory() is None
