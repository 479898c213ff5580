"""One call's frames as its caller meets them: which tokens belong to which frame, and how fresh they are.

Knows:   the call's first sample, arrival times, tick events.
Ignores: sockets, other calls, and what is concluded.

A tick event closes its frame: the tokens since the previous one belong to it. The frame was due when its
last sample was due on the caller's own clock, so neither clock needs to know the other.
"""

from __future__ import annotations

import math
from array import array

from ..speech import PACKET_S
from ..trace import FrameRecord
from ..wire import TickEvent


class CallFrames:
    """Turns what arrives into one FrameRecord per frame. All times are seconds of the caller's clock."""

    def __init__(self, session: int, start: float, arm: str = "") -> None:
        self.start = start  # when sample 0 was due
        self.tokens = array("d")  # arrivals of text and of audible sound, for servers that send no tick event
        self._outputs = array("d")  # of all that is said, silence too
        self._sounds = False  # whether any of it was sound
        self._session = session
        self._arm = arm
        self._lags = array("d")
        self._open = 0  # first token of the frame that is not closed yet
        self._said: list[str] = []

    def sent(self, packet: int, at: float) -> float:
        """Note that `packet` left at `at`; returns when that was due: when its last sample was."""
        due = self.due(packet)
        self._lags.append(at - due)
        return due

    def due(self, packet: int) -> float:
        """When the last sample of `packet` (from 0) is there to be sent."""
        return self.start + (packet + 1) * PACKET_S

    @property
    def lags(self) -> array[float]:
        """How late each packet left, in seconds: our own doing, whatever the server did."""
        return self._lags

    def token(self, at: float, text: str) -> None:
        """A token arrived; its text may be empty."""
        self.tokens.append(at)
        self._outputs.append(at)
        self._said.append(text)

    def sound(self, at: float, audible: bool) -> None:
        """Sound arrived, of a token of its own or of one whose text came just before."""
        self._sounds = True
        self._outputs.append(at)
        self._said.append("")
        if audible:
            self.tokens.append(at)

    def ended(self, at: float) -> None:
        """A reply ended: where nothing else came in this frame, its last token said nothing but that."""
        if len(self._outputs) == self._open:
            self._outputs.append(at)
            self._said.append("")

    def close(self, event: TickEvent) -> FrameRecord:
        """The frame that `event` closes."""
        # Ticks are asked for once the call has begun: a frame before that leaves its tokens here.
        most = event.tokens_out * (2 if self._sounds else 1)  # a token may be a text and a sound
        fresh = max(self._open, len(self._outputs) - most)
        arrived = self._outputs[fresh:]
        record = FrameRecord(
            session=self._session,
            age_s=event.audio_end_ms / 1000,
            frame=event.frame,
            tick=event.tick,
            due=self.start + event.audio_end_ms / 1000,
            audio_end_ms=event.audio_end_ms,
            first=arrived[0] if arrived else None,
            last=arrived[-1] if arrived else None,
            tokens_in=event.tokens_in,
            tokens_out=min(len(arrived), event.tokens_out),
            blocks=event.kv_blocks,
            stalled=event.stalled,
            speaking=event.speaking,
            heard=event.heard,
            said="".join(self._said[fresh - self._open :]),
            lag=self._lag_of(event.audio_end_ms / 1000),
            arm=self._arm,
        )
        self._open = len(self._outputs)
        self._said.clear()
        return record

    def _lag_of(self, end_s: float) -> float:
        """How late the packet left that holds the sample at `end_s` seconds of the call."""
        packet = math.ceil(round(end_s / PACKET_S, 6)) - 1
        return self._lags[packet] if 0 <= packet < len(self._lags) else 0.0
