"""What callers say, from wherever it comes."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
from datasets import Audio, Features, Value

from metronome_cli.errors import AssetError, FieldError
from metronome_cli.load.recordings import read_speech
from metronome_cli.load.spurts import spurts
from metronome_cli.speech import RATE, Clip


def flac(pitch: float) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(44_100) * pitch) * 0.3, 44_100, format="FLAC")
    return file.getvalue()


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    rows = {
        "audio": [{"bytes": flac(0.1), "path": "a.flac"}, {"bytes": flac(0.2), "path": None}],
        "sentence": ["one", "two"],
    }
    features = Features({"audio": Audio(), "sentence": Value("string")})
    pq.write_table(pa.Table.from_pydict(rows, schema=features.arrow_schema), tmp_path / "train.parquet")
    return tmp_path


def test_a_data_set_gives_its_sound_and_its_script(dataset: Path) -> None:
    clips = read_speech(f"dataset:{dataset}")
    assert [(clip.name, clip.text, clip.seconds) for clip in clips] == [
        ("a.flac", "one", 1.0),
        ("row-1", "two", 1.0),
    ]
    assert [clip.name for clip in read_speech(f"dataset:{dataset}::train")] == ["a.flac", "row-1"]


@pytest.mark.parametrize("name", ["dataset:/nowhere/at/all", "dataset:"])
def test_a_data_set_that_is_none_is_named(name: str) -> None:
    with pytest.raises(FieldError, match="speech"):
        read_speech(name)


def test_a_split_that_is_none_is_named_with_those_that_are(dataset: Path) -> None:
    with pytest.raises(FieldError, match="no split 'test', but train"):
        read_speech(f"dataset:{dataset}::test")


def test_a_data_set_without_sound_is_named_with_what_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one"]}), tmp_path / "train.parquet")
    with pytest.raises(FieldError, match="no column of audio, but text"):
        read_speech(f"dataset:{tmp_path}")


def test_a_data_set_of_loose_files_is_sent_to_the_folder_option(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(flac(0.1))
    (tmp_path / "metadata.csv").write_text("file_name,text\na.flac,one\n")
    with pytest.raises(FieldError, match="folder itself"):
        read_speech(f"dataset:{tmp_path}")
    assert [clip.name for clip in read_speech(str(tmp_path))] == ["a.flac"]


def test_a_name_that_is_nothing_is_named() -> None:
    with pytest.raises(AssetError, match="nothing-by-that-name"):
        read_speech("nothing-by-that-name")


def test_spurts_are_of_one_length_and_lose_no_speech() -> None:
    clips = [Clip("a", np.full(RATE, 0.1, np.float32), "one"), Clip("b", np.full(RATE // 2, 0.2, np.float32))]
    cut = spurts(clips, 0.4)
    assert {clip.seconds for clip in cut} == {0.4}
    assert len(cut) == 4
    assert all(clip.text is None for clip in cut)
    whole = np.concatenate([clip.samples for clip in cut])
    assert (whole[: RATE * 3 // 2] == np.concatenate([clip.samples for clip in clips])).all()
    assert np.abs(whole).min() > 0  # no silence in the last one
