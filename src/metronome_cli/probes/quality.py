"""`metronome probe quality`: a grid of bounds, cell by cell, on one model.

Knows:   what the kinds of cells need (questions, a long text, a judge), loaded once, when first needed.
Ignores: which cells are left to do, files, tables, terminals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..clock import Clock
from ..models.assets import locate
from ..models.chat import Chat
from ..models.perplexity import Scorer, load_judge
from ..profile import Profile
from .cells import Plan, Watch, play
from .grid import Cell
from .questions import Question, read_questions
from .repeating import Repeating
from .spoken import instruments
from .stream import places, read_stream, read_text

STEP = 256  # tokens whose mean cost is kept of a stream
_MOST_JUDGED = 128  # tokens of a reply that a judge reads


@dataclass(frozen=True, slots=True)
class Material:
    """What is asked and read. `judge` None: the model judges with its own weights."""

    data: str = "builtin"
    text: str | None = None  # a file with the long text; the asset moby-dick when None
    stream_tokens: int = 2048
    stream_sessions: int = 2
    judge: str | None = None
    gen_ppl: bool = True


@dataclass
class Probe:
    """Everything that outlives a cell."""

    profile: Profile
    plan: Plan
    material: Material
    windows: Sequence[int]  # of the grid
    clock: Clock

    def run(self, cell: Cell, watch: Watch) -> dict[str, Any]:
        """Play one cell; what came of it, as plain data. `watch` is told the share that is done."""
        began = self.clock.now()
        if cell.kind == "stream":
            found = self._stream(cell)
        elif cell.kind == "repeat":
            found = self._repeated(cell, watch)
        else:
            found = self._played(cell, watch)
        return {"cell": cell.name, "wall_s": self.clock.now() - began, **found}

    @cached_property
    def questions(self) -> list[Question]:
        """The data set; FieldError names what is wrong with it."""
        return read_questions(self.material.data, audio=self.plan.spoken, seed=0, limit=None)

    @cached_property
    def scorer(self) -> Scorer:
        """The model itself, as a reader of text."""
        return Scorer(locate(self.profile.model.thinker), self.profile.model.dtype, self.profile.run.threads)

    @cached_property
    def judge(self) -> Scorer:
        if self.material.judge is None:
            return self.scorer
        return load_judge(self.material.judge, self.profile.model.dtype, self.profile.run.threads)

    @cached_property
    def _text_ids(self) -> list[int]:
        text = read_text(self.material.text)
        # Enough to choose places in; encoding a whole book takes longer than reading an excerpt.
        most = 40 * self.material.stream_tokens * self.material.stream_sessions
        return self.scorer.encode(text[: max(most, 400_000)])

    @cached_property
    def _chat(self) -> Chat:
        return Chat(locate(self.profile.model.thinker), self.profile.model.header)

    @cached_property
    def _judges_chat(self) -> Chat:
        """In the judge's own words: another checkpoint has another vocabulary."""
        if self.material.judge is None:
            return self._chat
        return Chat(locate(self.material.judge), self.profile.model.header)

    def _played(self, cell: Cell, watch: Watch) -> dict[str, Any]:
        found = play(cell, self.plan, self.profile, self.questions, self.clock, watch)
        if self.material.gen_ppl:
            for call in found["calls"]:
                for row in call:
                    row["gen_nll"], row["gen_tokens"] = self._judged(row["asked"], row["said"])
        return found

    def _repeated(self, cell: Cell, watch: Watch) -> dict[str, Any]:
        return self._repeating.play(cell, watch)

    @cached_property
    def _repeating(self) -> Repeating:
        """NotMeasured, before anything is played, where there is no voice or nobody to listen."""
        texts = [question.text for question in self.questions]
        voice, listener = instruments(self.profile.model.ears)
        return Repeating(self.plan, self.profile, self.windows, texts, voice, listener, self.clock)

    def _judged(self, asked: str, said: str) -> tuple[float, int]:
        """What a reply costs a judge who has read the question afresh: nats in all, and tokens."""
        context = self._judges_chat.header + self._judges_chat.turn(asked, "header")
        reply = self.judge.encode(said)[:_MOST_JUDGED]
        return float(self.judge.nll_of(context, reply).sum()), len(reply)

    def _stream(self, cell: Cell) -> dict[str, Any]:
        material, ids = self.material, self._text_ids
        starts = places(len(ids), material.stream_sessions, material.stream_tokens, cell.seed)
        policy = cell.bound.of(self.profile, {}).policy(len(self._chat.header))
        read = read_stream(self.scorer, ids, starts, material.stream_tokens, policy, cell.bound.positions)
        return {"steps": _steps(read.nll_SA), "blocks_peak": read.blocks_peak}


def _steps(nll_SA: Any) -> list[list[float]]:
    """The mean of every STEP tokens, per session; a rest of less than half a step joins the last one."""
    size = nll_SA.shape[1]
    cuts = [cut for cut in range(STEP, size, STEP) if size - cut >= STEP / 2]
    parts: Sequence[Any] = np.split(nll_SA, cuts, axis=1)
    return [[float(part[session].mean()) for part in parts] for session in range(len(nll_SA))]
