"""What a profile's calls take of a memory: bytes a token, blocks and bytes a call, calls in so many bytes.

Knows:   what a token leaves in the pool, by a checkpoint's config.json or, where it is not here, by its name.
Ignores: devices, weights, and what is shown of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ProfileError
from ..kinds import Cache, kind_of
from ..models.assets import where
from ..profile import Profile

_WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes a number
_UNITS = {"B": 1} | {f"{u}iB": 2 ** (10 * n) for n, u in enumerate("KMGT", 1)}
_UNITS |= {f"{u}B": 10 ** (3 * n) for n, u in enumerate("KMGT", 1)}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d{{1,9}})?) ?({'|'.join(_UNITS)})")
# Where in a config.json the backbone's sizes stand: of itself, of a model with a text part, of Qwen-Omni.
_PLACES = ((), ("text_config",), ("thinker_config", "text_config"))


@dataclass(frozen=True, slots=True)
class Room:
    """What the cache of a profile's calls takes, in bytes and blocks, before a header is read."""

    token_bytes: int
    block_bytes: int
    session_blocks: int | None  # None: a call has no bound
    pool_blocks: int | None  # None: what the GPU has left

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
        """Calls that so many bytes of pool hold, each at its most; None where a call has no bound."""
        if self.session_blocks is None:
            return None
        return memory // self.block_bytes // self.session_blocks

    def told(self, memory: int | None) -> dict[str, Any]:
        """All of it as plain data; `memory` in bytes, where somebody asks what that holds."""
        pool = self.pool_bytes
        return {
            "kv_bytes_per_token": self.token_bytes,
            "session_blocks": self.session_blocks,
            "session_bytes": self.session_bytes,
            "pool_share": self.pool_share,
            "pool_bytes": pool,
            "pool_sessions": None if pool is None else self.sessions_in(pool),
            "memory_bytes": memory,
            "memory_sessions": None if memory is None else self.sessions_in(memory),
        }


def room_of(profile: Profile) -> Room | None:
    """None where nobody knows the sizes: no checkpoint is here, and its name says nothing."""
    cache = cache_of(profile)
    if cache is None:
        return None
    width = 1 if profile.pool.kv == "fp8" else _WIDTH[profile.model.dtype]
    token = cache.bytes_per_token(width)
    blocks = None if profile.pool.blocks == "free" else profile.pool.blocks
    return Room(token, token * profile.pool.block_size, profile.session_blocks(0), blocks)


def cache_of(profile: Profile) -> Cache | None:
    """What a token leaves in the pool of this profile's model."""
    kind, name = kind_of(profile.model.kind), profile.model.thinker
    if "thinker" not in kind.weights:
        return None
    folder = where(name)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return next(_caches(config))
    except (OSError, ValueError, StopIteration):
        known = kind.caches.get(name.rpartition("/")[2].lower())
        return known or (None if folder.exists() else kind.cache)


def bytes_of(text: str) -> int:
    """A memory such as 80GiB or 141 GB. ProfileError when it is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ProfileError("memory", text, "use a number and B, KiB, MiB, GiB, TiB, KB, MB, GB or TB: 80GiB")
    return int(float(found[1]) * _UNITS[found[2]])


def in_bytes(size: float) -> str:
    """A size as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def _caches(config: Any) -> Iterator[Cache]:
    for place in _PLACES:
        found = config
        for part in place:
            found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping) and "num_hidden_layers" in found and "num_attention_heads" in found:
            heads = found["num_attention_heads"]
            size = found.get("head_dim") or found["hidden_size"] // heads
            yield Cache(found["num_hidden_layers"], found.get("num_key_value_heads") or heads, size)
