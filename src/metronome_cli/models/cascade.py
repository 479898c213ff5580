"""Speech in, text out: Whisper hears, a language model thinks, both batched over all due calls.

Knows:   how heard words become texts for the thinking half.
Ignores: how words are heard (ears.py) and answered (text.py), sockets, time.

In either mode words wait until their utterance is over and go in as one turn: handed on frame by frame,
half a question would be answered before its other half arrived (docs/log.md has the measurement).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..engine.linear import products_of
from ..frame import Frame, KvUsage, Prefilled, Refused, SessionId, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy
from .assets import locate
from .ears import Ears, Heard, Listening
from .text import TextModel

MOST_WORDS = 40  # of one turn in a duplex call: who never pauses is answered all the same
MOST_KEPT = 10_000  # words that wait for a commit: the oldest go, so no call's memory grows


@dataclass(slots=True)
class _Ear:
    """One call's hearing, and the words of an utterance that is not over yet."""

    listening: Listening
    words: list[str] = field(default_factory=list)


class Cascade:
    """A `TickEngine`: ears in front of a `TextModel`."""

    def __init__(self, profile: Profile) -> None:
        self._text = TextModel(profile)  # first: it says how many threads there are
        self._ears = Ears(
            locate(profile.model.ears),
            token_cap=profile.model.heard_tokens,
            products=products_of(profile.model.products),
        )
        self._calls: dict[SessionId, _Ear] = {}

    @staticmethod
    def check(profile: Profile) -> None:
        """As of `TextModel`; what the ears are, shows when they are loaded."""
        TextModel.check(profile)

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        refused = self._text.open(session, seed, terms)
        if refused is None:
            self._calls[session] = _Ear(self._ears.open())
        return refused

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        due = [frame for frame in frames if frame.session in self._calls]
        ears = [self._calls[frame.session] for frame in due]
        for frame, ear in zip(due, ears, strict=True):
            if frame.clear:
                self._ears.forget(ear.listening)
                ear.words = []
        heard = self._ears.hear(
            [ear.listening for ear in ears],
            [frame.audio for frame in due],
            [frame.commit > 0 for frame in due],
        )
        told = [
            replace(frame, texts=frame.texts + _finished(frame, ear, handed))
            for frame, ear, handed in zip(due, ears, heard, strict=True)
        ]
        words = {
            frame.session: (handed.text, _over(frame, handed))
            for frame, handed in zip(due, heard, strict=True)
        }
        for event in self._text.tick(told):
            if isinstance(event, Prefilled):
                text, over = words[event.session]
                yield replace(event, heard=text, over=over)
            else:
                yield event

    def cancel(self, session: SessionId) -> None:
        self._text.cancel(session)

    def close(self, session: SessionId) -> None:
        self._calls.pop(session, None)
        self._text.close(session)

    def blocks(self, session: SessionId) -> int:
        return self._text.blocks(session)

    def policy(self, session: SessionId) -> Policy:
        return self._text.policy(session)

    def usage(self) -> KvUsage:
        return self._text.usage()


def _over(frame: Frame, heard: Heard) -> int:
    """Utterances that are over: the ears' own judgement counts only in a duplex call."""
    return max(frame.commit, int(heard.utterance_over)) if frame.duplex else frame.commit


def _finished(frame: Frame, ear: _Ear, heard: Heard) -> tuple[str, ...]:
    """Take up what was heard; the whole turn once its utterance is over or long enough."""
    ear.words = (ear.words + heard.text.split())[-MOST_KEPT:]
    over = _over(frame, heard) or (frame.duplex and len(ear.words) >= MOST_WORDS)
    if not (ear.words and over):
        return ()
    turn, ear.words = " ".join(ear.words), []
    return (turn,)
