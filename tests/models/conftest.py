"""Tiny random ears and models, and a fixture for tests that are faster with one thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import cast

import pytest
import torch
from transformers import MoshiForConditionalGeneration
from whisper.model import ModelDimensions, Whisper

from .tiny_moshi import save_tiny_moshi
from .tiny_omni import KINDS, TinyOmni, save_tiny_omni


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


@pytest.fixture(scope="session")
def tiny_moshi(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MoshiForConditionalGeneration]:
    """The folder of a tiny random Moshi, and the transformers model that it was saved from."""
    folder = tmp_path_factory.mktemp("tiny-moshi")
    return folder, save_tiny_moshi(folder)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Small batches gain nothing by a second thread, and lose much to it where other processes run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> TinyOmni:
    return save_tiny_omni("qwen2.5-omni", tmp_path_factory.mktemp("qwen25"))


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> TinyOmni:
    return save_tiny_omni("qwen3-omni", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(params=KINDS)
def tiny(request: pytest.FixtureRequest) -> TinyOmni:
    """Each of the two in turn."""
    return cast("TinyOmni", request.getfixturevalue("qwen25" if request.param == KINDS[0] else "qwen3"))
