"""Questions with accepted answers, typed or spoken: ours, a local table or folder, or a data set of the hub.

Knows:   the documented columns (docs/probe-data.md), files, recordings, a seeded draw.
Ignores: who is asked, scores.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import FieldError
from ..models.assets import locate
from ..speech import decode_clip

BUILT_IN = "builtin"
_READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_TABLES = ("questions", "metadata")  # names of a folder's table; the second is that of an audio folder
_AUDIO = ("audio", "file", "file_name")  # the first of these columns that there is
_SPLITS = ("test", "validation", "train")  # the first of these that there is
_SEPARATOR = "|"  # between answers in one string, as a CSV must have them
_FORM = "docs/probe-data.md shows the form"


@dataclass(frozen=True, slots=True)
class Question:
    """One question, the answers that count as right, and its recording (mono, 16 kHz, -1..1) if asked for."""

    id: str
    text: str
    answers: tuple[str, ...]
    audio: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class _Table:
    """Rows of a data set; `folder` is what recordings are named from, None for one of the hub."""

    where: str
    rows: Any  # datasets.Dataset
    folder: Path | None

    @property
    def columns(self) -> list[str]:
        return list(self.rows.column_names)


def read_questions(source: str, *, audio: bool, seed: int, limit: int | None = None) -> list[Question]:
    """At most `limit` questions of `source` in a seeded order, with recordings if `audio`.

    source: "builtin" (48 questions), a .json, .jsonl, .csv or .parquet file, a folder, or a hub id.
    FieldError names file, row and column of what is wrong, and the cure.
    """
    if limit is not None and limit < 1:
        raise FieldError("questions", limit, "ask for 1 or more")
    with TemporaryDirectory() as cache, _quietly():
        table = _read(source, cache)
        spoken = next((column for column in _AUDIO if column in table.columns), None)
        _check(table, spoken, audio)
        count = len(table.rows)
        drawn = Random(seed).sample(range(count), min(count, limit or count))  # noqa: S311
        questions = [
            _question(
                table.rows[place],
                f"{table.where} row {place + 1}",
                place + 1,
                table,
                spoken if audio else None,
            )
            for place in drawn
        ]
    _check_distinct(table.where, questions)
    return questions


# ---- Tables --------------------------------------------------------------------------------------


def place_of(source: str) -> Path | None:
    """The file or folder that `source` means; None for a hub id. FieldError for what is neither."""
    path = locate("questions") if source == BUILT_IN else Path(source).expanduser()
    if path.is_dir():
        tables = [path / f"{name}{suffix}" for name in _TABLES for suffix in _READERS]
        return next((table for table in tables if table.is_file()), path)
    if path.is_file():
        if path.suffix.lower() not in _READERS:
            raise FieldError("data", source, f"use a file in {', '.join(_READERS)}; {_FORM}")
        return path
    if source.count("/") != 1 or source.startswith((".", "/", "~")):
        raise FieldError("data", source, f"no such file or folder, and no hub id (org/name); {_FORM}")
    return None


def _read(source: str, cache: str) -> _Table:
    path = place_of(source)
    if path is None:
        return _Table(source, _load(source, source), None)
    if path.is_dir():
        return _Table(str(path), _load(source, str(path), cache_dir=cache), path)
    reader = _READERS[path.suffix.lower()]
    return _Table(str(path), _load(source, reader, data_files=str(path), cache_dir=cache), path.parent)


def _load(source: str, name: str, **options: str) -> Any:
    """One split, with recordings left as they are: decoding them is our own affair (it needs no FFmpeg)."""
    import datasets

    try:
        # In memory: the cache of a local table is gone once it was read, so that no edit is ever missed.
        splits = datasets.load_dataset(name, keep_in_memory=bool(options), **options)
    except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
        reason = f"{type(error).__name__}: {error.__cause__ or error}"
        cure = f"cannot be read ({reason}); {_FORM}, and a data set of the hub may be given as a folder"
        raise FieldError("data", source, cure) from error
    found = splits[next((split for split in _SPLITS if split in splits), next(iter(splits)))]
    for column, feature in found.features.items():
        if isinstance(feature, datasets.Audio):
            found = found.cast_column(column, datasets.Audio(decode=False))
    return found


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the library's bars and complaints: what is wrong is told once, by our own error."""
    import datasets

    level, bars = datasets.logging.get_verbosity(), datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


def _check(table: _Table, spoken: str | None, audio: bool) -> None:
    for column in ("question", "answers"):
        if column not in table.columns:
            cure = f"a column {column} is needed; {_FORM}"
            raise FieldError(f"{table.where}: columns", ", ".join(table.columns), cure)
    if audio and spoken is None:
        cure = f"a column audio is needed to speak the questions; {_FORM}, or type them"
        raise FieldError(f"{table.where}: columns", ", ".join(table.columns), cure)
    if len(table.rows) == 0:
        raise FieldError(table.where, "no rows", f"give at least one question; {_FORM}")


def _check_distinct(where: str, questions: Sequence[Question]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise FieldError(
                f"{where}: id", question.id, "give every question an id of its own, or leave the column out"
            )
        seen.add(question.id)


# ---- Rows ----------------------------------------------------------------------------------------


def _question(row: Mapping[str, Any], where: str, number: int, table: _Table, spoken: str | None) -> Question:
    text = row["question"]
    if not isinstance(text, str) or not text.strip():
        raise FieldError(f"{where}: question", text, "write the question as text")
    answers = _answers(row["answers"])
    if not answers:
        raise FieldError(
            f"{where}: answers", row["answers"], "give at least one accepted answer, a string or a list"
        )
    name = row.get("id")
    audio = _recording(row[spoken], f"{where}: {spoken}", table.folder) if spoken else None
    return Question(str(number if name is None else name), text.strip(), answers, audio)


def _answers(value: object) -> tuple[str, ...]:
    """Accepted answers of one cell; none when the cell is empty or holds something else."""
    values = value if isinstance(value, list) else str(value).split(_SEPARATOR) if value is not None else []
    return tuple(text for one in values if one is not None and (text := str(one).strip()))


def _recording(value: object, where: str, folder: Path | None) -> NDArray[np.float32]:
    """The samples of an audio cell: bytes inside the table, or the name of a file beside it."""
    cell: dict[str, Any] = value if isinstance(value, dict) else {"path": value}
    content, name = cell.get("bytes"), cell.get("path")
    if content is None:
        if not isinstance(name, str) or folder is None:
            raise FieldError(
                where, name, "give a recording: the name of a file beside the table, or its bytes"
            )
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise FieldError(where, name, f"no such recording beside the table ({error.strerror})") from None
    try:
        return decode_clip(str(name or "recording"), content).samples
    except FieldError as error:
        raise FieldError(where, name, error.cure) from None
