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


@pytest.mark.parametrize(
    ("inner", "limits", "left"),
    [
        ("0::/a.slice/b.service\n", {"a.slice/b.service": 5000}, 4000),
        ("0::/a.slice/b.service\n", {"a.slice": 3000, "a.slice/b.service": 5000}, 2000),
        ("0::/a.slice/b.service\n", {"": 2500, "a.slice": 3000}, 1500),
        ("0::/a.slice\n", {"a.slice": 500}, 0),  # more is in use than was allowed later
        ("0::/\n", {"": 5000}, 4000),
        ("4:memory:/a.slice\n", {"a.slice": 5000}, 8000 * 1024),
    ],
)
def test_the_tightest_limit_of_all_groups_around_a_service_counts(
    files: dict[str, str], inner: str, limits: dict[str, int], left: int
) -> None:
    files["/proc/meminfo"] = "MemAvailable:    8000 kB\n"
    files["/proc/self/cgroup"] = inner
    for group, limit in limits.items():
        folder = Path("/sys/fs/cgroup") / group
        files[str(folder / "memory.max")], files[str(folder / "memory.current")] = f"{limit}\n", "1000\n"
    assert memory.free_memory() == left


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
