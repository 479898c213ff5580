"""What a gateway counts: plain numbers, so that adding to one costs next to nothing.

Knows:   the engine's beats, callers' bytes, refusals, restarts; how its times are spread.
Ignores: Prometheus and its names (exposition.py), HTTP, who looks.

Counts only grow, over restarts of the engine too. Times are seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from ..profile import Profile
from ..tail import with_tail
from .messages import Beat, Ready

# Shares of the frame's period at which histograms are cut: closest where an answer is just in time.
BUDGET_CUTS = (
    0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3,
    4, 6, 8,
)  # fmt: skip
LATENESS_CUTS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 8)
_POINTS = (50, 90, 99)
_STEP = 0.001  # of a logarithm, between two fine counts
_LEAST = 1e-6  # seconds, or what is told of less


class Spread:
    """How values are spread: counted up to each bound, for a scraper, and finely, for percentiles.

    The fine counts are by a step of a thousandth: a percentile is true to 0.1 %, however many values there
    were, and takes no more room than some thousand numbers.
    """

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # the last one holds what is beyond all bounds
        self.fine: dict[int, int] = {}  # by step
        self.sum = 0.0
        self._most = -math.inf

    @classmethod
    def around(cls, frame_s: float, cuts: Iterable[float]) -> Spread:
        """Bounds at these shares of a frame, rounded so that they read as they were meant."""
        return cls(float(f"{frame_s * cut:.6g}") for cut in cuts)

    def add(self, value: float) -> None:
        # A value on a bound belongs below it.
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self._most = max(self._most, value)
        step = math.ceil(math.log(max(value, _LEAST)) / _STEP)
        self.fine[step] = self.fine.get(step, 0) + 1

    def since(self, fine: Mapping[int, int]) -> Spread:
        """The values that came after `fine` was a copy of our own, for percentiles alone."""
        later = Spread(self.bounds)
        # One call copies it, because another thread may add meanwhile.
        grown = ((step, count - fine.get(step, 0)) for step, count in self.fine.copy().items())
        later.fine = {step: count for step, count in grown if count}
        later._most = self._most
        return later

    def percentiles(self) -> dict[str, float | None] | None:
        """{"p50": ..., "p90": ..., "p99": ..., "max": ..., "n": how many values}, or None without values.

        Those of stats.percentiles to 0.1 %, and no p99 of fewer than FEWEST_FOR_P99 values.
        """
        steps = sorted(self.fine.items())
        upto, n = list(accumulate(count for _, count in steps)), sum(self.fine.values())
        if not n:
            return None

        def at(rank: int) -> float:
            return min(self._most, math.exp(_STEP * steps[bisect_right(upto, rank)][0]))

        found: dict[str, float | None] = {}
        for point in _POINTS:
            rank, part = divmod(point / 100 * (n - 1), 1)
            low, high = at(int(rank)), at(min(n - 1, int(rank) + 1))
            found[f"p{point}"] = low + part * (high - low)
        return with_tail(found, at(n - 1), n)


@dataclass(frozen=True, slots=True)
class Places:
    """Who is in and who may join, as the engine last told."""

    live: int
    cap: int  # most calls at a time,
    reason: str  # and what binds that
    room: int | None  # calls that the pool can still promise; None: unbounded

    def free(self, since: int) -> int:
        """Calls that would be let in, when `since` more are live than the engine told."""
        left = self.cap - self.live - since
        return max(0, left if self.room is None else min(left, self.room - since))


class Counts(msgspec.Struct, frozen=True):
    """What the callers of one gateway did, or of several."""

    opened: int = 0  # calls let in
    refused: dict[str, int] = {}  # by reason
    bytes_in: int = 0  # of events, as they come
    bytes_out: int = 0
    detached: int = 0  # calls kept at this moment for callers who lost their connection
    since: int = 0  # calls let in, less those over, since the latest beat
    served: int = 0  # beats in which it had calls

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.opened + other.opened,
            dict(Counter(self.refused) + Counter(other.refused)),
            self.bytes_in + other.bytes_in,
            self.bytes_out + other.bytes_out,
            self.detached + other.detached,
            self.since + other.since,
            self.served + other.served,
        )


class Metrics:
    """All counts of one gateway. Whoever sees something happen adds to a field here.

    Where there are several gateways, the first one is told of the others' counts: `whole` adds them up.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        frame_s = profile.beat.frame_s
        # What callers do; see Counts.
        self.opened = 0
        self.closed = 0  # of them, over
        self.refused: Counter[str] = Counter()
        self.detached = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self._served = 0  # beats in which there were calls
        # What is known of other gateways.
        self.elsewhere: dict[int, Counts] = {}
        self.gateways_lost = 0  # processes that died
        self._before = Counts()  # of those
        # What the engine does.
        self.engine_restarts = 0
        self.engine_busy = 0  # times that it was without a beat for so long that its callers were told,
        self.engine_hangs = 0  # and that it was ended for saying nothing
        self.served = 0  # beats in which calls got frames, whichever gateway they are of
        self.ticks = self.skipped = self.frames = self.speaking = self.empty = self.stalled = 0
        self.tokens_in = self.tokens_out = 0
        self.fell_mute = 0  # calls that were ever mute
        self.pool = 0 if profile.pool.blocks == "free" else profile.pool.blocks  # blocks, once they are known
        self.kv_most = 0  # of them, leased at the fullest moment
        self.failed = 0  # calls that could not go on
        self.tick_s = Spread.around(frame_s, BUDGET_CUTS)
        self.late_s = Spread.around(frame_s, LATENESS_CUTS)
        self.first_s = Spread.around(frame_s, BUDGET_CUTS)
        self.last_s = Spread.around(frame_s, BUDGET_CUTS)
        self.latest: Beat | None = None
        self.unrecorded = ""  # why nothing is written down any more, once that was so
        self._places = Places(0, 0, "starting", None)
        self._held = 0  # calls of this gateway when the latest beat came

    def beat(self, beat: Beat) -> None:
        """A tick is over."""
        tick = beat.tick
        self.latest = beat
        self._told(Places(beat.sessions, tick.cap, tick.cap_reason, beat.room), beat.unrecorded)
        self.ticks += 1
        self.skipped += tick.skipped
        self.served += tick.sessions > tick.stalled
        self._served += self.opened > self.closed
        self.frames += tick.sessions
        self.speaking += beat.speaking
        self.empty += tick.empty
        self.stalled += tick.stalled
        self.tokens_in += tick.tokens_in
        self.tokens_out += tick.tokens_out
        self.fell_mute += beat.fell_mute
        self.pool = tick.kv_total
        self.failed += tick.failed
        self.kv_most = max(self.kv_most, tick.kv_leased)
        self.late_s.add(tick.start - tick.due)
        took = tick.done - tick.start
        # Idle beats take no time, and would make the busy ones look shorter. One that overran was not idle:
        # its callers hung up before it was over.
        if tick.sessions or took > self.profile.beat.frame_s:
            self.tick_s.add(took)
        for spread, values in ((self.first_s, beat.firsts), (self.last_s, beat.lasts)):
            for value in values:
                spread.add(value)

    def engine_ready(self, told: Ready) -> None:
        """An engine process takes calls, and has not kept a beat yet."""
        self.latest = None
        self._told(Places(told.sessions, told.cap, told.cap_reason, told.room), told.unrecorded)

    def gateway_lost(self, number: int) -> Counts:
        """Another gateway is dead: what it counted stays counted, and its calls are the engine's to end.

        What it counted in that life.
        """
        self.gateways_lost += 1
        last = self.elsewhere.pop(number, Counts())
        self._before += msgspec.structs.replace(last, detached=0, since=0)
        return last

    @property
    def own(self) -> Counts:
        """What the callers of this gateway did."""
        return Counts(
            self.opened,
            self.refused,
            self.bytes_in,
            self.bytes_out,
            self.detached,
            self._since_beat(),
            self._served,
        )

    @property
    def whole(self) -> Counts:
        """What the callers of all gateways did, as far as this one was told."""
        return sum(self.elsewhere.values(), self.own + self._before)

    @property
    def live(self) -> int:
        """Sessions of the engine, those opened and closed since the latest beat included."""
        return max(0, self._places.live + self.whole.since)

    @property
    def cap(self) -> tuple[int, str]:
        """Most calls at a time and what binds that, as the engine last told."""
        return self._places.cap, self._places.reason

    @property
    def free(self) -> int:
        """Calls that would be let in now: places below the cap, as far as the pool has room for them."""
        return self._places.free(self.whole.since)

    def summary(self) -> dict[str, Any]:
        """A whole run in a report's `results`."""
        whole = self.whole
        return {
            "frame_s": self.profile.beat.frame_s,
            "calls": whole.opened,
            "refused": whole.refused,
            "ticks": self.ticks,
            "skipped_beats": self.skipped,
            "tick_s": self.tick_s.percentiles(),
            "tick_late_s": self.late_s.percentiles(),
            "freshness": {"first_s": self.first_s.percentiles(), "last_s": self.last_s.percentiles()},
            "frames": {"due": self.frames, "empty": self.empty, "stalled": self.stalled},
            "mute_calls": self.fell_mute,
            "failed_calls": self.failed,
            "tokens": {"in": self.tokens_in, "out": self.tokens_out},
            "bytes": {"in": whole.bytes_in, "out": whole.bytes_out},
            "kv": {"most_leased": self.kv_most, "total": self.pool},
            "engine_busy": self.engine_busy,
            "engine_hangs": self.engine_hangs,
            "engine_restarts": self.engine_restarts,
            "gateways_lost": self.gateways_lost,
        }

    def _told(self, places: Places, unrecorded: str) -> None:
        self._places, self._held = places, self.opened - self.closed
        self.unrecorded = self.unrecorded or unrecorded

    def _since_beat(self) -> int:
        return self.opened - self.closed - self._held
