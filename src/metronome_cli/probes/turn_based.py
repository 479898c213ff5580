"""Turn-based calls: a question, a reply that ends at its end token, the next question.

Knows:   whose turn it is in each call, and when a reply is given up.
Ignores: what the questions are, what a good answer is, policies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..frame import SessionId
from .asked import Asked, Said
from .sessions import Brings, Stage, Told, utterance

MOST_FRAMES = 60  # for one reply; longer ones end at the profile's max_reply


@dataclass(slots=True)
class _Turn:
    """One call's progress through its questions."""

    left: deque[Asked]
    current: Asked | None = None
    speech: deque[Brings] = field(default_factory=deque)  # of the current question, not brought yet
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    spoken: list[bytes] = field(default_factory=list)
    waited: int = 0
    begun_at: int = 0
    stalled: int = 0


def play(
    stage: Stage,
    calls: Sequence[Sequence[Asked]],
    frame_s: float,
    watch: Callable[[float], None] = lambda share: None,
) -> list[list[Said]]:
    """Each call asks its questions in turn, all calls side by side. `watch` is told the share done."""
    opened = stage.open(len(calls), duplex=False)
    turns = {number: _Turn(deque(asked)) for number, asked in zip(opened, calls, strict=True)}
    answers: dict[SessionId, list[Said]] = {number: [] for number in opened}
    whole = sum(map(len, calls))
    while any(turn.current or turn.left for turn in turns.values()):
        told = stage.frame({number: _next(turn, frame_s, stage.rate) for number, turn in turns.items()})
        for number, turn in turns.items():
            if turn.current and (answer := _take(turn, told[number])):
                answers[number].append(answer)
        watch(sum(map(len, answers.values())) / whole)
    return list(answers.values())


def _next(turn: _Turn, frame_s: float, rate: int) -> Brings:
    """What a call brings to the next frame."""
    if turn.current is None and turn.left:
        turn.current = turn.left.popleft()
        turn.speech = deque(utterance(turn.current, frame_s, rate, reply=True))
        turn.said, turn.heard, turn.spoken, turn.waited = [], [], [], 0
    return turn.speech.popleft() if turn.speech else Brings()


def _take(turn: _Turn, told: Told) -> Said | None:
    """Note what a frame told; the whole answer when the reply is over."""
    record, asked = told.record, turn.current
    assert asked is not None  # noqa: S101
    turn.begun_at = turn.begun_at or told.tokens
    turn.said.append(record.said)
    turn.heard.append(record.heard)
    turn.spoken.append(told.pcm)
    turn.stalled += record.stalled
    turn.waited += not turn.speech
    if not told.ended and turn.waited < MOST_FRAMES:
        return None
    answer = Said(
        asked,
        heard=" ".join(filter(None, turn.heard)),
        said="".join(turn.said),
        age_s=record.age_s,
        age_tokens=turn.begun_at,
        stalled=turn.stalled,
        pcm=b"".join(turn.spoken),
    )
    turn.current, turn.stalled, turn.begun_at = None, 0, told.tokens
    return answer
