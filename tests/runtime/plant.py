"""A toy server in virtual time for tests of admission: ticks that take a + b n, a pool that fills or not."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from metronome_cli.frame import KvUsage
from metronome_cli.runtime.admission import Admission, Measured

PERIOD_S = 2.0


@dataclass
class Plant:
    """Callers who come at random, `arrivals_per_beat` of them, and speak from their first tick on.

    A tick of n calls takes `fixed_s + per_call_s * n`, and by `noise` (a standard deviation) of that more or
    less. Bounded calls hold `bound` blocks each from the start; without a bound a call takes `fill_per_s`
    blocks a second, whole ones, until the pool has none. A call lasts `call_s` at the most, and with `churn`
    any shorter time.
    """

    admission: Admission
    fixed_s: float
    per_call_s: float
    arrivals_per_beat: float = 16.0
    call_s: float = math.inf
    churn: bool = False
    blocks: int = 10**9
    bound: int | None = 1
    fill_per_s: float = 0.0
    noise: float = 0.0
    seed: int = 0
    now: float = 0.0
    live: list[int] = field(default_factory=list)  # after each beat
    caps: list[int] = field(default_factory=list)
    stalled: int = 0  # frames, in all
    latest_s: float = 0.0

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self._calls: list[tuple[float, float]] = []  # when each came, when it hangs up
        self._filled: list[int] = []  # blocks of each

    def run(self, beats: int) -> None:
        for _ in range(beats):
            self._beat()

    def _beat(self) -> None:
        self._arrive()
        staying = [n for n, (_, end) in enumerate(self._calls) if end > self.now]
        self._calls = [self._calls[n] for n in staying]
        before = [self._filled[n] for n in staying]
        self._filled, stalled = self._fill(before)
        self.stalled += stalled
        served = len(self._calls)
        noisy = 1 + self.noise * float(self._random.standard_normal())
        self.latest_s = (self.fixed_s + self.per_call_s * served) * noisy
        older = [n for n, (came, _) in enumerate(self._calls) if came < self.now]
        self.admission.observe(
            Measured(
                due=self.now,
                done=self.now + self.latest_s,
                served=served,
                live=served,
                fresh_s=self.latest_s if served > stalled else None,
                stalled=stalled,
                older=len(older),
                grown=sum(self._filled[n] - before[n] for n in older),
                pool=self._usage(),
            )
        )
        self.live.append(served)
        self.caps.append(self.admission.cap.calls)
        self.now += PERIOD_S

    def _arrive(self) -> None:
        for _ in range(self._random.poisson(self.arrivals_per_beat)):
            usage = self._usage()
            if self.admission.decide(len(self._calls)) is None and usage.room != 0:
                share = float(self._random.random()) if self.churn else 1.0
                self._calls.append((self.now, self.now + share * self.call_s))
                self._filled.append(self.bound or 0)

    def _fill(self, before: list[int]) -> tuple[list[int], int]:
        if self.bound is not None:
            return before, 0
        filled, stalled, free = list(before), 0, self.blocks - sum(before)
        for n, (came, _) in enumerate(self._calls):
            wanted = int((self.now + PERIOD_S - came) * self.fill_per_s) - filled[n]
            taken = wanted if wanted <= free else 0  # a frame is read whole or not at all
            stalled += wanted > taken
            filled[n] += taken
            free -= taken
        return filled, stalled

    def _usage(self) -> KvUsage:
        leased = sum(self._filled)
        free = self.blocks - leased
        if self.bound is None:
            return KvUsage(leased, 0, self.blocks, None if free else 0)
        return KvUsage(leased, leased, self.blocks, free // self.bound)
