"""`metronome assets` shows what is there, fetches what is not, and answers on standard output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from metronome_cli.cli.assets import app
from metronome_cli.errors import AssetError
from metronome_cli.models.assets import ASSETS

from ..models.packages import asset_of, build_wheel

FILES = {"data/one.txt": b"one\n"}


def assets(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of one asset, whose package pip finds in a folder; the cache is new and empty."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in [name for name, asset in ASSETS.items() if asset.built_in is None]:
        monkeypatch.delitem(ASSETS, name)
    monkeypatch.setitem(ASSETS, "tiny", asset_of(build_wheel(tmp_path, FILES), FILES))
    return tmp_path


def test_the_list_says_of_each_asset_what_it_is_and_whether_it_is_here() -> None:
    rows = {row["name"]: row for row in json.loads(assets("list", "--json").stdout)}
    assert rows["questions"]["state"] == "have"
    assert rows["tiny"] | {"bytes": 0, "download_bytes": 0} == {
        "name": "tiny",
        "state": "missing",
        "detail": "",
        "bytes": 0,
        "download_bytes": 0,
        "licence": "CC0-1.0",
        "what": "two small files",
        "sources": ["pip: metronome-test-data==1.0"],
    }
    (shown,) = [line.split() for line in assets("list").stdout.splitlines() if line.startswith("tiny")]
    assert shown[1] == "missing"
    assert "CC0-1.0" in shown


def test_a_fetch_says_where_each_asset_lies_and_under_which_licence(shop: Path) -> None:
    found = assets("fetch", "tiny", "--json")
    assert json.loads(found.stdout) == [
        {
            "name": "tiny",
            "outcome": "fetched",
            "licence": "CC0-1.0",
            "folder": str(shop / "home" / "tiny"),
            "note": "",
        }
    ]
    assert found.stderr.splitlines() == ["tiny: downloading", "tiny: converting", "tiny: done"]


def test_a_fetch_of_all_fetches_what_is_missing_and_leaves_the_rest() -> None:
    shown = assets("fetch").stdout.splitlines()
    assert dict(line.split()[:2] for line in shown[1:-1]) == {"questions": "present", "tiny": "fetched"}
    assert shown[-1].startswith("cache: ")


def test_verify_finds_a_file_that_only_its_hash_gives_away(shop: Path) -> None:
    assets("fetch", "tiny")
    (shop / "home" / "tiny" / "one.txt").write_bytes(b"two\n")
    states = [
        {row["name"]: row["state"] for row in json.loads(assets("list", "--json", *more).stdout)}["tiny"]
        for more in ([], ["--verify"])
    ]
    assert states == ["have", "damaged"]


def test_an_unknown_name_is_an_asset_error_of_exit_code_2() -> None:
    error = assets("fetch", "no-such-thing").exception
    assert isinstance(error, AssetError)
    assert error.exit_code == 2
    assert "assets are questions, tiny" in str(error)
