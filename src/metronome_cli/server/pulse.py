"""What the engine process tells of each tick as a whole: one `messages.Beat`.

Knows:   the frames of the tick that goes on, and which calls are mute.
Ignores: sockets, and who listens.
"""

from __future__ import annotations

import logging

from ..profile import Profile
from ..runtime.sessions import Session
from ..trace import FrameRecord, TickRecord
from .messages import Beat

_log = logging.getLogger(__name__)


class Pulse:
    """Gathers the frames of one tick after another."""

    def __init__(self, profile: Profile) -> None:
        self._mute_s = profile.server.mute_s
        self._free = profile.model.mode == "free"
        self._begin()

    def _begin(self) -> None:
        self._speaking = self._mute = self._fell_mute = 0
        self._firsts: list[float] = []
        self._lasts: list[float] = []

    def frame(self, frame: FrameRecord, session: Session) -> None:
        """A frame of the tick is closed."""
        self._speaking += frame.speaking
        if frame.first is not None and frame.last is not None:
            self._firsts.append(frame.first - frame.due)
            self._lasts.append(frame.last - frame.due)
        self._watch(session, frame)

    def close(self, tick: TickRecord, live: int, room: int | None, unrecorded: str = "") -> Beat:
        """The tick is over; the next one begins empty. For `room` and `unrecorded` see messages.Beat."""
        beat = Beat(
            tick,
            speaking=self._speaking,
            sessions=live,
            room=room,
            mute=self._mute,
            fell_mute=self._fell_mute,
            firsts=self._firsts,
            lasts=self._lasts,
            unrecorded=unrecorded,
        )
        self._begin()
        return beat

    def _watch(self, session: Session, frame: FrameRecord) -> None:
        """Say it, once a call, when somebody speaks to a model that says nothing."""
        unanswered = session.unanswered
        unanswered.answered(frame.speaking, frame.said, frame.due)
        if not unanswered.is_mute(self._mute_s, self._free, frame.due):
            return
        self._mute += 1
        if not unanswered.told:
            unanswered.told = True
            self._fell_mute += 1
            _log.warning("session %d is mute: %g s of sound without a word since", session.id, self._mute_s)
