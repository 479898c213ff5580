"""Who holds which block: the pool's accounts, in integers.

Knows:   retention policies, leases, reservations; free + leased = total, always.
Ignores: tensors, tokens' contents, time.

A bounded session reserves the most it can ever hold when it opens, so no reachable state has every
session waiting for blocks. An unbounded session takes only what nobody was promised, and may be told no.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..window import Policy, Recycle, Window, blocks_for, most_blocks, oldest_needed, reach

BlockHook = Callable[[Sequence[int]], None]


class BlockPool:
    """`blocks` equal blocks of `block_size` token places.

    `on_lease` and `on_release` hear of every block that changes hands, in batches. `pinned`: blocks of a
    second kind, in which sinks lie by themselves (kv_pool.py); a lane takes as many as it has sink blocks
    when it opens, and keeps them.
    """

    def __init__(
        self,
        blocks: int,
        block_size: int,
        on_lease: BlockHook | None = None,
        on_release: BlockHook | None = None,
        pinned: int = 0,
    ) -> None:
        self.total = blocks
        self.pinned = pinned
        self._free_pinned = list(range(pinned - 1, -1, -1))
        self.block_size = block_size
        self.reserved = 0  # promised to bounded lanes, held or not
        self._promised = 0  # of those, not yet held
        self._free = list(range(blocks - 1, -1, -1))
        self._lanes: set[Lane] = set()
        self._on_lease = on_lease
        self._on_release = on_release

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def leased(self) -> int:
        return self.total - len(self._free)

    @property
    def spare(self) -> int:
        """Free blocks that nobody was promised."""
        return len(self._free) - self._promised

    def room(self, policy: Policy, max_append: int) -> int | None:
        """How many more such lanes it can promise; None, for a policy without a bound, while any block is."""
        bound = most_blocks(policy, self.block_size, max_append)
        if bound is None:
            return None if self.spare > 0 else 0
        kept = blocks_for(reach(policy)[1], self.block_size) if self.pinned else 0
        return min(self.spare // bound, len(self._free_pinned) // kept) if kept else self.spare // bound

    def open(self, policy: Policy, max_append: int) -> Lane | None:
        """A lane that appends at most `max_append` tokens at a time; None when its bound does not fit."""
        bound = most_blocks(policy, self.block_size, max_append)
        kept = blocks_for(reach(policy)[1], self.block_size) if self.pinned else 0
        if (bound or 0) > self.spare or kept > len(self._free_pinned):
            return None
        lane = Lane(self, policy, max_append, bound)
        lane.pinned = [self._free_pinned.pop() for _ in range(kept)]
        self.reserved += bound or 0
        self._promised += bound or 0
        self._lanes.add(lane)
        return lane

    def check(self) -> None:
        """Raise when the accounts do not add up: a block lost, held twice, or promised twice."""
        held = [block for lane in self._lanes for block in lane.table.values()]
        if sorted(held + self._free) != list(range(self.total)):
            raise AssertionError(
                f"blocks lost or held twice: {len(held)} held, {self.free} free of {self.total}"
            )
        pinned = [block for lane in self._lanes for block in lane.pinned]
        if sorted(pinned + self._free_pinned) != list(range(self.pinned)):
            raise AssertionError(f"pinned blocks lost or held twice: {len(pinned)} held of {self.pinned}")
        owed = sum(lane.bound - lane.held for lane in self._lanes if lane.bound is not None)
        if owed != self._promised or self.spare < 0:
            raise AssertionError(f"{owed} blocks owed, {self._promised} promised, {self.free} free")

    def _lease(self, lane: Lane, count: int) -> list[int]:
        blocks = [self._free.pop() for _ in range(count)]
        if lane.bound is not None:
            self._promised -= count
        if self._on_lease and blocks:
            self._on_lease(blocks)
        return blocks

    def _release(self, lane: Lane, blocks: list[int]) -> None:
        self._free.extend(blocks)
        if lane.bound is not None:
            self._promised += len(blocks)
        if self._on_release and blocks:
            self._on_release(blocks)

    def _forget(self, lane: Lane) -> None:
        self._lanes.discard(lane)
        self._free_pinned.extend(lane.pinned)
        lane.pinned = []
        self.reserved -= lane.bound or 0
        self._promised -= lane.bound or 0


class Lane:
    """The blocks of one session, by logical number: index = logical number x block_size + offset.

    `table` maps logical to physical blocks in ascending order: pinned sink blocks, then the window's run.
    """

    def __init__(self, pool: BlockPool, policy: Policy, max_append: int, bound: int | None) -> None:
        self.policy = policy
        self.reach = reach(policy)  # (W, S)
        self.bound = bound
        self.length = 0  # tokens appended so far: the index of the next one
        self.table: dict[int, int] = {}
        self.pinned: list[int] = []  # blocks of the second kind, by logical number, where the pool has such
        self._pool = pool
        self._max_append = max_append
        self._end = 0  # next logical block to lease
        self._oldest = self.sink_blocks  # first logical block past the sinks still held

    @property
    def sink_blocks(self) -> int:
        """How many of the first blocks are pinned."""
        sinks = self.policy.sinks if isinstance(self.policy, Window) else 0
        return blocks_for(sinks, self._pool.block_size)

    @property
    def oldest(self) -> int:
        """The first logical block past the sinks that is, or will be, held."""
        return self._oldest

    @property
    def held(self) -> int:
        return len(self.table)

    def extend(self, tokens: int) -> bool:
        """Make room for `tokens` more; False, with nothing changed, when no blocks are to be had."""
        if self.bound is not None and tokens > self._most_at_once():
            raise ValueError(f"append of {tokens} tokens, at most {self._most_at_once()} fit the reservation")
        end = blocks_for(self.length + tokens, self._pool.block_size)
        wanted = max(0, end - self._end)
        if self.bound is None and wanted > self._pool.spare:
            return False
        self.table.update(zip(range(self._end, end), self._pool._lease(self, wanted), strict=True))
        self._end = max(end, self._end)
        self.length += tokens
        return True

    def retire(self) -> None:
        """Give back the blocks wholly behind the window; called between appends."""
        oldest = oldest_needed(self.policy, self.length) // self._pool.block_size
        gone = [self.table.pop(logical) for logical in range(self._oldest, min(oldest, self._end))]
        self._oldest += len(gone)
        self._pool._release(self, gone)

    def restart(self) -> None:
        """Drop everything and begin again at index 0; the reservation stays."""
        self._pool._release(self, list(self.table.values()))
        self.table.clear()
        self.length, self._end, self._oldest = 0, 0, self.sink_blocks

    def close(self) -> None:
        """Give everything back, the reservation too. Closing twice is no error."""
        if self in self._pool._lanes:
            self.restart()
            self._pool._forget(self)

    def _most_at_once(self) -> int:
        if isinstance(self.policy, Recycle):
            return self.policy.window - self.length
        return self._max_append
