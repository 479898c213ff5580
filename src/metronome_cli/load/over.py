"""Whether a server is still worth a call, by its own last words.

Knows:   which words mean that it comes again and which that it is over, as docs/protocol.md has them.
Ignores: sockets, how long anybody waits before he dials, and what is concluded.

A refusal says by its Retry-After that one may come again; ours leaves it out once there will be no engine any
more. A call that is cut off says who ended it. An engine may come back, and then its gateway, which goes on,
answers with 503; a server that said that it goes down may have another in its place. Where nobody answers
after such words, it is over. A line that breaks without a word says nothing: it is dialled as before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..wire import CLOSE_DRAINED
from .call import Call

GOING_DOWN = (CLOSE_DRAINED, 1001)  # close codes of a server that ends
_NO_ENGINE = "engine_dead"
_LAST_WORDS = (_NO_ENGINE, "engine_hung", "server_draining")  # `error` events before a call is cut off


@dataclass(frozen=True, slots=True)
class Over:
    """When it was clear that nobody need be called any more, in seconds of the caller's clock, and why."""

    at: float
    why: str


class LastWords:
    """What a server said to the calls that it ended or did not take."""

    def __init__(self) -> None:
        self._said = ""
        self._at = 0.0

    def heed(self, call: Call, calls: Iterable[Call], now: float) -> Over | None:
        """Take in how an attempt of `call`, one of `calls`, came out; what that says of the server."""
        if call.fate == "cut_off" and (said := _goodbye(call)):
            self._said, self._at = said, now
        if call.fate == "refused" and call.refusals and _is_final(call):
            return Over(now, f"it refused a call with {call.why}, and told no time to come again")
        if call.fate == "unreachable" and self._said and not self._came_back(calls):
            return Over(now, f"it had said {self._said}, and then nobody answered")
        return None

    def _came_back(self, calls: Iterable[Call]) -> bool:
        return any(call.frames and call.frames.start > self._at for call in calls)


def _is_final(call: Call) -> bool:
    last = call.refusals[-1]
    return call.why == last.reason == _NO_ENGINE and last.retry_after_s is None


def _goodbye(call: Call) -> str:
    """The words with which the server, or its engine, went; nothing where it said none."""
    said = next((code for code in _LAST_WORDS if call.errors[code]), "")
    return said or (f"goodbye ({call.closed})" if call.closed in GOING_DOWN else "")
