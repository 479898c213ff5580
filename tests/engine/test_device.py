"""What does not fit a device is told by name before anything is loaded. No CUDA device is needed for that."""

from __future__ import annotations

import dataclasses
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from metronome_cli.engine import device
from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.device import Need, block_bytes, check_kernels, device_of, fit_pool
from metronome_cli.engine.engine import _steps
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


CPU = torch.device("cpu")


def test_weights_that_do_not_fit(card: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProfileError, match=r"weights take 60 GiB beside 4 GiB.*and 40 GiB are free"):
        fit_pool(100, Need(60 * GIB, block_bytes(QWEN, 64, torch.bfloat16)), CUDA)


def test_the_largest_pool_that_fits_is_told(card: pytest.MonkeyPatch) -> None:
    block = block_bytes(QWEN, 64, torch.bfloat16)
    assert block == 64 * 28 * 4 * 128 * 2 * 2
    most, need = 21 * GIB // block - 1, Need(15 * GIB, block)
    with pytest.raises(ProfileError, match=rf"21 GiB are free beside the weights; use at most {most}$"):
        fit_pool(most + 1, need, CUDA)
    assert fit_pool(most, need, CUDA) == most
    assert fit_pool("free", need, CUDA) == most


def test_a_cpus_memory_is_counted_but_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: 8 * GIB)
    need = Need(2 * GIB, GIB // 4)
    assert fit_pool(23, need, CPU) == 23
    with pytest.raises(ProfileError, match=r"pool.blocks = 24: 24 blocks take 6 GiB, .*; use at most 23$"):
        fit_pool(24, need, CPU)
    with pytest.raises(ProfileError, match=r"its weights take 9 GiB, and 8 GiB are free"):
        fit_pool(1, Need(9 * GIB, 1), CPU)
    with pytest.raises(ProfileError, match=r"pool.blocks = 'free': only a GPU's memory is filled"):
        fit_pool("free", need, CPU)


def test_where_nobody_tells_what_is_free_a_pool_is_as_large_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: None)
    assert fit_pool(10**7, Need(15 * GIB, GIB, calls=10**9, beside=GIB), CPU) == 10**7


@pytest.mark.parametrize(
    ("blocks", "calls", "told"),
    [
        (4, 10**9, 14),  # as many as fit beside the pool that is asked for: 16 - (4 + 1) / 2 GiB
        (400, 10**9, 16),  # which does not fit by itself: beside the smallest
        ("free", 17, 16),
    ],
)
def test_too_many_calls_are_named_and_not_the_model(
    card: pytest.MonkeyPatch, blocks: Any, calls: int, told: int
) -> None:
    """41 GiB are free, 20 GiB are weights, 4 GiB to work in; the smallest pool takes one of the 17 left."""
    card.setattr(torch.cuda, "mem_get_info", lambda _: (41 * GIB, 80 * GIB))
    need = Need(20 * GIB, GIB // 2, beside=GIB, calls=calls)
    with pytest.raises(ProfileError, match=rf"each call takes 1 GiB.*use at most {told}$") as caught:
        fit_pool(blocks, need, CUDA)
    assert (caught.value.field, caught.value.value) == ("admission.max_sessions", calls)
    fitting = dataclasses.replace(need, calls=told)
    assert fit_pool(blocks if blocks == 4 else "free", fitting, CUDA) >= 1


def test_a_pool_that_calls_leave_no_room_for_says_so(card: pytest.MonkeyPatch) -> None:
    need = Need(20 * GIB, GIB // 2, beside=GIB, calls=10)
    with pytest.raises(ProfileError, match=r"beside the weights and what 10 calls take.*use at most 11$"):
        fit_pool(12, need, CUDA)
    assert fit_pool(11, need, CUDA) == 11


def test_a_block_too_large_for_any_pool_is_named_and_not_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: 8 * GIB)
    with pytest.raises(
        ProfileError, match=r"such a block takes 32 GiB, and 6 GiB are.*use at most 96$"
    ) as caught:
        fit_pool(1, Need(2 * GIB, 32 * GIB, places=1024), CPU)
    assert (caught.value.field, caught.value.value) == ("pool.block_size", 1024)
    assert fit_pool(1, Need(2 * GIB, 3 * GIB, places=96), CPU) == 1


@pytest.mark.parametrize("asked", ["get_device_capability", "mem_get_info"])
def test_a_card_that_does_not_answer_is_told_in_one_line(card: pytest.MonkeyPatch, asked: str) -> None:
    def busy(_: object) -> None:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy\nCUDA kernel errors might be")

    card.setattr(torch.cuda, asked, busy)
    with pytest.raises(ProfileError, match=r"cannot be used \(CUDA error: all .* are busy\); see") as caught:
        fit_pool(1, Need(GIB, GIB), device_of("cuda"))
    assert (caught.value.field, caught.value.value) == ("run.device", "cuda")


def test_a_kernel_that_a_card_has_no_room_for_is_told_with_both_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OutOfResources(Exception):
        required, limit, name = 114_688, 101_376, "shared memory"

    def fail(*_: object) -> None:
        raise OutOfResources

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(OutOfResources=OutOfResources))
    cuda = "metronome_cli.engine.cuda"
    monkeypatch.setitem(sys.modules, cuda, SimpleNamespace(CudaSteps=fail))
    decoder: Any = SimpleNamespace(device=CUDA, config=QWEN)
    memory: Any = SimpleNamespace(keys=torch.zeros(1, dtype=torch.bfloat16))
    with pytest.raises(ProfileError, match=r"'cuda': a kernel needs 114688 of its shared memory, and it has"):
        _steps(decoder, memory)


def test_calls_that_no_block_leaves_room_for_are_named_next_and_not_the_model(
    card: pytest.MonkeyPatch,
) -> None:
    """The block that is told first leaves room for one call, so that what is told then fits."""
    need = Need(GIB, 128 * GIB, places=1024, beside=GIB, calls=10**6)
    with pytest.raises(ProfileError, match=r"such a block takes 128 GiB.*use at most 136$"):
        fit_pool(1, need, CUDA)
    need = dataclasses.replace(need, block=136 * GIB // 8, places=136)
    with pytest.raises(ProfileError, match=r"each call takes 1 GiB.*use at most 1$"):
        fit_pool(1, need, CUDA)
    assert fit_pool(1, dataclasses.replace(need, calls=1), CUDA) == 1
