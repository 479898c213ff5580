"""Words out of live calls: Whisper over a short buffer of each call, all calls in one batch a frame.

Knows:   buffers, pauses, which words are certain enough to hand on, and which to disbelieve.
Ignores: how Whisper runs (whisper_batch.py), what is done with the words, time: frames are all it goes by.

A frame's audio joins the call's buffer; Whisper hears the buffer again, on from the words handed on before,
so that none is said twice. A new word is handed on once it ended `SETTLED_S` before the buffer's end, or in
an earlier frame: never later than one frame after the one it ended in. A pause or a commit hands on the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from whisper.utils import compression_ratio

from ..engine.crew import Crew
from ..errors import ProfileError
from .speech_gate import HOP, HOP_S, QUIETEST_FLOOR, next_floor, voiced
from .whisper_batch import Decoded, WhisperBatch
from .word_times import Word, is_lost, is_spoken, timed_words

RATE = 16_000  # samples per second
SETTLED_S = 0.6  # audio after a word that makes it certain enough
PAUSE_S = 0.6  # silence at the end of a frame that ends an utterance
LEAD_S = 0.3  # silence kept before speech: soft onsets lie below the gate
LEAST_SPEECH_S = 0.06  # less sound than that is no word
DEAF_S = 0.5  # more sound than that is some word

# Whisper's own limits, beyond which its transcribe() disbelieves what it decoded.
NO_SPEECH, UNSURE_LOGPROB, LOOPING = 0.6, -1.0, 2.4


@dataclass(frozen=True, slots=True)
class Heard:
    """What one frame brought to light.

    text: the words handed on, in order, joined by single spaces; "" for none.
    utterance_over: the caller paused (or committed) after words, for the first time since these words.
    """

    text: str
    utterance_over: bool


@dataclass(slots=True)
class Listening:
    """One call's hearing. It holds one buffer of audio and the words in it, however long the call."""

    audio: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    start: int = 0  # samples of the call that lie before the buffer
    handed: list[Word] = field(default_factory=list)  # handed on, and still in the buffer; times of the call
    floor: float = QUIETEST_FLOOR
    sounded: float = 0.0  # when the last sound ended, in seconds of the call
    mid_utterance: bool = False

    @property
    def now(self) -> float:
        """Seconds of the call heard so far."""
        return (self.start + len(self.audio)) / RATE

    def take(self, piece: NDArray[np.float32], room: int) -> None:
        """Append audio, keeping at most `room` samples in all, and none of a silence before speech."""
        self._drop(self._cut(len(self.audio) + len(piece) - room))
        self.floor = next_floor(self.floor, piece)
        self.audio = np.concatenate([self.audio, piece])
        sound = np.flatnonzero(self.voiced())
        if len(sound):
            self.sounded = self.start / RATE + float(sound[-1] + 1) * HOP_S
        if not self.handed:
            onset = int(sound[0]) * HOP if len(sound) else len(self.audio)
            self._drop(onset - round(LEAD_S * RATE))

    def voiced(self) -> NDArray[np.bool_]:
        """Which 20 ms hops of the buffer hold sound."""
        return voiced(self.audio, self.floor)

    def unheard_s(self) -> float:
        """Seconds of sound after the last word handed on."""
        after = self.handed[-1].end - self.start / RATE if self.handed else 0.0
        return float(self.voiced()[round(after / HOP_S) :].sum() * HOP_S)

    def sounding(self, words: Sequence[Word]) -> list[Word]:
        """Those of `words` that have any sound within 0.1 s of where they were heard."""
        sound = self.voiced()
        spans = [
            [round((at - self.start / RATE) / HOP_S) for at in (word.start - 0.1, word.end + 0.1)]
            for word in words
        ]
        return [word for word, (at, to) in zip(words, spans, strict=True) if sound[max(0, at) : to].any()]

    def forget_words(self) -> None:
        """Begin the buffer after the last word handed on."""
        self._drop(round(self.handed[-1].end * RATE) - self.start)

    def rest(self, keep_s: float) -> None:
        """Begin anew with the last `keep_s` seconds."""
        self.handed = []
        self._drop(len(self.audio) - round(keep_s * RATE))

    def _cut(self, least: int) -> int:
        """Samples to drop so that at least `least` go: up to the end of a word handed on, if there is one."""
        if least <= 0:
            return 0
        ends = (round(word.end * RATE) - self.start for word in self.handed)
        return next((end for end in ends if end >= least), least)

    def _drop(self, samples: int) -> None:
        if samples > 0:
            self.audio = self.audio[samples:].copy()
            self.start += samples
            self.handed = [word for word in self.handed if word.end * RATE > self.start + HOP]


