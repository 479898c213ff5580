"""Tiny random ears, and a fixture for tests that are faster with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from whisper.model import ModelDimensions, Whisper


@pytest.fixture(scope="session")
def tiny_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random Whisper: it babbles without end, which is the worst that ears can meet."""
    dims = ModelDimensions(80, 1500, 32, 2, 1, 51864, 448, 32, 2, 1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-whisper")
    state = Whisper(dims).state_dict()
    torch.nn.init.normal_(state["decoder.positional_embedding"])
    torch.save({"dims": asdict(dims), "model_state_dict": state}, folder / "tiny.pt")
    return folder


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small batches gain nothing by a second thread, and lose much to it where other processes run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
