from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from metronome_cli.engine import weights
from metronome_cli.errors import ProfileError
from metronome_cli.kinds import KINDS
from metronome_cli.models import qwen_omni
from metronome_cli.models.factory import build, check, find
from metronome_cli.models.null import NullModel
from metronome_cli.profile import Profile, parse_profile


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_ours_can_be_found(kind: str) -> None:
    assert find(kind).__module__ == KINDS[kind].place.partition(":")[0]


def own(kind: str) -> Profile:
    return parse_profile("mine", {"model": {"kind": kind}})


def test_a_model_of_ones_own_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_model_of_mine.py").write_text(
        "from metronome_cli.models.null import NullModel\nclass Mine(NullModel):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    built = build(own("a_model_of_mine:Mine"))
    assert isinstance(built, NullModel)
    assert type(built).__name__ == "Mine"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("nowhere_at_all:Toy", "No module named 'nowhere_at_all'"),
        ("metronome_cli.nowhere:Toy", "put the folder that holds metronome_cli.nowhere into PYTHONPATH"),
        ("json:Toy", "has no attribute 'Toy'"),
        ("json:JSONDecoder", "lacks open, tick, cancel, close, blocks, policy, usage"),
        ("json:scanner", "this one lacks open"),
    ],
)
def test_what_is_no_model_is_refused_with_the_cure(kind: str, says: str) -> None:
    with pytest.raises(ProfileError, match=re.escape(says)) as caught:
        build(own(kind))
    assert caught.value.field == "model.kind"


def of_type(folder: Path, kind: str, model_type: object) -> Profile:
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    model = {"kind": kind, "thinker": str(folder), "rate": KINDS[kind].rate or 16_000, "mode": "free"}
    beat = {"frame_s": 0.08, "tau": 1}
    return parse_profile("mine", {"model": model, "beat": beat, "window": {"sinks": 4}})


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.weights])
def test_a_checkpoint_of_another_architecture_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    for model_type in KINDS[kind].types:
        check(of_type(tmp_path, kind, model_type))
    with pytest.raises(ProfileError, match=f"'gpt2'; model.kind {re.escape(kind)} reads") as caught:
        check(of_type(tmp_path, kind, "gpt2"))
    assert caught.value.field == "model.thinker"
    assert "would read" not in caught.value.cure
    other = "moshi" if kind != "moshi" else "minicpm-o"
    with pytest.raises(ProfileError, match=f"and {other} would read this one"):
        check(of_type(tmp_path, kind, KINDS[other].types[0]))


def test_the_architectures_of_a_kind_are_those_that_its_reader_takes() -> None:
    for kind, family in qwen_omni._FAMILIES.items():
        assert KINDS[kind].types == (family.whole, family.thinker)
    for kind in ("cascade", "text"):
        assert KINDS[kind].types == weights._FAMILIES
