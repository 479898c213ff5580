"""One simulated device: the blocks that its calls hold, as counts, without a model and without frames.

Knows:   retention policies, how many tokens calls bring and say, a pool's accounts.
Ignores: time, ticks, admission (simulator.py), which block is whose.

To the block it does what a model over engine/blocks.py does (tests/runtime/test_simulator.py). Calls are
alike: one that gets every block it asks for is after k frames where any other is, so a table serves all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from numpy.typing import NDArray

from ..errors import ProfileError
from ..frame import KvUsage
from ..profile import Profile
from ..window import Policy, Recycle, blocks_for, most_blocks, oldest_needed, reach

Counts = NDArray[np.int64]

# What a call's latest tick was to it, as a row; all but the last two add up to the tick of a device.
_COLUMNS = 9
(_SERVED, _OLDER, _IN, _OUT, _STALLED, _EMPTY, _GROWN, _HELD, _LENGTH) = range(_COLUMNS)


@dataclass(frozen=True, slots=True)
class Load:
    """What one call brings to a tick and says in it, in tokens."""

    heard: float  # in the mean
    said: float  # in the mean
    header: int  # read in its first frame, before anything else


@dataclass(frozen=True, slots=True)
class Served:
    """One tick, over the calls that are live at its end."""

    sessions: int
    older: int  # of the sessions, those that the tick before served too,
    tokens_in: int
    tokens_out: int
    stalled: int
    empty: int
    grown: int  # and the blocks that those took since then, less what they gave back


class Course:
    """A call's way, frame by frame, while it gets every block that it asks for."""

    def __init__(self, profile: Profile, load: Load) -> None:
        """ProfileError when the profile's pool or beat cannot take the load."""
        self.policy: Policy = profile.check_fit(load.header)
        self.block_size = profile.pool.block_size
        self.bound = most_blocks(self.policy, self.block_size, profile.beat.prefill_tokens)
        for name, tokens, most in (
            ("heard", load.heard, profile.beat.prefill_tokens),
            ("said", load.said, profile.beat.tau),
        ):
            if not 0 <= tokens <= most:
                raise ProfileError(
                    name, tokens, f"use 0 to {most} tokens a frame, what the profile's beat takes"
                )
        self._load = load
        self._most = profile.beat.prefill_tokens
        self._waiting = load.header  # tokens, to be read after the last row's frame
        self.rows_KC: Counts = np.zeros((1, _COLUMNS), np.int64)  # row k: after k frames

    def extend(self, frames: int) -> None:
        """Know the row of `frames`, and of as many again: it is asked for one frame at a time."""
        if frames < len(self.rows_KC):
            return
        rows = [tuple(self.rows_KC[-1].tolist())]
        for frame in range(len(self.rows_KC), 2 * frames + 1):
            rows.append(self._after(frame, rows[-1][_HELD], rows[-1][_LENGTH]))
        self.rows_KC = np.vstack((self.rows_KC, rows[1:]))

    def _after(self, frame: int, before: int, length: int) -> tuple[int, ...]:
        self._waiting += _whole(self._load.heard, frame)
        heard, said = min(self._waiting, self._most), _whole(self._load.said, frame)
        self._waiting -= heard
        for tokens in (heard, *[1] * said):
            if isinstance(self.policy, Recycle) and length + tokens > self.policy.window:
                length = self.policy.carry
            length += tokens
        held, older = self._held(length), int(frame > 1)
        return (1, older, heard, said, 0, 0, older * (held - before), held, length)

    def _held(self, length: int) -> int:
        """Blocks of a call of this length, once what fell out of its window is given back."""
        end = blocks_for(length, self.block_size)
        pinned = blocks_for(reach(self.policy)[1], self.block_size)
        oldest = max(pinned, oldest_needed(self.policy, length) // self.block_size)
        return min(end, pinned) + max(0, end - oldest)


def _whole(mean: float, frame: int) -> int:
    """Tokens of frame number `frame`, from 1 on: whole ones, `mean` a frame in the long run."""
    return floor(frame * mean) - floor((frame - 1) * mean)


class Device:
    """A pool of `blocks` and its calls. Calls are numbered by their caller; a number is used once."""

    def __init__(self, blocks: int, course: Course) -> None:
        self.blocks = blocks
        self.leased = 0
        self._course = course
        self._calls: list[int] = []
        self._frames_N: Counts = np.zeros(0, np.int64)
        self._rows_NC: Counts = np.zeros((0, _COLUMNS), np.int64)
        self._behind = False  # some call got no block once: the table does not tell where it is

    def __len__(self) -> int:
        return len(self._calls)

    def open(self, call: int) -> bool:
        """Take a call, if the pool can promise its blocks; one without a bound is promised none."""
        if (self._course.bound or 0) > self._spare():
            return False
        self._calls.append(call)
        self._frames_N = np.append(self._frames_N, 0)
        self._rows_NC = np.vstack((self._rows_NC, self._course.rows_KC[0]))
        return True

    def close(self, call: int) -> None:
        """Give back the blocks of a call that is open."""
        place = self._calls.index(call)
        self.leased -= int(self._rows_NC[place, _HELD])
        del self._calls[place]
        self._frames_N = np.delete(self._frames_N, place)
        self._rows_NC = np.delete(self._rows_NC, place, axis=0)

    def tick(self) -> Served:
        """Serve every call one frame."""
        if not self._calls:
            return self.served()
        self._frames_N += 1
        self._course.extend(int(self._frames_N.max()))
        rows_NC = self._course.rows_KC[self._frames_N]
        if self._course.bound is None and (self._behind or rows_NC[:, _HELD].sum() > self.blocks):
            rows_NC = self._in_turn(rows_NC)
        self._rows_NC = rows_NC
        self.leased = int(rows_NC[:, _HELD].sum())
        return self.served()

    def served(self) -> Served:
        """What the latest tick did, as far as its calls are live still."""
        return Served(*self._rows_NC[:, : _GROWN + 1].sum(axis=0).tolist())

    def usage(self) -> KvUsage:
        """The pool as it stands."""
        bound, spare = self._course.bound, self._spare()
        if bound is None:
            return KvUsage(self.leased, 0, self.blocks, None if spare > 0 else 0)
        return KvUsage(self.leased, len(self) * bound, self.blocks, spare // bound)

    def _spare(self) -> int:
        """Blocks that nobody holds or was promised."""
        bound = self._course.bound
        return self.blocks - (self.leased if bound is None else len(self) * bound)

    def _in_turn(self, due_NC: Counts) -> Counts:
        """Calls without a bound on a pool that has not enough for all: what each reads, then token by token,
        in lock-step. Who gets no block stalls, and is out of this tick."""
        turns = [_Turn(*row) for row in self._rows_NC[:, [_LENGTH, _HELD]].tolist()]
        spare, block_size = self._spare(), self._course.block_size
        dues = list(zip(turns, due_NC[:, _IN].tolist(), due_NC[:, _OUT].tolist(), strict=True))
        for turn, read, _ in dues:
            spare -= turn.append(read, spare, block_size)
            turn.read = 0 if turn.stalled else read
        for step in range(max(say for _, _, say in dues)):
            for turn, _, say in dues:
                if step < say and not turn.stalled:
                    spare -= turn.append(1, spare, block_size)
                    turn.said += not turn.stalled
        rows_NC = due_NC.copy()
        changed = [_IN, _OUT, _STALLED, _EMPTY, _HELD, _LENGTH]
        rows_NC[:, changed] = [turn.row() for turn in turns]
        rows_NC[:, _GROWN] = rows_NC[:, _OLDER] * (rows_NC[:, _HELD] - self._rows_NC[:, _HELD])
        self._behind = bool((rows_NC[:, _LENGTH] != due_NC[:, _LENGTH]).any())
        return rows_NC


@dataclass(slots=True)
class _Turn:
    """One call in a tick that not all get through."""

    length: int
    held: int
    read: int = 0
    said: int = 0
    stalled: bool = False

    def append(self, tokens: int, spare: int, block_size: int) -> int:
        """The blocks taken; where there are too few, none, and it stalls."""
        wanted = blocks_for(self.length + tokens, block_size) - self.held
        if wanted > spare:
            self.stalled = True
            return 0
        self.length += tokens
        self.held += wanted
        return wanted

    def row(self) -> tuple[int, ...]:
        empty = self.stalled and not self.said
        return (self.read, self.said, self.stalled, empty, self.held, self.length)
