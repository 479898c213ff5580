"""Sound in, no text out: how much of what a caller said was never answered.

Knows:   loudness in 20 ms hops, who is to speak when, and which words reset the count.
Ignores: what was said, who is told, and how much is too much (profile: server.mute_s).

A model can be healthy by every other number and still say nothing, or nothing but blanks, to somebody who
talks to it. Sound is not speech: a radio in the room counts too. The count is an alarm, not a verdict.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..frame import Frame
from ..speech import RATE, SOUND

HOP_S = 0.02
PAUSE_S = 2.0  # silence after which a caller waits for an answer; ears end an utterance far sooner


class Unanswered:
    """Sound of one call since its last visible word, in seconds of its own audio.

    A model that never rests owes everything at once. Where it answers turns, only finished ones are owed an
    answer: nobody is to speak while the caller still does, however long that takes. A turn is over when a
    reply is asked for, when the model is to speak, and in a duplex call also with a commit or after PAUSE_S
    of silence, which a deaf model would miss.
    """

    def __init__(self, rate: int = RATE) -> None:
        self._hop = round(rate * HOP_S)  # samples
        self.told = False  # whether the call has been reported as mute: once is enough for a log
        self._duplex = True
        self._open = 0  # hops with sound in a turn that is not over
        self._owed = 0  # hops with sound in turns that are
        self._since: float | None = None  # when the oldest of them was seen to be over
        self._hush = 0  # hops of silence since the last sound
        self._rest = np.zeros(0, np.float32)  # of a hop

    def is_mute(self, mute_s: float, free: bool, now: float) -> bool:
        """Whether `mute_s` of sound wait for a word; `free`: the model speaks on without being asked.

        Turns must have waited for `mute_s` too: the answer to a long one begins a little after its end.
        """
        if free and self._duplex:
            return (self._owed + self._open) * HOP_S >= mute_s
        return self._owed * HOP_S >= mute_s and self._since is not None and now - self._since >= mute_s

    def hear(self, frame: Frame) -> None:
        """Take what the call brings to a tick; cheap: some microseconds."""
        self._duplex = frame.duplex
        if frame.clear:
            self._open = 0
        if len(frame.audio):
            self._listen(frame.audio)
        if frame.reply is not None or (frame.commit and frame.duplex):
            self._turn_over()

    def answered(self, speaking: bool, said: str, now: float) -> None:
        """A tick is over: whether the model was to speak to this call, and what it said. `now` in seconds.

        Blanks are no answer: a model in a rut of them is what this is for.
        """
        if speaking:
            self._turn_over()
        if said.strip():
            self.forgive()
        if self._owed and self._since is None:
            self._since = now

    def forgive(self) -> None:
        """Nothing is owed any more: it was answered, or the caller does not want the answer."""
        self._open = self._owed = 0
        self._since = None

    def _listen(self, audio: NDArray[np.float32]) -> None:
        if len(self._rest):
            audio = np.concatenate((self._rest, audio))
        whole = len(audio) // self._hop
        self._rest = audio[whole * self._hop :].copy()  # a view would keep the whole frame alive
        hops = audio[: whole * self._hop].reshape(whole, self._hop)
        (loud,) = (np.vecdot(hops, hops) > SOUND * self._hop).nonzero()
        before = int(loud[0]) if len(loud) else whole
        if self._duplex and (self._hush + before) * HOP_S >= PAUSE_S:
            self._turn_over()
        self._hush = whole - 1 - int(loud[-1]) if len(loud) else self._hush + whole
        self._open += len(loud)

    def _turn_over(self) -> None:
        self._owed += self._open
        self._open = 0
