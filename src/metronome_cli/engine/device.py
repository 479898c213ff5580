"""Whether a device can compute what is asked of it, asked before anything is loaded or captured.

Knows:   a device's free memory, CUDA cards, what the kernels and steps on them are written for.
Ignores: checkpoints and sessions.

An error here names the number that does not fit and the largest that would: nobody is to run out of memory in
the middle of a call.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import torch

from ..errors import ProfileError
from ..memory import free_memory, in_bytes
from ..profile import NOT_COUNTED
from ..window import Policy, Recycle
from .decoder import DecoderConfig
from .kv_pool import FP8

_OLDEST = (8, 0)  # compute capability: bfloat16 in the matrix units
_OLDEST_FP8 = (8, 9)
_HEAD_SIZES = (16, 32, 64, 128, 256)
_EXPERT_TILE = 64  # the experts' products go over sizes in such steps
_KV_DTYPES = (torch.float32, torch.bfloat16, torch.float16, FP8)
MOST_OF_A_ROW = 8192  # tokens of a call that a CUDA device takes in one step,
MOST_ROWS = 65_536  # and calls that it takes in one
_WORK_BYTES = 4 * 2**30  # graphs, logits and what 8,192 tokens need between two layers, with room to spare


def device_of(name: str) -> torch.device:
    """The device of a profile's run.device. ProfileError when it is not there, too old or of no use."""
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise ProfileError("run.device", name, "no CUDA device is seen here; use cpu")
    if found := _older(device, _OLDEST):
        raise ProfileError("run.device", name, f"{found}, the kernels need 8.0 or more; use cpu")
    if find_spec("triton") is None:
        raise ProfileError("run.device", name, "the kernels need Triton: pip install triton, or use cpu")
    return device


def check_narrow(device: torch.device) -> None:
    """ProfileError when the device has no kernels for a pool of FP8."""
    if device.type != "cuda":
        cure = "only the kernels on a CUDA device read it; use run.device = cuda, or kv = model"
        raise ProfileError("pool.kv", "fp8", cure)
    if found := _older(device, _OLDEST_FP8):
        raise ProfileError("pool.kv", "fp8", f"{found}, FP8 needs 8.9 or more; use kv = model")


def _older(device: torch.device, oldest: tuple[int, int]) -> str:
    """What a card has that is older than `oldest`, in words; empty of one that is not."""
    with _answering(device):
        capability = torch.cuda.get_device_capability(device)
        if capability >= oldest:
            return ""
        card, found = torch.cuda.get_device_name(device), ".".join(map(str, capability))
    return f"{card} has compute capability {found}"


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


def check_row(policy: Policy, max_append: int, most: int) -> None:
    """ProfileError when a call appends more than `most` tokens in one step, what it carries among them."""
    if max_append > most:
        raise ProfileError("beat.prefill_tokens", max_append, f"use at most {most}")
    if isinstance(policy, Recycle):
        room = min(policy.window, most) - max_append
        if policy.carry > room:
            raise ProfileError("window.carry", policy.carry, f"use at most {room}")


def check_calls(calls: int) -> None:
    """ProfileError when so many would not go into one step of a CUDA device."""
    if calls > MOST_ROWS:
        cure = f"a CUDA device takes no more in one step; use at most {MOST_ROWS}"
        raise ProfileError("admission.max_sessions", calls, cure)


def block_bytes(config: DecoderConfig, block_size: int, dtype: torch.dtype) -> int:
    """Memory of one block: keys and values of all layers, of FP8 with a scale for each head."""
    head = config.head_dim * dtype.itemsize + (torch.float32.itemsize if dtype == FP8 else 0)
    return 2 * config.layers * config.kv_heads * block_size * head


@dataclass(frozen=True, slots=True)
class Need:
    """What is to lie on a device, in bytes: `weights` that are still to be loaded, one `block` of `places`
    tokens, and what each of so many `calls` takes `beside` the pool from the start."""

    weights: int
    block: int
    places: int = 1
    beside: int = 0
    calls: int = 0


