"""A server to call and something to say, for commands that hold calls; and a way to run a command here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from metronome_cli.cli.local_server import serving
from metronome_cli.cli.main import main
from metronome_cli.speech import RATE
from tests.load.conftest import PROFILE


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server that takes three calls."""
    profile = tmp_path_factory.mktemp("server") / "null.toml"
    profile.write_text(PROFILE)
    with serving(["--profile", str(profile), "--no-record"]) as url:
        yield url


@pytest.fixture
def speech(tmp_path: Path) -> Path:
    """A folder with three seconds of a tone."""
    folder = tmp_path / "speech"
    folder.mkdir()
    soundfile.write(folder / "tone.wav", np.sin(np.arange(3 * RATE) / 20).astype(np.float32), RATE)
    return folder


DRAWN = (
    *("plots.draw", "plots.draw_points", "plots.draw_courses"),
    *("fit.draw_fit", "capacity.draw_capacity", "simulate.draw_simulated"),
)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures become empty files: to draw them takes longer than most of what is tested beside them."""
    for name in DRAWN:
        monkeypatch.setattr(f"metronome_cli.reporting.{name}", lambda path, *_: path.touch())


@pytest.fixture
def metronome(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """A command in this process, with its exit code, standard output and standard error."""

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["metronome", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return (left.value.code if isinstance(left.value.code, int) else 0, *capfd.readouterr())

    return run
