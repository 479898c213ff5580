"""One call's messages to the engine, and how many bytes of them may be on their way.

Knows:   the session's number, what was sent, how much of it the engine has taken.
Ignores: what is said, and when the engine says that it has taken it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..errors import InputError
from ..frame import SessionId
from ..profile import Profile
from . import messages
from .link import EngineLink

_OVERHEAD = 128  # bytes that a message costs on the line beside its contents
_SHARE = 2  # the line may hold this many times what a session may: small packets cost more there


class Line:
    """Bounded: a caller who sends faster than the engine takes is refused here, and costs no memory."""

    def __init__(self, link: EngineLink, profile: Profile) -> None:
        self.session: SessionId = 0
        self.taken = 0  # bytes, by the latest mark that came back
        self._link = link
        self._limit = f"at most {profile.server.max_pending_s:g} s (server.max_pending_s)"
        self._most = int(_SHARE * 4 * profile.model.rate * profile.server.max_pending_s)
        self._sent = 0

    def say(self, kind: Callable[..., messages.ToSession], *fields: object, size: int = 0) -> None:
        """Send one message: session and mark go in front of its fields. `size` counts its contents in bytes.

        InputError, and nothing sent, when too much waits.
        """
        self.check_room(size)
        self.follow(kind, *fields, size=size)

    def follow(self, kind: Callable[..., messages.ToSession], *fields: object, size: int = 0) -> None:
        """Send what follows from something that was taken before: it is too late to refuse it."""
        self._sent += size + _OVERHEAD
        self._link.send(kind(self.session, self._sent, *fields))

    def check_room(self, size: int, field: str = "event") -> None:
        """InputError, of `field`, when `size` bytes more are too many."""
        waiting = self._sent - self.taken + size + _OVERHEAD
        if waiting > self._most:
            silent_s = self._link.silent_s
            cure = "send at the pace of speech, or a recording in parts, a tick for each"
            if silent_s:  # the caller did nothing wrong
                cure = f"the engine has taken none for {silent_s:.0f} s; wait until it answers, or call anew"
            cure = f"{self._limit} may wait for a tick, {self._most} bytes on the line: {cure}"
            raise InputError("buffer_full", field, f"{waiting} bytes", cure)

    def close(self) -> None:
        """The session is over; its blocks go back at once."""
        self._link.close(self.session)
