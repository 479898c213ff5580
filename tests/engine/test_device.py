"""What does not fit a device is told by name before anything is loaded. No CUDA device is needed for that."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from metronome_cli.engine import device
from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.device import block_bytes, check_kernels, device_of, fit_pool
from metronome_cli.engine.random_weights import SIZES
from metronome_cli.errors import ProfileError

GIB = 2**30
CUDA = torch.device("cuda")
QWEN = SIZES["qwen2.5-7b"]


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A new card with 40 GiB free, and Triton."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (40 * GIB, 80 * GIB))
    monkeypatch.setattr(device, "find_spec", lambda _: object())
    return monkeypatch


def test_the_cpu_is_always_there() -> None:
    assert device_of("cpu") == torch.device("cpu")


def test_a_new_card_is_taken(card: pytest.MonkeyPatch) -> None:
    assert device_of("cuda") == CUDA


def test_no_card(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ProfileError, match=r"run.device = 'cuda': no CUDA device is seen here; use cpu"):
        device_of("cuda")


def test_an_old_card(card: pytest.MonkeyPatch) -> None:
    card.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(ProfileError, match=r"Tesla T4 has compute capability 7\.5, the kernels need 8\.0"):
        device_of("cuda")


def test_no_triton(card: pytest.MonkeyPatch) -> None:
    card.setattr(device, "find_spec", lambda _: None)
    with pytest.raises(ProfileError, match="pip install triton, or use cpu"):
        device_of("cuda")


@pytest.mark.parametrize(
    ("changes", "dtype", "message"),
    [
        ({"head_dim": 80}, torch.bfloat16, "head_dim = 80: the kernels take 16, 32, 64, 128, 256"),
        ({"experts": 8, "top": 2, "intermediate": 100}, torch.bfloat16, "moe_intermediate_size = 100"),
        ({}, torch.float64, "kv_dtype = 'torch.float64': use float32, bfloat16, float16 or fp8"),
    ],
)
def test_what_no_kernel_is_written_for(changes: dict[str, Any], dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        check_kernels(dataclasses.replace(QWEN, **changes), dtype)


@pytest.mark.parametrize("config", SIZES.values(), ids=SIZES)
def test_what_kernels_are_written_for(config: DecoderConfig) -> None:
    check_kernels(config, torch.bfloat16)


def test_weights_that_do_not_fit(card: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match=r"weights take 60\.0 GiB beside 4\.0 GiB.*40\.0 GiB are free"):
        fit_pool(100, 60 * GIB, block_bytes(QWEN, 64, torch.bfloat16), CUDA)


def test_the_largest_pool_that_fits_is_told(card: pytest.MonkeyPatch) -> None:
    block = block_bytes(QWEN, 64, torch.bfloat16)
    assert block == 64 * 28 * 4 * 128 * 2 * 2
    most = 21 * GIB // block - 1
    with pytest.raises(ProfileError, match=rf"21\.0 GiB are free beside the weights; use at most {most}"):
        fit_pool(most + 1, 15 * GIB, block, CUDA)
    assert fit_pool(most, 15 * GIB, block, CUDA) == most
    assert fit_pool("free", 15 * GIB, block, CUDA) == most


def test_only_a_gpu_counts_its_free_memory() -> None:
    assert fit_pool(7, 15 * GIB, 1, torch.device("cpu")) == 7
    with pytest.raises(
        ProfileError, match=r"pool.blocks = 'free': only a GPU's memory is counted: give a number"
    ):
        fit_pool("free", 0, 1, torch.device("cpu"))
