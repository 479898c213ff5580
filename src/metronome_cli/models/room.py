"""What a profile's pool holds in a number, and how many blocks it gets beside the weights.

Knows:   a profile, a decoder's sizes, how much memory everything else takes.
Ignores: whose decoder it is, and how memory is used later.
"""

from __future__ import annotations

import torch

from ..engine.decoder import DecoderConfig
from ..engine.device import block_bytes, device_of, fit_pool
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
    each = blocks_for(reach(policy)[1], profile.pool.block_size)
    return Narrow(each * profile.admission.max_sessions, dtype_of(profile.model.dtype))


def pool_blocks(profile: Profile, policy: Policy, config: DecoderConfig, taken: int) -> int:
    """How many blocks the pool gets, beside `taken` bytes of weights and caches that are still to come.

    ProfileError when both do not fit the profile's device.
    """
    dtype, size, kv = dtype_of(profile.model.dtype), profile.pool.block_size, kept_as(profile, policy)
    block = block_bytes(config, size, dtype)
    if isinstance(kv, Narrow):
        taken, block = taken + kv.pinned * block, block_bytes(config, size, FP8)
    return fit_pool(profile.pool.blocks, taken, block, device_of(profile.run.device))
