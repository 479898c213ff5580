"""The server's beats, put together from the tick events of all calls.

Knows:   tick events of several calls and when they arrived.
Ignores: sockets, files, freshness.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..trace import FrameRecord, TickRecord
from ..wire import TickEvent

Keep = Callable[[TickRecord, Sequence[FrameRecord]], None]


class TickBook:
    """One TickRecord per beat, handed to `keep` with its frames once no call can still add to it.

    A server's clock may be another machine's, so its times are moved to the caller's: `done` is when the
    first tick event arrived, `due` lies as long before it as the server says. When a tick began is not told.
    """

    def __init__(self, keep: Keep, arm: str = "") -> None:
        self._keep = keep
        self._arm = arm
        self._open: dict[int, tuple[TickRecord, list[FrameRecord]]] = {}
        self._first: TickEvent | None = None
        self._newest: TickEvent | None = None

    def add(self, event: TickEvent, frame: FrameRecord, at: float, bounded: bool | None = None) -> None:
        """Count one call's share of a beat, which arrived at `at`; `bounded`: whether its cache is."""
        if event.tick not in self._open:
            self._begin(event, at, bounded)
        record, frames = self._open[event.tick]
        record.bounded = _all(record.bounded, bounded)
        frames.append(frame)
        record.sessions += 1
        record.stalled += frame.stalled
        record.empty += frame.empty
        record.tokens_in += frame.tokens_in
        record.tokens_out += frame.tokens_out

    def flush(self) -> None:
        """Hand over everything, oldest first."""
        self._close_before(max(self._open, default=0) + 1)

    @property
    def period_s(self) -> float | None:
        """Seconds between two beats, by the server's due times; None before there are two ticks."""
        if self._first is None or self._newest is None or self._newest.tick == self._first.tick:
            return None
        period_s = (self._newest.due - self._first.due) / (self._newest.tick - self._first.tick)
        return period_s if period_s > 0 else None  # a server whose clock stands still tells no period

    def _begin(self, event: TickEvent, at: float, bounded: bool | None) -> None:
        # Two beats on, every call's event of a beat has been read: the server sends them together.
        self._close_before(event.tick - 1)
        self._first = self._first or event
        self._newest = event
        due = at - (event.done - event.due)
        record = TickRecord(
            tick=event.tick,
            due=due,
            start=due,
            done=at,
            skipped=event.skipped,
            kv_leased=event.kv_leased,
            kv_total=event.kv_total,
            bounded=bounded,
            arm=self._arm,
        )
        self._open[event.tick] = (record, [])

    def _close_before(self, tick: int) -> None:
        for number in sorted(n for n in self._open if n < tick):
            self._keep(*self._open.pop(number))


def _all(one: bool | None, other: bool | None) -> bool | None:
    """Whether both are so; None where one does not tell."""
    return None if one is None or other is None else one and other
