"""What a profile's pool holds in a number, and how many blocks it gets beside the weights.

Knows:   a profile, a decoder's sizes, how much memory everything else takes.
Ignores: whose decoder it is, and how memory is used later.
"""

from __future__ import annotations

import torch

from ..engine.decoder import DecoderConfig
from ..engine.device import Need, block_bytes, device_of, fit_pool
from ..engine.kv_pool import FP8, Narrow
from ..engine.weights import dtype_of
from ..profile import Profile
from ..window import Policy, blocks_for, reach


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
    fit the profile's device.
    """
    dtype, size = dtype_of(profile.model.dtype), profile.pool.block_size
    block = block_bytes(config, size, dtype)
    if profile.pool.kv == "fp8":
        beside += _pinned(profile, policy) * block
        block = block_bytes(config, size, FP8)
    need = Need(weights, block, size, beside, profile.admission.max_sessions)
    return fit_pool(profile.pool.blocks, need, device_of(profile.run.device))


def _pinned(profile: Profile, policy: Policy) -> int:
    """Blocks of a call's sinks, where they lie apart."""
    return blocks_for(reach(policy)[1], profile.pool.block_size)
