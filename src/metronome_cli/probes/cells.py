"""Cells of a grid, played: calls are opened under their bounds, asked, and every answer is scored.

Knows:   how a cell's profile, pool and questions come from the plan, and what is kept of each answer.
Ignores: which cells there are (grid.py), what they mean together (verdict.py), files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..clock import Clock
from ..errors import ProfileError
from ..kinds import kind_of
from ..models.factory import build
from ..profile import Profile
from ..window import most_blocks
from . import free_running, turn_based
from .asked import Asked, Said
from .grid import KINDS, PLAYED, Cell
from .questions import Question
from .scores import lenient, loops, strict
from .sessions import Brings, Stage
from .spoken import error_rates

_TOKENS_PER_TURN = 160  # of a question and its reply, generously: an unbounded call must not stall here
TEXT_MODELS = ("cascade", "text", "null")  # kinds whose thinker can be asked, and judge, by itself
_PACED_FRAMES = 7  # their median is what a frame takes

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
    cells: Sequence[Cell],
    plan: Plan,
    profile: Profile,
    questions: Sequence[Question],
    clock: Clock,
    watch: Watch,
) -> list[dict[str, Any]]:
    """The answers of cells of one kind and seed with their scores, and the blocks that a call took.

    All are played side by side in one model, every call under the bound of its own cell. An answer that was
    spoken has its sound as "pcm", for somebody to listen to and to take out.
    """
    calls = calls_of(plan, cells[0], questions)
    stage = stage_of(cells, plan, profile, len(calls[0]), clock)
    asked = [call for _ in cells for call in calls]
    if cells[0].kind == "turn":
        answers = turn_based.play(stage, asked, profile.beat.frame_s, watch)
    else:
        answers = free_running.play(stage, asked, profile.beat.frame_s, plan.segment_frames, watch)
    blocks = list(stage.blocks_most.values())
    shares = [slice(at, at + len(calls)) for at in range(0, len(asked), len(calls))]
    return [
        {
            "calls": [[_row(said) for said in call] for call in answers[share]],
            "blocks_per_call": sum(blocks[share]) / len(calls),
        }
        for share in shares
    ]


def pace(cell: Cell, plan: Plan, profile: Profile, text: str, clock: Clock, watch: Watch) -> dict[str, Any]:
    """What a frame takes when all calls have read `text` and speak in every frame."""
    stage = stage_of([cell], plan, profile, len(text) // _TOKENS_PER_TURN, clock)
    opened = stage.open(plan.sessions, duplex=True)
    told = stage.frame({number: Brings(text=text) for number in opened})
    while not all(one.record.tokens_out for one in told.values()):
        told = stage.frame({})
        watch(0.5)
    first = len(stage.busy_s)
    for done in range(_PACED_FRAMES):
        stage.frame({})
        watch(0.5 + 0.5 * (done + 1) / _PACED_FRAMES)
    return {
        "ms_per_frame": 1000 * float(np.median(stage.busy_s[first:])),
        "sessions": plan.sessions,
        "age_tokens": min(one.tokens for one in told.values()),
    }


def stage_of(cells: Sequence[Cell], plan: Plan, profile: Profile, turns: int, clock: Clock) -> Stage:
    """A stage for calls of so many turns, with a model of its own: no cell meets what another left behind."""
    kind, spoken = cells[0].kind, plan.spoken and cells[0].kind in PLAYED
    free = kind in ("free", "pace")
    said = plan.segment_frames * profile.beat.tau if free else 0
    longest = turns * (_TOKENS_PER_TURN + said) + _TOKENS_PER_TURN
    sections = {
        "model": {"mode": "free" if free else "turn", "kind": _kind(profile, spoken)},
        "window": {"policy": "unbounded"},
        "pool": {"blocks": plan.sessions * sum(_blocks(cell, profile, longest) for cell in cells)},
        "run": {"seed": cells[0].seed},
    }
    ready = profile.model_copy(
        update={name: getattr(profile, name).model_copy(update=values) for name, values in sections.items()}
    )
    return Stage(
        build(ready), ready, clock, [cell.bound.terms for cell in cells for _ in range(plan.sessions)]
    )


def _kind(profile: Profile, spoken: bool) -> str:
    """A model that hears by itself is asked as it is; a text model is given ears where they are wanted."""
    kind = profile.model.kind
    if kind in TEXT_MODELS:
        return "cascade" if spoken else "text"
    if not (spoken or kind_of(kind).reads):
        raise ProfileError("spoken", spoken, f"{kind} hears and does not read: ask it aloud (--spoken)")
    return kind


def _blocks(cell: Cell, profile: Profile, longest: int) -> int:
    """What a call of at most `longest` tokens takes under a cell's bound."""
    policy = profile.on(cell.bound.terms).policy(_TOKENS_PER_TURN // 2)
    most = most_blocks(policy, profile.pool.block_size, profile.beat.prefill_tokens)
    return -(-longest // profile.pool.block_size) if most is None else most


def _row(said: Said) -> dict[str, Any]:
    """One answer as it is kept."""
    asked, found = said.asked, loops(said.said)
    row = {
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
    if asked.audio is not None:
        # No policy can change what was heard: a control of the ears, beside the scores of the reply.
        row["heard_wer"] = error_rates([asked.text], [said.heard]).wer
    if said.pcm:
        row["pcm"] = said.pcm
    return row
