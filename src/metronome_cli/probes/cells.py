"""One cell of a grid, played: calls are opened under its bound, asked, and every answer is scored.

Knows:   how a cell's profile, pool and questions come from the plan, and what is kept of each answer.
Ignores: which cells there are (grid.py), what they mean together (verdict.py), files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..clock import Clock
from ..models.factory import build
from ..profile import Profile
from ..window import most_blocks
from . import free_running, turn_based
from .asked import Asked, Said
from .grid import KINDS, Cell
from .questions import Question
from .scores import lenient, loops, strict
from .sessions import Stage

_TOKENS_PER_TURN = 160  # of a question and its reply, generously: an unbounded call must not stall here

Watch = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What every cell of a grid is asked. `spoken`: through the ears instead of typed."""

    sessions: int = 8
    per_call: int = 8  # questions of a turn-based call
    segments: int = 8  # of a free-running call, before it is asked for the first question
    segment_frames: int = 7
    spoken: bool = False


def calls_of(plan: Plan, cell: Cell, questions: Sequence[Question]) -> list[list[Asked]]:
    """What each call is asked: drawn by the seed alone, so that every bound meets the same."""
    draw = np.random.default_rng((KINDS.index(cell.kind), cell.seed))
    count = plan.per_call if cell.kind == "turn" else plan.segments
    calls = []
    for _ in range(plan.sessions):
        drawn = [questions[place] for place in draw.permutation(len(questions))[:count]]
        asked = [Asked(q.id, q.text, q.answers, q.audio if plan.spoken else None) for q in drawn]
        if cell.kind == "free":
            last = asked[-1]
            asked[-1] = Asked(last.id, last.text, last.answers, last.audio, kind="fresh")
            asked.append(free_running.recall(asked[0]))
        calls.append(asked)
    return calls


def play(
    cell: Cell, plan: Plan, profile: Profile, questions: Sequence[Question], clock: Clock, watch: Watch
) -> dict[str, Any]:
    """The cell's answers with their scores, the pool's part that it took, and milliseconds per frame."""
    calls = calls_of(plan, cell, questions)
    ready = set_up(cell, plan, profile, len(calls[0]))
    stage, frame_s = stage_of(ready, clock), ready.beat.frame_s
    if cell.kind == "turn":
        answers = turn_based.play(stage, calls, frame_s, watch)
    else:
        answers = free_running.play(stage, calls, frame_s, plan.segment_frames, watch)
    return {
        "calls": [[_row(said) for said in call] for call in answers],
        "frames": len(stage.busy_s),
        "busy_s": sum(stage.busy_s),
        "blocks_per_call": stage.kv_most / plan.sessions,
    }


def stage_of(ready: Profile, clock: Clock) -> Stage:
    """A stage with a model of its own: no cell meets what another left behind."""
    return Stage(build(ready), ready, clock)


def set_up(cell: Cell, plan: Plan, profile: Profile, turns: int) -> Profile:
    """The profile of a cell whose calls have so many turns: its bound, its mode, a pool for them all."""
    spoken = plan.spoken and cell.kind != "repeat"
    mode = {
        "model": {
            "mode": "free" if cell.kind == "free" else "turn",
            "kind": "cascade" if spoken else "text",
        }
    }
    bound = cell.bound.of(profile, mode)
    room = bound.pool.block_size
    said = plan.segment_frames * bound.beat.tau if cell.kind == "free" else 0
    longest = turns * (_TOKENS_PER_TURN + said) + _TOKENS_PER_TURN
    most = most_blocks(bound.policy(_TOKENS_PER_TURN // 2), room, bound.beat.prefill_tokens)
    blocks = plan.sessions * (-(-longest // room) if most is None else most)
    return cell.bound.of(profile, mode | {"pool": {"blocks": blocks}, "run": {"seed": cell.seed}})


def _row(said: Said) -> dict[str, Any]:
    """One answer as it is kept."""
    asked, found = said.asked, loops(said.said)
    return {
        "id": asked.id,
        "kind": asked.kind,
        "asked": asked.text,
        "heard": said.heard,
        "said": said.said,
        "strict": strict(said.said, asked.answers),
        "lenient": lenient(said.said, asked.answers),
        "repeated_trigrams": found.repeated_trigrams,
        "distinct_2": found.distinct_2,
        "age_s": said.age_s,
        "age_tokens": said.age_tokens,
        "stalled": said.stalled,
    }
