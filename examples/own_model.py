"""A model of one's own in one file: ears that hear how loud it is, a small random decoder, a mouth that hums.

    PYTHONPATH=examples metronome serve --profile examples/own_model.toml

docs/adding-a-model.md walks through it. Shape letters: C calls, H hidden.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.random_weights import random_decoder
from metronome_cli.engine.sampling import Sampling
from metronome_cli.frame import (
    SPEAKING_RATE,
    Failed,
    Frame,
    KvUsage,
    Prefilled,
    Refused,
    Said,
    Stalled,
    TickEvent,
)
from metronome_cli.models import parts
from metronome_cli.profile import OWN, Profile, Terms
from metronome_cli.window import Policy

WORDS = ("do ", "re ", "mi ", "fa ", "so ", "la ", "ti ", "da ")
SIZE = DecoderConfig(32, 2, 2, 1, 16, intermediate=64, vocab=len(WORDS), norm_eps=1e-6)


@dataclass
class Level:
    """All that the ears keep of a call."""

    loud: float = 0.0  # of what was heard, the latest counting most
    paused: bool = False  # whether the latest frame was quiet after sound


class Ears:
    rate = 16_000
    open = Level

    def hear(
        self, calls: Sequence[Level], pieces: Sequence[NDArray[np.float32]], ends: Sequence[bool]
    ) -> list[torch.Tensor]:
        for call, piece in zip(calls, pieces, strict=True):
            now = float(np.abs(piece).sum()) / max(1, len(piece))
            call.paused = call.loud > 0.02 > now
            call.loud = 0.0 if call.paused else 0.5 * (call.loud + now)
        levels_CH = torch.outer(torch.tensor([call.loud for call in calls]), torch.arange(SIZE.hidden))
        return list(torch.cos(levels_CH).split(1))  # one position for each frame


class Mouth:
    def __init__(self, samples: int) -> None:
        pitches, time = 220 * 2 ** (np.arange(len(WORDS)) / 7), np.arange(samples) / SPEAKING_RATE
        self.tones = 16_384 * np.sin(2 * np.pi * np.outer(pitches, time))

    def open(self) -> None: ...

    def speak(self, calls: Sequence[None], ids: Sequence[int], hidden: torch.Tensor) -> list[parts.Spoken]:
        volumes_C = hidden.mean(1).sigmoid().numpy()
        hummed = (volumes_C[:, None] * self.tones[list(ids)]).astype("<i2")
        return [parts.Spoken(WORDS[token], pcm.tobytes()) for token, pcm in zip(ids, hummed, strict=True)]


@dataclass
class Call:
    number: int  # the engine's
    policy: Policy
    ear: Level
    left: int = 0  # tokens that it is still to say
    said: int = 0  # of the reply in progress


class Toy:
    """A `metronome_cli.frame.TickEngine`."""

    def __init__(self, profile: Profile) -> None:
        self.profile, self.bound, beat = profile, profile.check_fit(0), profile.beat
        self.engine = Engine(
            random_decoder(SIZE), profile.pool.count, profile.pool.block_size, beat.prefill_tokens
        )
        self.ears: parts.Ears[Level] = Ears()
        self.mouth: parts.Mouth[None] = Mouth(round(SPEAKING_RATE * beat.frame_s / beat.tau))
        self.calls: dict[int, Call] = {}

    def open(self, session: int, seed: int, terms: Terms = OWN) -> Refused | None:
        policy, model = self.profile.session_policy(terms, 0, 0), self.profile.model
        number = self.engine.open(policy, sampling=Sampling(model.temperature, model.top_p, seed))
        if number is None:
            return Refused("pool_full")
        self.calls[session] = Call(number, policy, self.ears.open())
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        ears, audio = [self.calls[f.session].ear for f in frames], [f.audio for f in frames]
        heard = self.ears.hear(ears, audio, [f.commit > 0 for f in frames])
        reads: dict[int, torch.Tensor] = {}
        for frame, heard_TH in zip(frames, heard, strict=True):
            if not heard_TH.isfinite().all():
                yield Failed(frame.session, "its audio is not finite")
            elif call := self.calls.get(frame.session):  # an event gives time to close calls
                self.take_turn(call, frame)
                reads[frame.session] = heard_TH
        yield from self.step(reads, {frame.session: frame for frame in frames})
        for _ in range(self.profile.beat.tau - 1):
            going = [s for s in reads if s in self.calls and self.engine.has_pending(self.calls[s].number)]
            yield from self.step({s: reads[s][:0] for s in going if self.calls[s].left}, {})

    def take_turn(self, call: Call, frame: Frame) -> None:
        limit = self.profile.model.max_reply
        if frame.reply is not None or (frame.duplex and (frame.texts or frame.commit or call.ear.paused)):
            call.left, call.said = min(frame.reply or frame.most or limit, limit), 0

    def step(self, reads: dict[int, torch.Tensor], frames: dict[int, Frame]) -> Iterator[TickEvent]:
        """Append to all calls in one batch, and let those that speak say one token each."""
        calls = [self.calls[session] for session in reads]
        inputs_TH = torch.cat([torch.zeros(0, SIZE.hidden), *reads.values()])
        numbers, lengths = [call.number for call in calls], [len(read) for read in reads.values()]
        output = self.engine.step(numbers, lengths, inputs_TH, sample=[call.left > 0 for call in calls])
        ends = np.cumsum(output.appended) - 1
        spoke = {
            session: (token, end)
            for session, token, end in zip(reads, output.ids, ends, strict=True)
            if token is not None
        }
        ids, places = [token for token, _ in spoke.values()], [end for _, end in spoke.values()]
        spoken = dict(
            zip(spoke, self.mouth.speak([None] * len(ids), ids, output.hidden[places]), strict=True)
        )
        for session, call, stalled in zip(reads, calls, output.stalled, strict=True):
            if stalled:
                yield Stalled(session, dropped=len(reads[session]))
            elif session in frames:
                yield Prefilled(
                    session, len(reads[session]), over=frames[session].commit, speaking=call.left > 0
                )
            if session in spoken and self.calls.get(session) is call and call.left:
                call.left, call.said = call.left - 1, call.said + 1
                word, end = spoken[session], call.left == 0
                yield Said(session, word.text, end, start=call.said == 1, cut=end, pcm=word.pcm)

    def cancel(self, session: int) -> None:
        self.calls[session].left = 0
        self.engine.cancel(self.calls[session].number)

    def close(self, session: int) -> None:
        if call := self.calls.pop(session, None):
            self.engine.close(call.number)

    def blocks(self, session: int) -> int:
        return self.engine.held(self.calls[session].number) if session in self.calls else 0

    def policy(self, session: int) -> Policy:
        return self.calls[session].policy

    def usage(self) -> KvUsage:
        pool = self.engine.pool
        return KvUsage(pool.leased, pool.reserved, pool.total, pool.room(self.bound, self.engine.max_append))
