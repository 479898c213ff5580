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


def test_files_that_a_container_keeps_at_hand_are_free_memory(files: dict[str, str]) -> None:
    files["/proc/meminfo"] = "MemAvailable:    8000 kB\n"
    files["/sys/fs/cgroup/memory.max"], files["/sys/fs/cgroup/memory.current"] = "5120\n", "5000\n"
    files["/sys/fs/cgroup/memory.stat"] = (
        "anon 1000\nfile 4000\ninactive_file 2500\nactive_file 500\nslab 9\n"
    )
    assert memory.free_memory() == 5120 - 5000 + 3000


def test_sizes_are_told_in_units_of_1024() -> None:
    sizes = {
        0: "0 B",
        1023: "1023 B",
        1536: "1.5 KiB",
        16_908_288: "16.12 MiB",
        2**30: "1 GiB",
        2**50: "1024 TiB",
    }
    assert {size: memory.in_bytes(size) for size in sizes} == sizes


def test_where_nobody_tells_nothing_is_known(files: dict[str, str]) -> None:
    assert memory.free_memory() is None
