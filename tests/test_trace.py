"""What is written to a trace comes back the same; what a reader does not know or cannot read does no harm."""

from __future__ import annotations

import io
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.cli import docs
from metronome_cli.errors import FieldError
from metronome_cli.trace import FrameRecord, Header, TickRecord, read_header, read_records, write_line

HEADER = Header(kind="trace", monotonic_zero=10.0, wall_zero=1_700_000_000.0)
TICK = TickRecord(tick=7, due=12.0, start=12.001, done=12.5, sessions=3, kv_leased=40, kv_total=320)
FRAME = FrameRecord(session=2, age_s=4.0, frame=1, tick=7, due=12.0, audio_end_ms=4000.0, first=12.4)
SCHEMA = jsonschema.Draft202012Validator(json.loads((docs.FOLDER / "trace.schema.json").read_text("utf-8")))

seconds = st.floats(0, 1e9)
ticks = st.builds(TickRecord, due=seconds, start=seconds, done=seconds)
frames = st.builds(
    FrameRecord,
    age_s=seconds,
    due=seconds,
    audio_end_ms=seconds,
    prefilled=st.none() | seconds,
    first=st.none() | seconds,
    last=st.none() | seconds,
    lag=seconds,
)


def line(record: Header | TickRecord | FrameRecord) -> bytes:
    file = io.BytesIO()
    write_line(file, record)
    return file.getvalue()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


@given(st.lists(ticks, max_size=5), st.lists(frames, max_size=5))
def test_records_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[TickRecord], frames: list[FrameRecord]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    trace = write(folder / "trace.jsonl", line(HEADER), *map(line, ticks))
    assert list(read_records(trace, TickRecord)) == ticks
    assert read_header(trace) == HEADER
    assert list(read_records(write(folder / "f", line(HEADER), *map(line, frames)), FrameRecord)) == frames


def test_one_record_is_one_line(tmp_path: Path) -> None:
    frame = msgspec.structs.replace(FRAME, heard="two\nlines", said="é")
    assert line(frame).count(b"\n") == 1
    assert list(read_records(write(tmp_path / "f", line(HEADER), line(frame)), FrameRecord)) == [frame]


def test_a_field_of_a_later_release_is_ignored(tmp_path: Path) -> None:
    later = [json.loads(line(record)) | {"gpu_c": 61.5} for record in (HEADER, TICK)]
    path = write(tmp_path / "trace.jsonl", *(json.dumps(record).encode() + b"\n" for record in later))
    assert read_header(path) == HEADER
    assert list(read_records(path, TickRecord)) == [TICK]


def test_fields_that_an_older_release_did_not_write_get_their_defaults(tmp_path: Path) -> None:
    old = b'{"record":"tick","tick":7,"due":1.0,"start":1.0,"done":1.5}\n'
    (read,) = read_records(write(tmp_path / "trace.jsonl", line(HEADER), old), TickRecord)
    assert read == TickRecord(tick=7, due=1.0, start=1.0, done=1.5)


@pytest.mark.parametrize("cut", [1, 10, len(line(TICK)) - 1])
def test_the_cut_last_line_of_a_killed_run_is_left_out(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "trace.jsonl", line(HEADER), line(TICK), line(TICK)[:cut])
    assert list(read_records(path, TickRecord)) == [TICK]


@pytest.mark.parametrize(
    "rubbish", [b"{}\n", b"tick\n", b'{"record":"tick","tick":"seven"}\n', b'"\xff"\n', line(FRAME)]
)
def test_rubbish_inside_a_trace_is_named_by_file_and_line(tmp_path: Path, rubbish: bytes) -> None:
    path = write(tmp_path / "trace.jsonl", line(HEADER), line(TICK), rubbish, line(TICK))
    with pytest.raises(FieldError, match=r"trace\.jsonl line 3"):
        list(read_records(path, TickRecord))


@pytest.mark.parametrize("content", [b"", b"\n", b"[1, 2]\n", b"\xff\xfe\x00\n", line(TICK)])
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(FieldError, match=r"x\.jsonl line 1.*trace header"):
        read_header(write(tmp_path / "x.jsonl", content))


def test_a_missing_trace_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"nowhere\.jsonl"):
        list(read_records(tmp_path / "nowhere.jsonl", TickRecord))


def test_a_trace_of_a_later_version_is_refused_rather_than_misread(tmp_path: Path) -> None:
    later = Header(kind="trace", version=2, monotonic_zero=0, wall_zero=0)
    with pytest.raises(FieldError, match="version = 2"):
        list(read_records(write(tmp_path / "trace.jsonl", line(later), line(TICK)), TickRecord))


@pytest.mark.parametrize(
    ("speaking", "first", "empty"), [(True, None, True), (True, 12.4, False), (False, None, False)]
)
def test_a_frame_is_empty_when_it_was_to_speak_and_said_nothing(
    speaking: bool, first: float | None, empty: bool
) -> None:
    assert msgspec.structs.replace(FRAME, speaking=speaking, first=first).empty is empty


@given(ticks | frames)
def test_every_record_is_valid_under_the_committed_schema(record: TickRecord | FrameRecord) -> None:
    SCHEMA.validate(json.loads(line(record)))


@pytest.mark.parametrize("missing", ["record", "tick", "due", "done"])
def test_the_committed_schema_refuses_a_record_without_a_required_field(missing: str) -> None:
    record = json.loads(line(TICK))
    del record[missing]
    with pytest.raises(jsonschema.ValidationError):
        SCHEMA.validate(record)
