from __future__ import annotations

import logging
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metronome_cli import trace
from metronome_cli.clock import VirtualClock
from metronome_cli.errors import FieldError
from metronome_cli.runtime.recorder import Recorder


def tick(number: int) -> trace.TickRecord:
    return trace.TickRecord(tick=number, due=number, start=number, done=number + 0.5)


def frame(number: int) -> trace.FrameRecord:
    return trace.FrameRecord(session=1, age_s=0, frame=number, tick=number, due=number, audio_end_ms=0)


def test_every_tick_is_on_disk_when_the_next_one_begins(tmp_path: Path) -> None:
    """Nothing is closed here: a killed process closes nothing either."""
    recorder = Recorder(tmp_path, VirtualClock(7.0))
    for number in range(3):
        recorder.tick(tick(number), [frame(number)])
        ticks = list(trace.read_records(tmp_path / "trace.jsonl", trace.TickRecord))
        assert [record.tick for record in ticks] == list(range(number + 1))
        frames = list(trace.read_records(tmp_path / "frames.jsonl", trace.FrameRecord))
        assert frames == [frame(n) for n in range(number + 1)]
        assert recorder.failure == ""
    header = trace.read_header(tmp_path / "frames.jsonl")
    assert (header.kind, header.monotonic_zero, header.wall_zero) == ("frames", 7.0, 7.0)


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(None, VirtualClock())
    recorder.tick(tick(0), [])
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"out = .*choose a folder that can be written"):
        Recorder(tmp_path / "nowhere", VirtualClock())


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file may grow past `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path, VirtualClock())
    with full_disk(1000), caplog.at_level(logging.ERROR):
        for number in range(50):
            recorder.tick(tick(number), [frame(number)])
        recorder.close()
    assert caplog.messages == [recorder.failure]
    assert f"recording in {tmp_path} stopped: File too large; leave the folder" in recorder.failure
    assert list(trace.read_records(tmp_path / "trace.jsonl", trace.TickRecord))


def test_a_folder_that_is_removed_under_it_is_told_once_and_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    recorder = Recorder(folder, VirtualClock())
    recorder.tick(tick(0), [frame(0)])
    shutil.rmtree(folder)
    with caplog.at_level(logging.ERROR):
        for number in range(1, 4):
            recorder.tick(tick(number), [frame(number)])
    recorder.close()
    assert caplog.messages == [recorder.failure]
    assert f"recording in {folder} stopped: the run folder was removed; leave the folder" in recorder.failure
    assert not folder.exists()
