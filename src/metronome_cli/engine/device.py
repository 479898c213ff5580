"""Whether a device can compute what is asked of it, asked before anything is loaded or captured.

Knows:   CUDA cards and their memory, what the kernels are written for.
Ignores: checkpoints and sessions.

An error here names the number that does not fit and the largest that would: nobody is to run out of memory in
the middle of a call.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

import torch

from ..errors import ProfileError
from ..profile import NOT_COUNTED
from .decoder import DecoderConfig
from .kv_pool import FP8

_OLDEST = (8, 0)  # compute capability: bfloat16 in the matrix units
_HEAD_SIZES = (16, 32, 64, 128, 256)
_EXPERT_TILE = 64  # the experts' products go over sizes in such steps
_KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16, FP8)
_WORK_BYTES = 4 * 2**30  # graphs, logits and what 8,192 tokens need between two layers, with room to spare


def device_of(name: str) -> torch.device:
    """The device of a profile's run.device. ProfileError when it is not there or too old."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ProfileError("run.device", name, "no CUDA device is seen here; use cpu")
    capability = torch.cuda.get_device_capability(device)
    if capability < _OLDEST:
        card, found = torch.cuda.get_device_name(device), ".".join(map(str, capability))
        cure = f"{card} has compute capability {found}, the kernels need 8.0 or more; use cpu"
        raise ProfileError("run.device", name, cure)
    if find_spec("triton") is None:
        raise ProfileError("run.device", name, "the kernels need Triton: pip install triton, or use cpu")
    return device


def check_kernels(config: DecoderConfig, kv_dtype: torch.dtype) -> None:
    """ProfileError when the CUDA kernels are not written for such a decoder or cache."""
    if config.head_dim not in _HEAD_SIZES:
        cure = f"the kernels take {', '.join(map(str, _HEAD_SIZES))}; use run.device = cpu"
        raise ProfileError("head_dim", config.head_dim, cure)
    sizes = (config.hidden, config.intermediate)
    if config.experts and any(size % _EXPERT_TILE for size in sizes):
        cure = f"experts' sizes have to be multiples of {_EXPERT_TILE}; use run.device = cpu"
        raise ProfileError("moe_intermediate_size", config.intermediate, cure)
    if kv_dtype not in _KV_DTYPES:
        raise ProfileError("kv_dtype", str(kv_dtype), "use float32, bfloat16, float16 or fp8")


def block_bytes(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block: keys and values of all layers, of FP8 with a scale for each head."""
    head = config.head_dim * dtype.itemsize + (torch.float32.itemsize if dtype == FP8 else 0)
    return 2 * config.layers * config.kv_heads * block_size * head


def fit_pool(blocks: int | Literal["free"], weights: int, block: int, device: torch.device) -> int:
    """How many blocks a pool gets beside `weights` that are still to be loaded: as asked, or all that fit.

    `weights` and one `block` in bytes. ProfileError when both do not fit the free memory.
    """
    if device.type != "cuda":
        if blocks == "free":
            raise ProfileError("pool.blocks", blocks, NOT_COUNTED)
        return blocks
    free, _ = torch.cuda.mem_get_info(device)
    left = free - weights - _WORK_BYTES
    most = left // block - 1  # one more is scratch
    if most < 1:
        cure = (
            f"its weights take {_gib(weights)} GiB beside {_gib(_WORK_BYTES)} GiB to work in, and "
            f"{_gib(free)} GiB are free: use a smaller model, or model.dtype = bfloat16"
        )
        raise ProfileError("model.thinker", f"{_gib(weights)} GiB", cure)
    if blocks == "free":
        return most
    if blocks > most:
        cure = (
            f"{blocks} blocks take {_gib(blocks * block)} GiB, and {_gib(left)} GiB are free beside the "
            f"weights; use at most {most}"
        )
        raise ProfileError("pool.blocks", blocks, cure)
    return blocks


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"
