"""What a profile's pool holds in a number, and how many blocks it gets beside the weights.

Knows:   a profile, a decoder's sizes, how much memory everything else takes.
Ignores: whose decoder it is, and how memory is used later.
"""

from __future__ import annotations

import torch

from ..engine.decoder import DecoderConfig
from ..engine.device import (
    MOST_OF_A_ROW,
    Need,
    block_bytes,
    check_calls,
    check_kernels,
    check_row,
    device_of,
    fit_pool,
    left_for_pool,
)
from ..engine.kv_pool import FP8, Narrow
from ..engine.weights import dtype_of
from ..errors import ProfileError
from ..profile import Profile
from ..window import Policy, Window, blocks_for, most_blocks, reach


def kept_as(profile: Profile, policy: Policy) -> torch.dtype | Narrow | None:
    """What the pool holds; None: what the model computes in. `policy`: the profile's own, header resolved.

    Sinks apart have room for as many calls as are ever let in on these terms.
    """
    if profile.pool.kv == "model":
        return None
    return Narrow(_pinned(profile, policy) * profile.admission.max_sessions, dtype_of(profile.model.dtype))


def pool_blocks(
    profile: Profile, policy: Policy, config: DecoderConfig, weights: int, beside: int = 0
) -> int:
    """How many blocks the pool gets, beside `weights` that are still to come, in bytes.

    `beside`: bytes that each call takes from the start, whoever calls. ProfileError when all of it does not
    fit the profile's device, or the pool would not hold one call.
    """
    dtype, size = dtype_of(profile.model.dtype), profile.pool.block_size
    device = device_of(profile.run.device)
    if device.type == "cuda":
        check_kernels(config, FP8 if profile.pool.kv == "fp8" else dtype)
        check_row(policy, profile.beat.prefill_tokens, MOST_OF_A_ROW)
        check_calls(profile.admission.max_sessions)
    block = block_bytes(config, size, dtype)
    if profile.pool.kv == "fp8":
        beside += _pinned(profile, policy) * block
        block = block_bytes(config, size, FP8)
    need = Need(weights, block, size, beside, profile.admission.max_sessions)
    left = left_for_pool(profile.pool.blocks, need, device)
    if left is not None:
        _check_one_fits(profile, policy, left // block - 1)
    return fit_pool(profile.pool.blocks, need, device)


def _check_one_fits(profile: Profile, policy: Policy, blocks: int) -> None:
    """ProfileError where the largest pool that a device has room for, of `blocks`, would turn every call
    away."""
    size, append = profile.pool.block_size, profile.beat.prefill_tokens
    bound = most_blocks(policy, size, append)
    if bound is None or bound <= blocks:
        return
    least, most = 2 * append, blocks * size
    if isinstance(policy, Window):
        least, most = max(1, policy.sinks), (blocks - blocks_for(policy.sinks, size) - 1) * size - append + 1
    found = f"{blocks} fit what is free, and one session of this window needs {bound} blocks of {size} tokens"
    window = f"a window of at most {most} tokens, " if most >= least else ""
    cure = f"{found}; use {window}a smaller pool.block_size or a smaller model"
    raise ProfileError("pool.blocks", profile.pool.blocks, cure)


def _pinned(profile: Profile, policy: Policy) -> int:
    """Blocks of a call's sinks, where they lie apart."""
    return blocks_for(reach(policy)[1], profile.pool.block_size)
