from __future__ import annotations

import re
from pathlib import Path

import pytest

from metronome_cli.errors import ProfileError
from metronome_cli.kinds import KINDS
from metronome_cli.models.factory import build, find
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
