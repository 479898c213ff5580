"""Writes a run's trace.jsonl and frames.jsonl while it goes on.

Knows:   where the two files lie and when they are flushed.
Ignores: what is in a record.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from ..clock import Clock
from ..errors import FieldError
from ..trace import FrameRecord, Header, TickRecord, write_line

_CURE = "leave the folder where it is, with room on its disk, until the run is over"

_log = logging.getLogger(__name__)


class Recorder:
    """Both files of a run folder; without a folder nothing is written. Close it when the run ends.

    `failure` says why nothing is written any more, where that is not as it was meant.
    """

    def __init__(self, folder: Path | None, clock: Clock, failure: str = "") -> None:
        self.failure = failure
        self._folder = folder
        self._files: tuple[IO[bytes], IO[bytes]] | None = None
        if folder is not None:
            zero, wall = clock.now(), clock.wall()
            self._files = (
                _begin(folder / "trace.jsonl", Header(kind="trace", monotonic_zero=zero, wall_zero=wall)),
                _begin(folder / "frames.jsonl", Header(kind="frames", monotonic_zero=zero, wall_zero=wall)),
            )

    def tick(self, tick: TickRecord, frames: Sequence[FrameRecord]) -> None:
        """Append one tick and its frames, and flush: a killed process loses at most its last line."""
        if self._files is None:
            return
        trace_file, frames_file = self._files
        try:
            for frame in frames:
                write_line(frames_file, frame)
            write_line(trace_file, tick)
            frames_file.flush()
            trace_file.flush()
            if not os.fstat(trace_file.fileno()).st_nlink:
                raise FileNotFoundError("the run folder was removed")
        except OSError as error:  # a full disk must not end the calls
            self.failure = f"recording in {self._folder} stopped: {error.strerror or error}; {_CURE}"
            _log.error("%s", self.failure)
            self.close()

    def close(self) -> None:
        """Close both files; what was recorded is in them."""
        for file in self._files or ():
            with suppress(OSError):  # what a full disk did not take was told of
                file.close()
        self._files = None


def _begin(path: Path, header: Header) -> IO[bytes]:
    try:
        file = path.open("wb")
        write_line(file, header)
        file.flush()
    except OSError as error:
        raise FieldError("out", str(path), f"choose a folder that can be written ({error})") from None
    return file
