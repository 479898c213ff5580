"""Cells of repeat-after-me: sentences near, at the edge of and beyond the window, spoken and heard again.

Knows:   which places a cell tries, and what a listener makes of each reply.
Ignores: how the sentences were chosen (repeat.py), error rates (spoken.py), what cells mean together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from ..clock import Clock
from ..models.listener import Listener
from ..models.voice import Voice
from ..profile import Profile
from . import turn_based
from .asked import Asked, Said
from .cells import Plan, Watch, stage_of
from .grid import UNBOUNDED, Cell
from .repeat import Place, Repetition, place_of, repetitions
from .spoken import AsrWer, SpokenReply, asr_wer


def places_of(cell: Cell, windows: Sequence[int]) -> list[tuple[Place, int]]:
    """What a cell tries: three places about its own window; the unbounded control all of the grid's."""
    own = windows if cell.bound == UNBOUNDED else [cell.bound.window or 0]
    return [(place, window) for window in own for place in get_args(Place)]


@dataclass(frozen=True)
class Repeating:
    """What all repeat cells of a grid share. `windows` are the grid's, `questions` what is asked between."""

    plan: Plan
    profile: Profile
    windows: Sequence[int]
    questions: Sequence[str]
    voice: Voice
    listener: Listener
    clock: Clock

    def play(self, cell: Cell, watch: Watch) -> dict[str, Any]:
        """The cell's replies at every place, written, spoken and heard."""
        tried = []
        places = places_of(cell, self.windows)
        for number, (place, window) in enumerate(places):
            calls = repetitions(place, window, self.plan.sessions, cell.seed, self.questions)
            answers = self._answers(cell, calls)
            heard = _hear([call[-1].said for call in answers], calls, self.voice, self.listener)
            lay = [_lay(call, rep, window) for call, rep in zip(answers, calls, strict=True)]
            tried.append({"place": place, "window": window, "lay": lay, **_kept(heard, calls, answers)})
            watch((number + 1) / len(places))
        return {"places": tried, "voice": f"{self.voice.name} {self.voice.version}"}

    def _answers(self, cell: Cell, calls: Sequence[Repetition]) -> list[list[Said]]:
        asked = [[Asked(str(number), turn, ()) for number, turn in enumerate(call.turns)] for call in calls]
        stage = stage_of([cell], self.plan, self.profile, len(asked[0]), self.clock)
        return turn_based.play(stage, asked, self.profile.beat.frame_s)


def _hear(replies: Sequence[str], calls: Sequence[Repetition], voice: Voice, listener: Listener) -> AsrWer:
    spoken = voice.say(replies)
    return asr_wer(
        [
            SpokenReply(call.sentence, text, audio)
            for call, text, audio in zip(calls, replies, spoken, strict=True)
        ],
        listener,
    )


def _lay(call: Sequence[Said], repetition: Repetition, window: int) -> Place | None:
    """Where the sentence really lay when it was asked for."""
    told, repeated, asked = (call[number].age_tokens for number in (repetition.told, repetition.told + 1, -1))
    return place_of(told, repeated, asked, window)


def _kept(heard: AsrWer, calls: Sequence[Repetition], answers: Sequence[Sequence[Said]]) -> dict[str, Any]:
    return {
        **{name: asdict(getattr(heard, name)) for name in ("spoken", "model", "voice")},
        "replies": [
            {"sentence": call.sentence, "said": answer[-1].said, "heard": text}
            for call, answer, text in zip(calls, answers, heard.heard, strict=True)
        ],
    }
