"""A step's rows as the flat integers that kernels read: places, rotary positions, tasks, block table.

Knows:   lanes, masks' reach, how tokens are cut into tasks.
Ignores: devices and tensors: it is all numpy, made anew for every step, without a loop over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from .rows import Row

# Fields of a task, int32: where its tokens begin in the step, and how many they are; where its session's
# blocks begin in the table (sinks first), and where in them the window's run begins; then, counted from the
# run's first place: its first token, the first place past the sinks; the window W; its first token's index,
# no larger than matters to sinks; the sinks S.
FIELDS = 9
_FAR = 2**30  # farther than any two tokens that matter to each other; kernels count in 32 bits

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Laid:
    """T tokens of R rows. Rotary positions are [T, A]."""

    place_T: Integers  # in the flattened pool; where sinks lie apart, of a sink: in scratch
    sink_place_T: Integers | None  # in the flattened pinned blocks, or -1; None where sinks do not lie apart
    rotary_TA: Integers
    at_sinks_TA: Integers  # where a query stands when it looks at the sinks (rope.anchored)
    tasks: NDArray[np.int32]  # [tasks, FIELDS]
    table: NDArray[np.int32]  # blocks of all rows, one after the other
    end_R: Integers  # each row's last token


def lay_out(
    rows: Sequence[Row], block_size: int, axes: int, tokens_a_task: int, scratch: int | None = None
) -> Laid:
    """`rows`, whose lanes have just been extended by their tokens.

    `scratch`: the block of nobody, given where sinks lie apart: each row's pinned blocks then come first in
    the table, and its others after them.
    """
    lanes = [row.session.lane for row in rows]
    count_R = np.fromiter((row.tokens for row in rows), np.int64, len(rows))
    start_R = np.fromiter((lane.length for lane in lanes), np.int64, len(rows)) - count_R
    reach_R2 = np.array([lane.reach for lane in lanes], np.int64)
    window_R, sinks_R = reach_R2.T
    pinned_R = np.fromiter((lane.sink_blocks for lane in lanes), np.int64, len(rows))
    oldest_R = np.fromiter((lane.oldest for lane in lanes), np.int64, len(rows))
    apart_R = np.fromiter((len(lane.pinned) for lane in lanes), np.int64, len(rows))
    held_R = apart_R + np.fromiter((lane.held for lane in lanes), np.int64, len(rows))
    table = np.fromiter(
        chain.from_iterable(chain(lane.pinned, lane.table.values()) for lane in lanes), np.int32
    )
    offset_R = np.cumsum(held_R) - held_R
    # A lane's table lists its sink blocks, then its run: how far a logical block stands from its number.
    to_sinks_R, to_run_R = apart_R, apart_R + pinned_R - oldest_R

    row_T = np.repeat(np.arange(len(rows)), count_R)
    first_R = np.cumsum(count_R) - count_R
    index_T = start_R[row_T] + np.arange(len(row_T)) - first_R[row_T]
    logical_T, within_T = index_T // block_size, index_T % block_size
    column_T = logical_T + np.where(logical_T < pinned_R[row_T], to_sinks_R[row_T], to_run_R[row_T])
    place_T = table[offset_R[row_T] + column_T].astype(np.int64) * block_size + within_T
    sink_place_T = None
    if scratch is not None:
        is_sink_T = index_T < sinks_R[row_T]
        sink_T = table[offset_R[row_T] + np.where(is_sink_T, logical_T, 0)].astype(np.int64)
        sink_place_T = np.where(is_sink_T, sink_T * block_size + within_T, -1)
        place_T = np.where(is_sink_T, scratch * block_size, place_T)

    rotary_TA = _rotary(rows, count_R, row_T, first_R, axes)
    is_anchored_R = np.fromiter((row.session.positions == "anchored" for row in rows), bool, len(rows))
    shift_T = np.maximum(index_T - (sinks_R + window_R - 1)[row_T], 0) * is_anchored_R[row_T]

    run_R = np.maximum(sinks_R, start_R - window_R + 1) // block_size  # where the window's run begins
    run_column_R = run_R + np.where(run_R < pinned_R, to_sinks_R, to_run_R)
    seen = Seen(offset_R, run_column_R, run_R * block_size, start_R, window_R, sinks_R)
    tasks = _tasks(count_R, first_R, seen.fields(), tokens_a_task)
    at_sinks_TA = rotary_TA - shift_T[:, None]
    return Laid(place_T, sink_place_T, rotary_TA, at_sinks_TA, tasks, table, first_R + count_R - 1)


@dataclass(frozen=True, slots=True)
class Seen:
    """What each row's first token sees, [R] each."""

    offset_R: Integers  # of its blocks in the table
    run_R: Integers  # of the window's run in them
    base_R: Integers  # index at which that run begins
    start_R: Integers
    window_R: Integers
    sinks_R: Integers

    def fields(self) -> Integers:
        """[R, FIELDS - 2]: those of a task but its tokens."""
        return np.stack(
            (
                self.offset_R,
                self.run_R,
                self.start_R - self.base_R,
                np.maximum(self.sinks_R - self.base_R, -_FAR),
                np.minimum(self.window_R, _FAR),
                np.minimum(self.start_R, _FAR),
                self.sinks_R,
            ),
            axis=1,
        )


def _rotary(
    rows: Sequence[Row], count_R: Integers, row_T: Integers, first_R: Integers, axes: int
) -> Integers:
    starts_R = np.fromiter((row.rotary_start for row in rows), np.int64, len(rows))
    counted_T = starts_R[row_T] + np.arange(len(row_T)) - first_R[row_T]
    rotary_TA = np.repeat(counted_T[:, None], axes, axis=1)
    for row, first, count in zip(rows, first_R.tolist(), count_R.tolist(), strict=True):
        if row.rotary is not None:
            rotary_TA[first : first + count] = row.rotary.cpu().numpy()
    return rotary_TA


def _tasks(count_R: Integers, first_R: Integers, fields_R: Integers, tokens_a_task: int) -> NDArray[np.int32]:
    """Rows cut into pieces of at most `tokens_a_task`; `fields_R` as of each row's first token."""
    pieces_R = -(-count_R // tokens_a_task)
    row_K = np.repeat(np.arange(len(count_R)), pieces_R)
    piece_K = np.arange(len(row_K)) - (np.cumsum(pieces_R) - pieces_R)[row_K]
    behind_K = piece_K * tokens_a_task  # tokens of the row before this piece
    tasks = np.empty((len(row_K), FIELDS), np.int32)
    tasks[:, 0] = first_R[row_K] + behind_K
    tasks[:, 1] = np.minimum(count_R[row_K] - behind_K, tokens_a_task)
    tasks[:, 2:] = fields_R[row_K]
    tasks[:, 4] += behind_K.astype(np.int32)
    tasks[:, 7] = np.minimum(tasks[:, 7].astype(np.int64) + behind_K, _FAR)
    return tasks
