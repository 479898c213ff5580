"""Calls whose words nobody needs: random tokens in, whatever a random model says out, every frame alike.

Knows:   the engine, and the interface of a model that the beat runs.
Ignores: text, audio and time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch

from metronome_cli.engine.engine import Engine
from metronome_cli.engine.sampling import Sampling
from metronome_cli.frame import Frame, KvUsage, Prefilled, Refused, Said, SessionId, Stalled, TickEvent
from metronome_cli.profile import OWN, Terms
from metronome_cli.window import Policy

from ..aged import age
from .tower import Tower


class RandomTalk:
    """A `TickEngine`: every frame brings `tokens_in` tokens and decodes `tokens_out`.

    With a `tower` each frame is also heard, and what was heard is dropped for random tokens: through random
    weights all calls hear much the same, all would say the same few tokens, and a mixture of experts would
    read few of its experts. `rates`: tokens in of calls that bring as many as they like.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Policy,
        tokens_in: int,
        tokens_out: int,
        tower: Tower | None = None,
        *,
        rates: Mapping[SessionId, int] | None = None,
        temperature: float = 1.0,
    ) -> None:
        self._rates = rates or {}
        self._tower, self._temperature = tower, temperature
        self.engine = engine
        self._policy = policy
        self._in, self._out = tokens_in, tokens_out
        self._numbers: dict[SessionId, int] = {}
        self.said: set[int] = set()  # by all calls in the last step
        self._random = torch.Generator().manual_seed(0)

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        number = self.engine.open(self._policy, sampling=Sampling(self._temperature, seed=seed))
        if number is None:
            return Refused("pool_full")
        self._numbers[session] = number
        return None

    def age(self, session: SessionId, tokens: int) -> None:
        """Make a call as old as if it had so many tokens behind it. Its cache holds whatever lay there."""
        age(self.engine, self._numbers[session], tokens)

    def hear(self, sessions: Sequence[SessionId], tokens: int) -> None:
        """Let some calls hear so many tokens each."""
        numbers = [self._numbers[session] for session in sessions]
        self.engine.step(numbers, [tokens] * len(numbers), self._ids(tokens * len(numbers)))

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        sessions = [frame.session for frame in frames]
        count = [self._rates.get(session, self._in) for session in sessions]
        for turn in range(self._out):
            numbers = [self._numbers[session] for session in sessions]
            going = turn < self._out - 1
            asks = [True] * len(numbers)
            if self._tower is not None and turn == 0:
                self._tower.hear(len(sessions), self._in)
            out = self.engine.step(numbers, count, self._ids(sum(count)), sample=asks, ahead=going)
            self.said = {token for token in out.ids if token is not None}
            spoke = []
            for session, token, stalled in zip(sessions, out.ids, out.stalled, strict=True):
                if stalled:
                    yield Stalled(session, self._rates.get(session, self._in) if turn == 0 else 0)
                    continue
                if turn == 0:
                    yield Prefilled(session, self._rates.get(session, self._in))
                yield Said(session, str(token))
                spoke.append(session)
            sessions, count = spoke, [0] * len(spoke)
            if not sessions:
                return

    def cancel(self, session: SessionId) -> None:
        self.engine.cancel(self._numbers[session])

    def close(self, session: SessionId) -> None:
        if (number := self._numbers.pop(session, None)) is not None:
            self.engine.close(number)

    def blocks(self, session: SessionId) -> int:
        return self.engine.held(self._numbers[session]) if session in self._numbers else 0

    def policy(self, session: SessionId) -> Policy:
        return self._policy

    def usage(self) -> KvUsage:
        pool = self.engine.pool
        return KvUsage(
            pool.leased, pool.reserved, pool.total, pool.room(self._policy, self.engine.max_append)
        )

    def _ids(self, count: int) -> torch.Tensor:
        vocab = self.engine.decoder.config.vocab
        return torch.randint(vocab, (count,), generator=self._random)
