"""A server to call and something to say, for the commands that hold calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile

from metronome_cli.cli.local_server import serving
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
