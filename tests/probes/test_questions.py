"""Questions come as documented, from every kind of source; what is wrong is named by row and column."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import soundfile

from metronome_cli.errors import FieldError
from metronome_cli.probes.questions import Question, read_questions

PAGE = Path(__file__).parents[2] / "docs" / "probe-data.md"
ROW = {"question": "What color is the sky?", "answers": ["blue"]}


def examples() -> dict[str, str]:
    """The documented examples, by language."""
    return dict(re.findall(r"```(json|csv)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))


def tone(path: Path, rate: int = 16_000, seconds: float = 0.5) -> Path:
    soundfile.write(path, 0.1 * np.sin(np.arange(round(rate * seconds)) / 20), rate)
    return path


def write(path: Path, rows: Sequence[Any]) -> str:
    path.write_text(json.dumps(rows), "utf-8")
    return str(path)


def by_id(questions: Sequence[Question]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {question.id: (question.text, question.answers) for question in questions}


def test_the_built_in_questions_are_48_and_spoken_when_asked() -> None:
    typed, spoken = (read_questions("builtin", audio=audio, seed=0) for audio in (False, True))
    assert len(typed) == len(spoken) == 48
    assert by_id(typed) == by_id(spoken)
    assert by_id(typed)["capital-of-france"] == ("What is the capital of France?", ("Paris",))
    assert all(question.audio is None for question in typed)
    assert all(q.audio is not None and 16_000 <= len(q.audio) <= 80_000 for q in spoken)


def test_a_draw_is_seeded_and_a_smaller_one_begins_the_same() -> None:
    first = [q.id for q in read_questions("builtin", audio=False, seed=1, limit=10)]
    assert first == [q.id for q in read_questions("builtin", audio=False, seed=1, limit=10)]
    assert first != [q.id for q in read_questions("builtin", audio=False, seed=2, limit=10)]
    assert len(set(first)) == 10


def test_the_documented_folder_is_read_with_its_recordings(tmp_path: Path) -> None:
    (tmp_path / "questions.jsonl").write_text(examples()["json"], "utf-8")
    tone(tmp_path / "sky.wav", rate=8_000)
    tone(tmp_path / "week.flac", rate=44_100)
    questions = read_questions(str(tmp_path), audio=True, seed=0)
    assert by_id(questions) == {
        "sky": ("What color is the sky?", ("blue", "azure")),
        "week": ("How many days does a week have?", ("seven",)),
    }
    for question in questions:
        assert question.audio is not None
        assert question.audio.dtype == np.float32
        assert len(question.audio) == 8_000


def test_the_documented_csv_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(examples()["csv"], "utf-8")
    assert by_id(read_questions(str(tmp_path / "mine.csv"), audio=False, seed=0)) == {
        "sky": ("What color is the sky?", ("blue", "azure")),
        "week": ("How many days does a week have?", ("seven",)),
    }


def test_parquet_carries_recordings_inside(tmp_path: Path) -> None:
    sound = tone(tmp_path / "x.wav").read_bytes()
    rows = {"question": ["Q?"], "answers": [["a"]], "audio": [{"bytes": sound, "path": "gone.wav"}]}
    pyarrow.parquet.write_table(pa.table(rows), tmp_path / "q.parquet")
    (question,) = read_questions(str(tmp_path / "q.parquet"), audio=True, seed=0)
    assert question.id == "1"
    assert question.audio is not None
    assert len(question.audio) == 8_000


def test_an_audio_folder_of_the_datasets_library_works_as_it_is(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav")
    (tmp_path / "metadata.csv").write_text("file_name,question,answers\na.wav,Which letter?,A\n", "utf-8")
    (question,) = read_questions(str(tmp_path), audio=True, seed=0)
    assert (question.text, question.answers) == ("Which letter?", ("A",))
    assert question.audio is not None
    assert len(question.audio) == 8_000


def test_an_edited_file_is_read_anew(tmp_path: Path) -> None:
    source = write(tmp_path / "q.json", [ROW])
    read_questions(source, audio=False, seed=0)
    write(tmp_path / "q.json", [ROW | {"answers": ["grey"]}])
    assert read_questions(source, audio=False, seed=0)[0].answers == ("grey",)


def test_numbers_and_single_strings_are_answers_too(tmp_path: Path) -> None:
    source = write(tmp_path / "q.json", [ROW | {"answers": 7}, ROW | {"answers": " a | b "}, ROW])
    found = {q.id: q.answers for q in read_questions(source, audio=False, seed=0)}
    assert found == {"1": ("7",), "2": ("a", "b"), "3": ("blue",)}


@pytest.mark.parametrize(
    ("rows", "audio", "message"),
    [
        ([{"question": "Q?"}], False, r"q\.json: columns = 'question': a column answers is needed"),
        ([{"answers": "a"}], False, r"q\.json: columns = 'answers': a column question is needed"),
        ([ROW], True, r"columns = .*: a column audio is needed to speak"),
        ([ROW, ROW | {"answers": []}], False, r"q\.json row 2: answers = \[\]: give at least one"),
        ([ROW, ROW | {"answers": None}], False, r"row 2: answers = None: give at least one"),
        ([ROW | {"answers": [" ", "|"]}, ROW | {"answers": "|"}], False, r"row 2: answers = '\|'"),
        ([ROW | {"question": " "}], False, r"row 1: question = ' ': write the question"),
        ([ROW | {"audio": None}], True, r"row 1: audio = None: give a recording"),
        ([ROW | {"audio": "gone.wav"}], True, r"row 1: audio = 'gone\.wav': no such recording"),
        ([ROW | {"audio": "q.json"}], True, r"row 1: audio = 'q\.json': not readable as audio"),
        (
            [ROW | {"audio": "empty.wav"}],
            True,
            r"row 1: audio = 'empty\.wav': use a recording of at least 320",
        ),
        (
            [ROW | {"id": "x"}, ROW | {"id": "x"}],
            False,
            r"q\.json: id = 'x': give every question an id of its own",
        ),
    ],
)
def test_what_is_wrong_is_named_by_file_row_and_column(
    tmp_path: Path, rows: list[dict[str, Any]], audio: bool, message: str
) -> None:
    tone(tmp_path / "empty.wav", seconds=0)
    with pytest.raises(FieldError, match=message):
        read_questions(write(tmp_path / "q.json", rows), audio=audio, seed=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.json", "[{", r"data = .*q\.json': cannot be read \(DatasetGenerationError"),
        ("q.txt", "Q?", r"use a file in \.json, \.jsonl, \.csv, \.parquet"),
        ("q.csv", "question,answers\n", r"no rows|cannot be read"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content, "utf-8")
    with pytest.raises(FieldError, match=message):
        read_questions(str(tmp_path / name), audio=False, seed=0)


@pytest.mark.parametrize("source", ["./gone.json", "gone", "/gone/folder"])
def test_a_source_that_is_nothing_is_refused_without_a_network(source: str) -> None:
    with pytest.raises(FieldError, match="no such file or folder, and no hub id"):
        read_questions(source, audio=False, seed=0)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="cannot be read"):
        read_questions(str(tmp_path), audio=False, seed=0)


def test_a_hub_id_that_cannot_be_fetched_says_what_else_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(FieldError, match=r"org/none.*ConnectionError: no route.*given as a folder"):
        read_questions("org/none", audio=False, seed=0)


def test_fewer_than_one_question_is_refused() -> None:
    with pytest.raises(FieldError, match="questions = 0: ask for 1 or more"):
        read_questions("builtin", audio=False, seed=0, limit=0)
