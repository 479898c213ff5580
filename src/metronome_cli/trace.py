"""Measurements of a run as they happen: one record per tick, one per session and frame.

Knows:   the two record kinds, their header, and JSON lines.
Ignores: what is concluded from them. Readers ignore fields they do not know; writers never drop one.

All times are monotonic seconds of one machine; the header ties them to wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from .errors import NOTHING, FieldError

VERSION = 1


class Header(msgspec.Struct, kw_only=True, tag_field="record", tag="header"):
    """First line of each file. `monotonic_zero` and `wall_zero` are one moment on both scales."""

    kind: str  # "trace" or "frames"
    version: int = VERSION
    monotonic_zero: float
    wall_zero: float


class TickRecord(msgspec.Struct, kw_only=True, tag_field="record", tag="tick"):
    """One beat of the engine."""

    tick: int
    due: float  # when it should have begun
    start: float  # when it began
    done: float  # when its last token was out
    skipped: int = 0  # beats left out just before this one
    sessions: int = 0  # sessions served
    stalled: int = 0  # of them, without blocks
    empty: int = 0  # of them, that were to speak and said nothing
    tokens_in: int = 0
    tokens_out: int = 0
    kv_leased: int = 0  # blocks held by sessions
    kv_reserved: int = 0  # blocks promised to windowed sessions, held or not
    kv_total: int = 0
    cap: int = 0  # most calls at a time, from here on
    failed: int = 0  # sessions that ended in it by something of their own; not among those served
    cap_reason: str = ""  # what binds it, the reason of a refusal; "": not recorded
    bounded: bool | None = None  # load only: whether all these calls keep a bounded cache; None: not told
    arm: str = ""  # which of several runs in one folder


class FrameRecord(msgspec.Struct, kw_only=True, tag_field="record", tag="frame"):
    """One frame of one session. `first` and `last` are None when it brought no token."""

    session: int
    age_s: float  # since the call was opened
    frame: int  # the session's own count, from 0
    tick: int
    due: float  # when the frame's last sample was due
    audio_end_ms: float  # audio of this call consumed so far
    prefilled: float | None = None
    first: float | None = None
    last: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    blocks: int = 0
    stalled: bool = False
    dropped: int = 0  # tokens of input lost to a stall
    speaking: bool = True  # whether the session was to speak in this frame
    heard: str = ""
    said: str = ""
    failed: str = ""  # why the session ended in this frame, if so
    lag: float = 0.0  # load only: how late the caller itself sent the frame's last sample
    arm: str = ""

    @property
    def empty(self) -> bool:
        """A due frame that brought no fresh token though the session was to speak."""
        return self.speaking and self.first is None


Record = TypeVar("Record", TickRecord, FrameRecord)
_encoder = msgspec.json.Encoder()


def write_line(file: IO[bytes], record: Header | TickRecord | FrameRecord) -> None:
    """Append one record."""
    file.write(_encoder.encode(record) + b"\n")


def read_header(path: Path) -> Header:
    """The header of a trace file. FieldError when it is no such file, or one of a later version."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except OSError as error:
        raise FieldError("trace", str(path), f"give a trace file that can be read ({error})") from None
    return header_in(line, path)


def header_in(line: bytes, path: Path) -> Header:
    """The header in the first line of the trace file `path`. Errors as of `read_header`."""
    try:
        header = msgspec.json.decode(line, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FieldError(f"{path} line 1", NOTHING, f"expected a trace header: {error}") from None
    if header.version > VERSION:
        raise FieldError(
            f"{path} version", header.version, f"read it with a later release; this one knows {VERSION}"
        )
    return header


def read_records(path: Path, kind: type[Record]) -> Iterator[Record]:
    """All records of `kind` in a file, in order; a cut last line (a killed run) is left out."""
    read_header(path)
    with path.open("rb") as file:
        yield from records_in(file, path, kind)


def records_in(lines: Iterable[bytes], path: Path, kind: type[Record]) -> Iterator[Record]:
    """The same from the lines of the file `path`, of which the first is its header."""
    decoder = msgspec.json.Decoder(kind)
    for number, line in enumerate(lines, 1):
        if number == 1 or not line.endswith(b"\n"):
            continue
        try:
            yield decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FieldError(f"{path} line {number}", line[:60], str(error)) from None


def schemas() -> dict[str, object]:
    """JSON Schema of the three records, as committed in docs/trace.schema.json."""
    return dict(msgspec.json.schema(Header | TickRecord | FrameRecord))
