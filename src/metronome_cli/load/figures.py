"""Figures over the frames of a run: freshness, its slope, silence, cadence, waits after speech.

Knows:   frame records, and what a caller could know of a frame.
Ignores: how the records came about, and what is concluded. Everything here is arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from ..stats import percentiles, theil_sen
from ..tail import end_of, with_tail
from ..trace import FrameRecord
from .call import Call

# A healthy frame is closed within one period of its due time, and the next is due one period later: when the
# last one alive lies further back than this many periods, the server has gone quiet.
_QUIET_PERIODS = 3.0
_MINUTE = 60.0


def cuts(values: Sequence[float], points: Sequence[float] = (50, 90, 99)) -> dict[str, float | None] | None:
    """Percentiles, the largest value ("max") and how many values they are of ("n"); None without values.

    Of too few values for one, p99 is None.
    """
    found = percentiles(values, points)
    return None if found is None else with_tail(found, float(max(values)), len(values))


def tail(found: Mapping[str, float | None]) -> float:
    """p99 of `cuts`; of so few values that one in a hundred is none of them, the largest."""
    value = found[end_of(found)]
    assert value is not None  # noqa: S101
    return value


def freshness(frames: Iterable[FrameRecord]) -> dict[str, Any] | None:
    """Seconds from a frame's due time to its first and last token; None when no frame brought one.

    `first_less_lag` takes out what the caller itself was late with the frame's last sample.
    """
    spoken = [frame for frame in frames if frame.first is not None and frame.last is not None]
    if not spoken:
        return None
    return {
        "first_s": cuts([f.first - f.due for f in spoken if f.first is not None]),
        "last_s": cuts([f.last - f.due for f in spoken if f.last is not None]),
        "first_less_lag_s": cuts([f.first - f.due - f.lag for f in spoken if f.first is not None]),
    }


def slope(frames: Sequence[FrameRecord]) -> dict[str, float] | None:
    """Theil-Sen slope of the freshness of the first token against session age, in s per minute of age.

    With its 95 % interval; None without two ages. Work that grows with a call's age makes it positive.
    """
    spoken = [(frame.age_s, frame.first - frame.due) for frame in frames if frame.first is not None]
    found = theil_sen([age / _MINUTE for age, _ in spoken], [late for _, late in spoken])
    if found is None:
        return None
    return {"s_per_min": found.estimate, "low": found.low, "high": found.high}


def alive(frame: FrameRecord) -> bool:
    """Whether a frame did what it was to do: it brought a token, or had none to bring and was not stalled."""
    return frame.first is not None or not (frame.stalled or frame.speaking)


def silence(
    frames: Sequence[FrameRecord], end: float, period_s: float | None, start: float = 0.0
) -> float | None:
    """The first moment from which no session got anything but stalled, empty or missing frames until `end`.

    In seconds from `start`: when the first such frame was due. None while somebody is still served, and None
    for servers that tell no ticks: without due times nobody can say that a frame is missing.
    """
    if period_s is None or not frames:
        return None
    last_alive = max((frame.due for frame in frames if alive(frame)), default=None)
    if last_alive is None:
        return min(frame.due for frame in frames) - start
    if end - last_alive <= _QUIET_PERIODS * period_s:
        return None
    return min((f.due for f in frames if f.due > last_alive), default=last_alive + period_s) - start


def last_hung_up(calls: Sequence[Call], end: float) -> float:
    """Until when somebody was on the line: nobody can go silent after that."""
    return max((call.ended or end for call in calls if call.frames), default=end)


def waits_after_speech(call: Call) -> list[float]:
    """Seconds from each end of speech to the first token after it: all that a server without ticks shows.

    It flatters a server that is still answering something older, so it never stands in for freshness.
    """
    if call.frames is None:
        return []
    tokens = call.frames.tokens
    ends = [call.frames.start + end for end in call.stream.speech_ends()]
    waits = []
    for end, following in pairwise([*ends, math.inf]):
        first = bisect_left(tokens, end)
        if first < len(tokens) and tokens[first] < following:
            waits.append(tokens[first] - end)
    return waits


@dataclass(frozen=True, slots=True)
class Missed:
    """A frame that was due and never told, with what a FrameRecord says of one, in the same seconds."""

    session: int
    due: float
    age_s: float


def missed_frames(call: Call, frames: Sequence[FrameRecord], end: float, period_s: float) -> list[Missed]:
    """Frames between a call's first tick event and its end that were never told; `frames` are its others.

    Beats lie on a grid, a period apart. One after the last frame counts once its own period is over: until
    then its frame may still come in time.
    """
    if not frames:
        return []
    # A frame is due when its last sample is. The first one after a stand-still may hold hardly any of what
    # was said meanwhile, and be due long before its beat was: where the grid lies, most of them tell.
    grid = median(frame.due - frame.tick * period_s for frame in frames)
    last = frames[-1].tick
    late = int(((call.ended or end) - grid - last * period_s) // period_s) - 1
    ticks = [tick for one, next_ in pairwise(frames) for tick in range(one.tick + 1, next_.tick)]
    ticks += range(last + 1, last + late + 1)
    began = frames[0].due - frames[0].age_s
    dues = (grid + tick * period_s for tick in ticks)
    return [Missed(call.number, due, due - began) for due in dues]
