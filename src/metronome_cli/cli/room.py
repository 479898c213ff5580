"""What a profile's calls take of a memory: bytes a token, blocks and bytes a call, calls in so many bytes.

Knows:   what a token leaves in the pool, by a checkpoint's config.json or, where it is not here, by its name;
         about how long a header is.
Ignores: devices, weights, and what is shown of it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ProfileError
from ..kinds import Cache, kind_of
from ..models.assets import where
from ..profile import Profile
from ..window import Policy, Window, blocks_for, most_blocks, reach

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes a number
_SCALE = 4  # bytes of what the 8-bit numbers of a head are scaled by
_UNITS = {"B": 1} | {f"{u}iB": 2 ** (10 * n) for n, u in enumerate("KMGT", 1)}
_UNITS |= {f"{u}B": 10 ** (3 * n) for n, u in enumerate("KMGT", 1)}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})")
# Where in a config.json the backbone's sizes stand: of itself, of a model with a text part, of Qwen-Omni.
_PLACES = ((), ("text_config",), ("thinker_config", "text_config"))


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache of a profile's calls takes, in bytes and blocks."""

    token_bytes: int
    block_bytes: int
    session_blocks: int | None  # None: a call has no bound
    pool_blocks: int | None  # None: what the GPU has left
    beside_bytes: int = 0  # what a call takes beside the pool's blocks

    @property
    def session_bytes(self) -> int | None:
        return None if self.session_blocks is None else self.session_blocks * self.block_bytes

    @property
    def pool_bytes(self) -> int | None:
        return None if self.pool_blocks is None else self.pool_blocks * self.block_bytes

    @property
    def pool_share(self) -> float | None:
        """Of the pool, that one call can take."""
        if self.session_blocks is None or self.pool_blocks is None:
            return None
        return self.session_blocks / self.pool_blocks

    def sessions_in(self, memory: int) -> int | None:
        """Calls that so many bytes hold beside the weights, each at its most; None where one has no bound."""
        return None if self.session_bytes is None else memory // (self.session_bytes + self.beside_bytes)

    @property
    def pool_sessions(self) -> int | None:
        """Calls that the pool holds, each at its most."""
        if self.session_blocks is None or self.pool_blocks is None:
            return None
        return self.pool_blocks // self.session_blocks

    def told(self, memory: int | None) -> dict[str, Any]:
        """All of it as plain data; `memory` in bytes, where somebody asks what that holds."""
        return {
            "kv_bytes_per_token": self.token_bytes,
            "session_blocks": self.session_blocks,
            "session_bytes": self.session_bytes,
            "pool_share": self.pool_share,
            "beside_bytes": self.beside_bytes,
            "pool_bytes": self.pool_bytes,
            "pool_sessions": self.pool_sessions,
            "memory_bytes": memory,
            "memory_sessions": None if memory is None else self.sessions_in(memory),
        }


def room_of(profile: Profile) -> Room | None:
    """None where nobody knows the sizes: no checkpoint is here, and its name says nothing."""
    cache = cache_of(profile)
    if cache is None:
        return None
    kind, size, width = kind_of(profile.model.kind), profile.pool.block_size, _WIDTH[profile.model.dtype]
    token, beside = cache.bytes_per_token(width), 0
    if width == 2 and cache in kind.caches.values():
        beside = kind.beside
    if profile.pool.kv == "fp8":  # a scale for each head, and the sinks apart, as wide as the model
        beside += blocks_for(reach(policy_of(profile))[1], size) * size * token
        token = cache.bytes_per_token(1) + 2 * cache.layers * cache.kv_heads * _SCALE
    blocks = None if profile.pool.blocks == "free" else profile.pool.blocks
    return Room(token, token * size, session_blocks(profile), blocks, beside)


def policy_of(profile: Profile) -> Policy:
    """What a call is held to, its header taken for as long as its words let expect.

    Of a model of one's own nothing is known: no header.
    """
    kind, policy = kind_of(profile.model.kind), profile.policy(0)
    if kind.pinned is None or not isinstance(policy, Window):
        return policy
    # What is longer is refused when it is read.
    return profile.policy(min(kind.header_tokens(profile.model.header), policy.window))


def session_blocks(profile: Profile) -> int | None:
    """Most blocks that a call of `policy_of` can hold; None without a bound."""
    return most_blocks(policy_of(profile), profile.pool.block_size, profile.beat.prefill_tokens)


def cache_of(profile: Profile) -> Cache | None:
    """What a token leaves in the pool of this profile's model."""
    kind, name = kind_of(profile.model.kind), profile.model.thinker
    if "thinker" not in kind.weights:
        return None
    folder = where(name)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return next(_caches(config))
    except (OSError, ValueError, RecursionError, StopIteration):
        known = kind.caches.get(name.rpartition("/")[2].lower())
        return known or (None if os.path.exists(folder) else kind.cache)


def bytes_of(text: str) -> int:
    """A memory such as 80GiB or 141 GB. ProfileError when it is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ProfileError("memory", text, "use a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB: 80GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def _caches(config: Any) -> Iterator[Cache]:
    for place in _PLACES:
        found = config
        for part in place:
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            continue
        layers, heads = _count(found, "num_hidden_layers"), _count(found, "num_attention_heads")
        size = _count(found, "head_dim") or (_count(found, "hidden_size") // heads if heads else 0)
        shared = _count(found, "num_key_value_heads") or heads
        if layers and shared and size:
            yield Cache(layers, shared, size)


def _count(config: Mapping[str, Any], field: str) -> int:
    """What a field says that counts something; 0 where it says nothing of the kind."""
    value = config.get(field)
    return value if isinstance(value, int) and value > 0 else 0