def fit_pool(blocks: int | Literal["free"], need: Need, device: torch.device) -> int:
    """How many blocks a pool gets: as asked, or all that fit.

    ProfileError, naming what is too large and what would fit, when the free memory does not hold all of it.
    Where nobody tells how much is free, a pool is as large as asked.
    """
    left = left_for_pool(blocks, need, device)
    if left is None:
        return int(blocks)
    most = left // need.block - 1
    if blocks == "free" or blocks <= most:
        return most if blocks == "free" else blocks
    also = f" and what {need.calls} calls take from the start" if need.beside else ""
    cure = f"{blocks} blocks take {in_bytes(blocks * need.block)}, and {in_bytes(left)} are free beside the"
    raise ProfileError("pool.blocks", blocks, f"{cure} weights{also}; use at most {most}")


def left_for_pool(blocks: int | Literal["free"], need: Need, device: torch.device) -> int | None:
    """Bytes that a pool may take, one block and its scratch at least; None where nobody tells.

    `blocks`: as many as are asked for. ProfileError as of `fit_pool`, but for a pool that is too large.
    """
    is_gpu = device.type == "cuda"
    if not is_gpu and blocks == "free":
        raise ProfileError("pool.blocks", blocks, NOT_COUNTED)
    work, free = _WORK_BYTES if is_gpu else 0, _free_memory(device)
    if free is None:
        return None
    left = free - need.weights - work
    asked = 1 if blocks == "free" else blocks
    if left < 2 * need.block:  # one, and one more that is scratch
        raise _no_block(need, left, asked) or _no_weights(need, free, work)
    if need.beside * need.calls > left - 2 * need.block:
        raise _no_calls(need, left, asked) or _no_weights(need, free, work)
    return left - need.beside * need.calls


def _free_memory(device: torch.device) -> int | None:
    """Bytes of it that can still be taken; None where nobody tells."""
    if device.type != "cuda":
        return free_memory()
    with _answering(device):
        return torch.cuda.mem_get_info(device)[0]


@contextmanager
def _answering(device: torch.device) -> Iterator[None]:
    """A card that is there may still be taken by another program, full or broken: torch says so in words."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).partition("\n")[0]
        cure = f"the card is there and cannot be used ({said}); see nvidia-smi, or use cpu"
        raise ProfileError("run.device", str(device), cure) from error


def _no_block(need: Need, left: int, blocks: int) -> ProfileError | None:
    """Not even one block fits in what is `left` beside the weights; None where no smaller one would. As large
    a one is told as fits with all that was asked for, or, where none does, beside one call."""
    room, least = max(left - need.beside * need.calls, 0), left - need.beside * min(1, need.calls)
    most = room // (blocks + 1) * need.places // need.block or least // 2 * need.places // need.block
    if most < 1:
        return None
    cure = f"such a block takes {in_bytes(need.block)}, and {in_bytes(left)} are free beside the weights"
    return ProfileError("pool.block_size", need.places, f"{cure}; use at most {most}")


def _no_calls(need: Need, left: int, blocks: int) -> ProfileError | None:
    """Not even a pool of one block fits beside the calls. As many are told as fit beside the pool that was
    asked for, or, where none do, beside the smallest; None where not even one call would."""
    most = (left - (blocks + 1) * need.block) // need.beside
    most = most if most >= 1 else (left - 2 * need.block) // need.beside
    if most < 1:
        return None
    cure = f"each call takes {in_bytes(need.beside)} beside the pool from the start, and {in_bytes(left)}"
    cure = f"{cure} are free beside the weights; use at most {most}"
    return ProfileError("admission.max_sessions", need.calls, cure)


def _no_weights(need: Need, free: int, work: int) -> ProfileError:
    beside = f" beside {in_bytes(work)} to work in" if work else ""
    cure = f"its weights take {in_bytes(need.weights)}{beside}, and {in_bytes(free)} are free: use a smaller"
    cure = f"{cure} model, or model.dtype = bfloat16"
    return ProfileError("model.thinker", in_bytes(need.weights), cure)
