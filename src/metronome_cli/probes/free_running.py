"""Free-running calls: the session never stops speaking, and a new question comes every segment.

Knows:   segments, and that the last two ask something fresh and ask back for the first question.
Ignores: what a good answer is, policies, where questions come from.

In mode `free` the model is forced to say `tau` tokens every frame and may not end (paper, "Quality").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..frame import SessionId
from .asked import Asked, Said
from .sessions import Stage, Told, utterance

RECALL = "What was the first question that I asked you?"


def recall(first: Asked) -> Asked:
    """Asks back for the first question; its words that name something are the gold."""
    named = tuple(word.strip("?.,!") for word in first.text.split()[1:] if len(word.strip("?.,!")) > 3)
    return Asked(f"recall-{first.id}", RECALL, (*first.answers, *named[-1:]), kind="recall")


def play(
    stage: Stage,
    calls: Sequence[Sequence[Asked]],
    frame_s: float,
    segment_frames: int,
    watch: Callable[[float], None] = lambda share: None,
) -> list[list[Said]]:
    """All calls side by side, one segment of `segment_frames` frames per question of each."""
    opened = stage.open(len(calls), duplex=True)
    asked = dict(zip(opened, calls, strict=True))
    answers: dict[SessionId, list[Said]] = {number: [] for number in opened}
    segments = max(map(len, calls))
    for segment in range(segments):
        now = {number: questions[segment] for number, questions in asked.items() if segment < len(questions)}
        heard = _segment(stage, now, frame_s, segment_frames)
        for number, told in heard.items():
            answers[number].append(_answer(now[number], told))
        watch((segment + 1) / segments)
    return list(answers.values())


def _segment(
    stage: Stage, now: dict[SessionId, Asked], frame_s: float, frames: int
) -> dict[SessionId, list[Told]]:
    """Ask each call its question and listen for `frames` frames."""
    speech = {number: utterance(asked, frame_s, stage.rate, reply=False) for number, asked in now.items()}
    heard: dict[SessionId, list[Told]] = {number: [] for number in now}
    for frame in range(frames):
        brought = {number: parts[frame] for number, parts in speech.items() if frame < len(parts)}
        for number, told in stage.frame(brought).items():
            if number in heard:
                heard[number].append(told)
    return heard


def _answer(asked: Asked, told: Sequence[Told]) -> Said:
    records = [one.record for one in told]
    return Said(
        asked,
        heard=" ".join(record.heard for record in records if record.heard),
        said="".join(record.said for record in records),
        age_s=records[0].age_s,
        age_tokens=told[0].tokens,
        stalled=sum(record.stalled for record in records),
        pcm=b"".join(one.pcm for one in told),
    )
