"""How long an engine that is to keep a beat has told of none, and has said nothing at all.

Knows:   what was heard last, which time counts, from when on the engine is busy and from when on it hangs.
Ignores: clocks (the time is told to it), calls, processes.

Only time in which we could have heard something counts, a little for each look. Who slept together with the
engine (a laptop that was shut, a frozen container) wakes up beside one that is as late as himself.

An engine without a beat is busy: nobody knows whether a frame will be answered. It hangs when not even a word
of a long tick comes. One that loads its model owes no beat, only a sign now and then that it gets on, and how
seldom these may be the loads before it tell. Times are seconds.
"""

from __future__ import annotations

import math

from ..profile import Profile

LOOK_S = 0.25  # from one look to the next
_MOST_S = 1.0  # that one look may count: more of it we slept
_BUSY_S = 10.0  # without a beat, or half of what is a hang, where that is less
_LATE_FRAMES = 2  # that a beat may be late, beside both limits
# So many times as long as the longest load that came up, and a hang's limit, another may take without a sign:
# what was read from memory then may come from a slow disk now, and not every step of a load gives signs.
_SLOWER_LOAD = 3.0


class Silence:
    """Of one engine process after another, each from the moment it was started until it is over."""

    def __init__(self, profile: Profile) -> None:
        late_s, hang_s = _LATE_FRAMES * profile.beat.frame_s, profile.server.hang_s
        self.busy_s = min(_BUSY_S, hang_s / 2) + late_s
        self.hang_s = hang_s + late_s
        self.beatless_s = 0.0  # since the latest beat, once there was one,
        self.mute_s = 0.0  # and since anything was said
        self.loads = False  # a model loads: no beat is waited for yet
        self._loaded_s = 0.0  # for so long,
        self._longest_s: float | None = None  # and the longest that came up; None: none did
        self._looked: float | None = None  # None: nothing is waited for
        self._spoke = False  # since then

    def load(self, now: float) -> None:
        """A process was started, and loads its model."""
        self.stop()
        self.loads, self._looked, self._loaded_s, self._spoke = True, now, 0.0, False

    def begin(self, now: float) -> None:
        """A beat is waited for from now on; this one has come."""
        if self.loads:
            self.look(now)
            self._longest_s = max(self._longest_s or 0.0, self._loaded_s)
        self.loads = False
        self.beatless_s = self.mute_s = 0.0
        self._looked = now

    def heard(self) -> None:
        """Something was said, a beat or not; the next look counts it."""
        self._spoke = True

    def stop(self) -> None:
        """The engine is over: nothing is waited for."""
        self.loads = False
        self.beatless_s = self.mute_s = 0.0
        self._looked = None

    def look(self, now: float) -> None:
        """Count the time since the last look."""
        if self._looked is None:
            return
        passed = min(now - self._looked, _MOST_S)
        if self.loads:
            self._loaded_s += passed
        else:
            self.beatless_s += passed
        self.mute_s = 0.0 if self._spoke else self.mute_s + passed
        self._looked, self._spoke = now, False

    @property
    def is_busy(self) -> bool:
        """Whether it has told of no beat for so long that nobody knows whether another will come."""
        return self.beatless_s > self.busy_s

    @property
    def is_hung(self) -> bool:
        """Whether it has said nothing at all for so long that it is not worth waiting for."""
        return self.mute_s > (self._patience_s if self.loads else self.hang_s)

    @property
    def _patience_s(self) -> float:
        """With a load; without end, while nobody knows how long one takes here."""
        longest_s = self._longest_s
        return math.inf if longest_s is None else self.hang_s + _SLOWER_LOAD * longest_s
