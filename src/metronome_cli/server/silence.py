"""How long an engine that is to keep a beat has told of none, and has said nothing at all.

Knows:   what was heard last, which time counts, from when on the engine is busy and from when on it hangs.
Ignores: clocks (the time is told to it), calls, processes.

Only time in which we could have heard something counts, a little for each look. Who slept together with the
engine (a laptop that was shut, a frozen container) wakes up beside one that is as late as himself.

An engine without a beat is busy: nobody knows whether a frame will be answered. It hangs when not even a word
of a long tick comes. Times are seconds.
"""

from __future__ import annotations

from ..profile import Profile

LOOK_S = 0.25  # from one look to the next
_MOST_S = 1.0  # that one look may count: more of it we slept
_BUSY_S = 10.0  # without a beat, or half of what is a hang, where that is less
_LATE_FRAMES = 2  # that a beat may be late, beside both limits


class Silence:
    """Of one engine process, from the moment it is ready until it is over."""

    def __init__(self, profile: Profile) -> None:
        late_s, hang_s = _LATE_FRAMES * profile.beat.frame_s, profile.server.hang_s
        self.busy_s = min(_BUSY_S, hang_s / 2) + late_s
        self.hang_s = hang_s + late_s
        self.beatless_s = 0.0  # since the latest beat,
        self.mute_s = 0.0  # and since anything was said
        self._looked: float | None = None  # None: no beat is waited for
        self._spoke = False  # since then

    def begin(self, now: float) -> None:
        """A beat is waited for from now on; this one has come."""
        self.beatless_s = self.mute_s = 0.0
        self._looked = now

    def heard(self) -> None:
        """Something was said, a beat or not; the next look counts it."""
        self._spoke = True

    def stop(self) -> None:
        """The engine is over: no beat is waited for."""
        self.beatless_s = self.mute_s = 0.0
        self._looked = None

    def look(self, now: float) -> None:
        """Count the time since the last look."""
        if self._looked is not None:
            passed = min(now - self._looked, _MOST_S)
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
        return self.mute_s > self.hang_s
