"""`metronome probe quality`: a grid of bounds, cell by cell, on one model.

Knows:   what the kinds of cells need (questions, a long text, a judge), loaded once, when first needed.
Ignores: which cells are left to do, files, tables, terminals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import numpy as np

from ..clock import Clock
from ..engine.linear import products_of
from ..models.assets import locate
from ..models.chat import Chat
from ..models.listener import Listener
from ..models.perplexity import Scorer, load_judge
from ..profile import Profile
from .cells import Plan, Watch, pace, play
from .grid import PLAYED, STEP, Cell
from .questions import Question, read_questions
from .repeating import Repeating
from .spoken import error_rates, find_listener, heard_back, instruments
from .stream import places, read_stream, read_text

_MOST_JUDGED = 128  # tokens of a reply that a judge reads
_JUDGED = 8  # replies of a call, spread over its age: reading them all takes as long as saying them


@dataclass(frozen=True, slots=True)
class Material:
    """What is asked and read. `judge` None: the model judges with its own weights."""

    data: str = "builtin"
    text: str | None = None  # a file with the long text; the asset moby-dick when None
    stream_tokens: int = 2048
    stream_sessions: int = 2
    judge: str | None = None
    gen_ppl: bool = True
    listen: bool = False  # to the speech of a model that speaks; its judge reads what is heard


@dataclass
class Probe:
    """Everything that outlives a cell."""

    profile: Profile
    plan: Plan
    material: Material
    windows: Sequence[int]  # of the grid
    clock: Clock

    def run(self, cells: Sequence[Cell], watch: Watch) -> list[dict[str, Any]]:
        """What came of cells that are played side by side, as plain data. `watch` is told the share done."""
        began = self.clock.now()
        if cells[0].kind in PLAYED:
            found = self._played(cells, watch)
        else:
            found = [self._alone(cell, watch) for cell in cells]
        took = (self.clock.now() - began) / len(cells)
        return [{"cell": cell.name, "wall_s": took, **one} for cell, one in zip(cells, found, strict=True)]

    def _alone(self, cell: Cell, watch: Watch) -> dict[str, Any]:
        if cell.kind == "stream":
            return self._stream(cell)
        if cell.kind == "repeat":
            return self._repeating.play(cell, watch)
        return pace(cell, self.plan, self.profile, self._long_enough, self.clock, watch)

    @property
    def _long_enough(self) -> str:
        """A text that fills the largest window: a word is a token or more."""
        words = " ".join(question.text for question in self.questions).split()
        return " ".join(islice(cycle(words), max(self.windows) + self.profile.beat.prefill_tokens))

    @cached_property
    def questions(self) -> list[Question]:
        """The data set; FieldError names what is wrong with it."""
        return read_questions(self.material.data, audio=self.plan.spoken, seed=0, limit=None)

    @cached_property
    def scorer(self) -> Scorer:
        """The model itself, as a reader of text."""
        model = self.profile.model
        return Scorer(
            locate(model.thinker),
            model.dtype,
            self.profile.run.threads,
            products=products_of(model.products),
        )

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

    def _played(self, cells: Sequence[Cell], watch: Watch) -> list[dict[str, Any]]:
        # What is said is not all yet: it is judged after.
        found = play(
            cells, self.plan, self.profile, self.questions, self.clock, lambda share: watch(0.9 * share)
        )
        self._listen([row for cell in found for call in cell["calls"] for row in call])
        if self.material.gen_ppl:
            self._judge([row for cell in found for call in cell["calls"] for row in _spread(call)])
        return found

    def _listen(self, rows: Sequence[dict[str, Any]]) -> None:
        """Have every spoken answer written down, and count the errors against the model's own text."""
        spoken = [row.pop("pcm", b"") for row in rows]
        if not (self.material.listen and any(spoken)):
            return
        for row, heard in zip(rows, heard_back(spoken, self._listener), strict=True):
            row["transcript"] = heard
            row["asr_wer"] = error_rates([row["said"]], [heard]).wer  # None where nothing was written

    @cached_property
    def _listener(self) -> Listener:
        return find_listener(self.profile.model.ears)

    @cached_property
    def _repeating(self) -> Repeating:
        """NotMeasured, before anything is played, where there is no voice or nobody to listen."""
        texts = [question.text for question in self.questions]
        voice, listener = instruments(self.profile.model.ears)
        return Repeating(self.plan, self.profile, self.windows, texts, voice, listener, self.clock)

    def _judge(self, rows: Sequence[dict[str, Any]]) -> None:
        """Note what each reply costs a judge who has read its question afresh: nats in all, and tokens."""
        chat = self._judges_chat
        contexts = [chat.header + chat.turn(row["asked"], "header") for row in rows]
        replies = [self.judge.encode(row.get("transcript", row["said"]))[:_MOST_JUDGED] for row in rows]
        paid = self.judge.nll_of_replies(contexts, replies)
        for row, reply, nll in zip(rows, replies, paid, strict=True):
            row["gen_nll"], row["gen_tokens"] = float(nll.sum()), len(reply)

    def _stream(self, cell: Cell) -> dict[str, Any]:
        material, ids = self.material, self._text_ids
        starts = places(len(ids), material.stream_sessions, material.stream_tokens, cell.seed)
        policy = self.profile.on(cell.bound.terms).policy(len(self._chat.header))
        read = read_stream(self.scorer, ids, starts, material.stream_tokens, policy, cell.bound.positions)
        return {"steps": _steps(read.nll_SA), "blocks_peak": read.blocks_peak}


def _spread(call: Sequence[Any]) -> list[Any]:
    """At most _JUDGED items of a call, its first and last among them."""
    count = min(_JUDGED, len(call))
    return [call[round(place)] for place in np.linspace(0, len(call) - 1, count)]


def _steps(nll_SA: Any) -> list[list[float]]:
    """The mean of every STEP tokens, per session; a rest of less than half a step joins the last one."""
    size = nll_SA.shape[1]
    cuts = [cut for cut in range(STEP, size, STEP) if size - cut >= STEP / 2]
    parts: Sequence[Any] = np.split(nll_SA, cuts, axis=1)
    return [[float(part[session].mean()) for part in parts] for session in range(len(nll_SA))]
