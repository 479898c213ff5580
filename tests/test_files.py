"""What may be read as a file, and what would be waited for in vain."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from metronome_cli.errors import FieldError
from metronome_cli.files import read_whole


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    assert read_whole(tmp_path / "a", "trace") == b"x" * 3_000_000
    (tmp_path / "empty").touch()
    assert read_whole(tmp_path / "empty", "trace") == b""


def test_a_pipe_is_read_until_its_writer_closes_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    # Without a reader the writer could not open it.
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(tmp_path / "pipe", os.O_WRONLY)

    def write() -> None:
        for _ in range(40):
            os.write(writer, b"y" * 50_000)  # more than a pipe holds
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    assert read_whole(tmp_path / "pipe", "trace") == b"y" * 2_000_000
    thread.join()
    os.close(reader)


def test_a_pipe_without_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FieldError, match=r"trace = .*pipe.*start what writes to it first"):
        read_whole(tmp_path / "pipe", "trace")


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_what_is_neither_a_file_nor_a_pipe_is_refused(path: str) -> None:
    with pytest.raises(FieldError, match=f"cost = '{path}': give a regular file or a pipe"):
        read_whole(Path(path), "cost")


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"trace = .*give a file that can be read .*Is a directory"):
        read_whole(tmp_path, "trace")
    with pytest.raises(FieldError, match=r"trace = .*nothing.*give a file that can be read"):
        read_whole(tmp_path / "nothing", "trace")


def test_more_than_the_bound_is_refused_before_it_is_in_memory(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**40)  # a hole
    with pytest.raises(FieldError, match="more than 4 MiB: give a part of it"):
        read_whole(tmp_path / "huge", "trace", 4 * 2**20)