class Ears:
    """Hears any number of calls, all of one frame in one batch.

    checkpoint: a Whisper .pt, or a folder that holds one. token_cap: most new tokens per buffer and frame.
    context_s: what the encoder is shown, padded; below 8 s Whisper tiny.en falls into loops.
    buffer_s: most audio kept of a call.
    """

    def __init__(
        self,
        checkpoint: Path,
        *,
        token_cap: int = 40,
        context_s: float = 8.0,
        buffer_s: float = 6.0,
        products: torch.dtype | None = None,
    ) -> None:
        if token_cap < 1:
            raise ProfileError("ears.token_cap", token_cap, "use 1 token or more")
        if not 8 <= context_s <= 30:
            raise ProfileError("ears.context_s", context_s, "use 8 to 30 s")
        if not 3 <= buffer_s <= 8:
            raise ProfileError("ears.buffer_s", buffer_s, "use 3 to 8 s")
        self._whisper = WhisperBatch(checkpoint, context_s, products)
        self._crew = Crew()
        self._cap = token_cap
        self._room = round(buffer_s * RATE)

    def open(self) -> Listening:
        """A new call."""
        return Listening()

    def forget(self, listening: Listening) -> None:
        """Leave out what was said and not handed on yet."""
        listening.mid_utterance = False
        listening.rest(0.0)

    def hear(
        self,
        listening: Sequence[Listening],
        audio: Sequence[NDArray[np.float32]],
        commit: Sequence[bool],
    ) -> list[Heard]:
        """One frame of each call: mono 16 kHz audio of any length, and whether it ends the utterance.

        A frame longer than half the buffer is heard in several rounds.
        """
        rounds = [_pieces(frame, self._room // 2) for frame in audio]
        heard = [Heard("", False) for _ in listening]
        for turn in range(max(map(len, rounds), default=0)):
            rows = [row for row, pieces in enumerate(rounds) if turn < len(pieces)]
            calls = [listening[row] for row in rows]
            for call, row in zip(calls, rows, strict=True):
                call.take(rounds[row][turn], self._room)
            for call, row, words in zip(calls, rows, self._all_new_words(calls), strict=True):
                last = turn == len(rounds[row]) - 1
                said = _hand_on(call, words, len(rounds[row][turn]) / RATE, last and commit[row])
                heard[row] = Heard(
                    f"{heard[row].text} {said.text}".strip(),
                    heard[row].utterance_over or said.utterance_over,
                )
        return heard

    def _all_new_words(self, calls: list[Listening]) -> list[list[Word]]:
        """Some calls on each thread: a call's words do not depend on who is heard beside it."""
        shares = self._crew.shares([1] * len(calls))
        return list(chain.from_iterable(self._crew.run(lambda share: self._new_words(calls[share]), shares)))

    def _new_words(self, calls: Sequence[Listening]) -> list[list[Word]]:
        """What each buffer holds after the words handed on, certain or not."""
        words = self._transcribe(calls)
        # After a finished sentence Whisper may stop at once though speech goes on; without it, it does not.
        deaf = [
            row
            for row, call in enumerate(calls)
            if call.handed and not _text(words[row]) and call.unheard_s() > DEAF_S
        ]
        for row in deaf:
            calls[row].forget_words()
        for row, again in zip(deaf, self._transcribe([calls[row] for row in deaf]), strict=True):
            words[row] = again
        return words

    def _transcribe(self, calls: Sequence[Listening]) -> list[list[Word]]:
        """One batch of those that have anything unheard."""
        words: list[list[Word]] = [[] for _ in calls]
        rows = [row for row, call in enumerate(calls) if call.unheard_s() >= LEAST_SPEECH_S]
        if rows:
            known = [[token for word in calls[row].handed for token in word.tokens] for row in rows]
            audio = [calls[row].audio for row in rows]

            def lost(place: int, tokens: Sequence[int], attention: NDArray[np.float32]) -> bool:
                said, seen = [*known[place], *tokens], _within(attention, audio[place])
                return is_lost(said, len(known[place]), seen, self._whisper.text)

            decoded = self._whisper.decode(audio, known, self._cap, lost)
            for row, prefix, one in zip(rows, known, decoded, strict=True):
                words[row] = self._believed(calls[row], prefix, one)
        return words

    def _believed(self, call: Listening, known: list[int], decoded: Decoded) -> list[Word]:
        """The words of a transcript, less what Whisper makes up where nothing was said."""
        if decoded.no_speech > NO_SPEECH and decoded.logprob < UNSURE_LOGPROB:
            return []
        words = timed_words(
            known + decoded.tokens,
            len(known),
            _within(decoded.attention, call.audio),
            self._whisper.text,
            call.start / RATE,
        )
        if compression_ratio(" ".join(word.text for word in words) or "-") > LOOPING:
            return []
        return call.sounding(words)


def _pieces(frame: NDArray[np.float32], most: int) -> list[NDArray[np.float32]]:
    """The frame in as few equal parts as hold at most `most` samples; one, when it is empty."""
    return np.array_split(frame, max(1, -(-len(frame) // most)))


def _within(attention: NDArray[np.float32], audio: NDArray[np.float32]) -> NDArray[np.float32]:
    """What of the attention lies on the audio; behind that there is only padding."""
    return attention[..., : -(-len(audio) // HOP)]


def _hand_on(call: Listening, words: list[Word], piece_s: float, commit: bool) -> Heard:
    """Pass on what is certain; everything, when the utterance is over."""
    over = commit or call.now - call.sounded >= PAUSE_S
    if not over:
        certain = [word for word in words if word.end <= call.now - min(SETTLED_S, piece_s)]
        if certain and len(certain) == len(words):
            certain[-1] = certain[-1].without_punctuation()
        words = certain
    call.handed += words
    text = _text(words)
    said_something = call.mid_utterance or text != ""
    call.mid_utterance = said_something and not over
    if over:
        call.rest(0.0 if commit else LEAD_S)
    return Heard(text, over and said_something)


def _text(words: Sequence[Word]) -> str:
    return " ".join(word.text for word in words if is_spoken(word.text))
