"""The one JSON document a run ends with, and the folder it lies in.

Knows:   the report's frame (versions, seed, device, command line) and the names in a run folder.
Ignores: what the results mean; each command fills `results` with its own numbers.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from .clock import Clock
from .errors import FieldError
from .profile import Profile

VERSION = 1
_SECRETS = ("--api-key",)  # options whose values are never written down
_HIDDEN = "***"
# Before the host of a URL; without a scheme it takes a colon, or any name@place would be one.
_LOGIN = re.compile(r"^(\w+://)[^/?#\s]*@|^[^/?#\s]*:[^/?#\s]*@")
_NAMED = ("metronome-cli", "torch", "transformers", "openai-whisper", "numpy", "msgspec", "uvicorn")


class Report(BaseModel):
    """What was run, where, on what, and what came out. `held` is False when a limit was missed."""

    model_config = ConfigDict(extra="ignore")

    version: int = VERSION
    command: str
    argv: list[str]
    profile: dict[str, Any]
    seed: int
    versions: dict[str, str]
    device: dict[str, Any]
    wall_start: str
    held: bool = True
    results: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)

    def save(self, folder: Path) -> Path:
        """Write report.json, whole or not at all."""
        path = folder / "report.json"
        write_whole(path, self.model_dump_json(indent=2) + "\n")
        return path


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all: who is interrupted leaves the old one, or none."""
    half = path.with_name(f"{path.name}.part")
    half.write_text(text, "utf-8")
    half.replace(path)


def new_report(command: str, profile: Profile | None, clock: Clock, seed: int = 0) -> Report:
    """A report with everything filled in but its results. `seed` counts where there is no profile."""
    return Report(
        command=command,
        argv=redacted(sys.argv[1:]),
        profile=profile.model_dump() if profile else {},
        seed=profile.run.seed if profile else seed,
        versions=_versions(),
        device={
            "machine": platform.machine(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "system": platform.system(),
        },
        wall_start=datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="seconds"),
    )


def without_login(url: str) -> str:
    """A URL without the user name and password that it may hold."""
    return _LOGIN.sub(r"\1", url)


def redacted(argv: list[str]) -> list[str]:
    """A command line without keys and passwords: they are for the server, not for readers of the report."""
    shown: list[str] = []
    for word in argv:
        if shown and shown[-1] in _SECRETS:
            shown.append(_HIDDEN)
        else:
            name, equals, _ = word.partition("=")
            shown.append(f"{name}={_HIDDEN}" if equals and name in _SECRETS else without_login(word))
    return shown


def read_report(folder: Path) -> Report:
    """The report of a run folder."""
    path = folder / "report.json"
    if folder.is_dir() and not path.exists():
        raise FieldError("run", str(folder), _no_report(folder))
    try:
        return Report.model_validate(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise FieldError("run", str(folder), f"give a run folder with a report.json ({error})") from None


def _no_report(folder: Path) -> str:
    """Why a folder may have no report, and what to do."""
    if any(folder.glob("*/report.json")):
        return f"it has no report.json, but holds runs that have: name one of them, or all as {folder}/*"
    if any(folder.glob("*.jsonl")):
        return (
            "it has no report.json yet: its run still goes on, or was killed; end it with Ctrl-C, which "
            "writes one, or read its trace with `metronome fit collapse-model`"
        )
    return "give a run folder with a report.json"


def run_folder(root: Path, command: str, profile_name: str, clock: Clock) -> Path:
    """A new folder runs/<time>-<command>-<profile>/; a second one within a second gets a suffix."""
    stamp = datetime.fromtimestamp(clock.wall(), UTC).strftime("%Y%m%dT%H%M%SZ")
    stem = re.sub(r"[^\w.-]+", "-", f"{stamp}-{command}-{profile_name}")
    for suffix in ("", *(f"-{n}" for n in range(2, 1000))):
        folder = root / (stem + suffix)
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise FieldError("out", str(root), f"choose a folder that can be written ({error})") from None
        return folder
    raise FieldError("out", str(root), "too many runs in one second")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _NAMED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
