"""Files that others wrote: whatever they hold, the error names folder, file and field."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from transformers import LlamaConfig

from metronome_cli.engine.config_file import check_counts, check_divides, read_config, read_json, readable
from metronome_cli.errors import AssetError


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no readable config.json (JSONDecodeError"),
        ("[]", "it holds list, not fields"),
        ("null", "it holds NoneType, not fields"),
        ("[" * 100_000, "no readable config.json (RecursionError"),
        (
            '{"a": {"vocab_size": 1000000000000}}',
            "a.vocab_size = 1000000000000: no model has more",
        ),
        ('{"encoder_layers": 5000}', "encoder_layers = 5000: no model has more than 4096"),
        ('{"num_hidden_layers": -1000000}', "num_hidden_layers = -1000000"),
    ],
)
def test_what_is_no_config_is_told_from_one(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.json").write_text(text)
    for read in (read_json, read_config):
        with pytest.raises(AssetError, match=re.escape(says)) as caught:
            read(tmp_path)
        assert str(tmp_path) in str(caught.value)


def test_a_file_that_cannot_be_read_comes_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "some.json").mkdir()
    with pytest.raises(AssetError, match=r"no readable some\.json \(IsADirectoryError.*; download it again"):
        read_json(tmp_path, "some.json", "download it again")


@pytest.mark.parametrize("fields", [{"dtype": "x"}, {"model_type": "nobody"}, {"dtype": []}])
def test_a_config_that_its_library_refuses_is_no_traceback(tmp_path: Path, fields: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"} | fields))
    with pytest.raises(AssetError, match=r"no readable config\.json of a known model"):
        read_config(tmp_path)


def test_errors_of_ours_go_through_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="mine"), readable(tmp_path, "config.json"):
        raise AssetError("mine")


@pytest.mark.parametrize("value", [0, -1, None, "8", 1.5, True, [], [2, 0]])
def test_what_counts_something_is_1_or_more(tmp_path: Path, value: object) -> None:
    config = LlamaConfig()
    config.some = [4, 2]
    check_counts(tmp_path, config, ["hidden_size", "some"])
    config.some = value
    with pytest.raises(AssetError, match=re.escape(f"part.some = {value!r}; use 1 or more")):
        check_counts(tmp_path, config, ["hidden_size", "some"], "part")


def test_heads_share_a_size_evenly(tmp_path: Path) -> None:
    config = LlamaConfig(hidden_size=32, num_attention_heads=4)
    check_divides(tmp_path, config, "hidden_size", "num_attention_heads")
    config.num_attention_heads = 5
    with pytest.raises(AssetError, match="hidden_size = 32, which num_attention_heads = 5 do not share"):
        check_divides(tmp_path, config, "hidden_size", "num_attention_heads")
