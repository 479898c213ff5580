"""Moshi: it listens and speaks at once, a position a frame, and thinks aloud in text.

Knows:   the audio that waits, slots, the windowed engine, who is told what in a tick.
Ignores: what ears, depth transformer and mouth compute (streams.py), checkpoints (moshi_weights.py), time.

Frames are cut by the beat, positions by samples: 1,920 of them are one. What is over waits for the next tick;
where a tick brought too little (a late packet) the call has no position in it, and where enough waits for two
it has two. A caller who sent nothing at all in a frame is heard as silence: Moshi goes on speaking. Of more
than a second that waits the oldest is not heard. It reads no text: what is typed to it is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ..engine.checkpoint import count_weights
from ..engine.device import device_of
from ..engine.engine import Engine
from ..engine.sampling import Sampling
from ..engine.weights import dtype_of
from ..errors import ProfileError
from ..frame import Failed, Frame, KvUsage, Prefilled, Refused, Said, SessionId, Stalled, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy, Unbounded
from .assets import here, locate
from .chat import Stream
from .moshi_config import RATE, codec_bytes, read_config, row_bytes, sizes_of
from .moshi_weights import Parts, read_parts
from .room import kept_as, pool_blocks
from .streams import Place, Streams

HEADER = 2  # positions that a call begins with before it is whole: codes that are not there yet stand in both
MOST_POSITIONS = 2  # of a call in a tick: one, and one that a late packet left over
MOST_WAITING = 12  # frames of audio: about a second
RESERVE = (
    480  # samples that wait behind a position: a packet that comes a little late leaves no tick without one
)


@dataclass(slots=True)
class _Call:
    session: SessionId
    slot: int
    number: int  # of the engine's session
    policy: Policy
    random: np.random.Generator
    stream: Stream | None
    waiting: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    position: int = 0  # of the next frame
    begun: bool = False  # whether anything was said since it was opened or interrupted


class Moshi:
    """A `TickEngine`. Loads everything, so creating one takes a while.

    AssetError when weights are missing or of another model; ProfileError when the profile asks for what Moshi
    cannot do, or one session does not fit the pool. `parts`: in place of those that the profile names.
    """

    def __init__(self, profile: Profile, parts: Parts | None = None) -> None:
        torch.set_num_threads(profile.run.threads)
        self._profile = profile
        _check(profile)
        self._policy = profile.check_fit(HEADER)
        self._parts, blocks = (parts, profile.pool.count) if parts else _load(profile, self._policy)
        _check_window(self._policy, self._parts.window)
        self.engine = Engine(
            self._parts.decoder,
            blocks,
            profile.pool.block_size,
            max_append=profile.beat.prefill_tokens,
            kv_dtype=kept_as(profile, self._policy),
        )
        slots, model = profile.admission.max_sessions, profile.model
        self.streams = Streams(self._parts, slots, model.temperature, model.top_p)
        self._samples = self._parts.codec.frame_samples
        self._free = list(range(slots))
        self._calls: dict[SessionId, _Call] = {}

    @staticmethod
    def check(profile: Profile) -> None:
        """ProfileError where the profile asks for another beat, rate or manner than Moshi has, or for more
        than fits; AssetError when a checkpoint that is here is not whole."""
        _check(profile)
        policy = profile.check_fit(HEADER)
        if folder := here(profile.model.thinker):
            _blocks(profile, policy, folder)

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        if terms.instructions:
            raise ProfileError("session.instructions", terms.instructions, "Moshi takes none: leave them out")
        policy = self._profile.session_policy(terms, HEADER, HEADER)
        _check_window(policy, self._parts.window)
        if not self._free:
            return Refused("pool_full")
        model = self._profile.model
        sampling = Sampling(model.temperature, model.top_p, seed)
        number = self.engine.open(policy, self._profile.on(terms).window.positions, sampling)
        if number is None:
            return Refused("pool_full")
        slot = self._free.pop()
        self.streams.wipe(slot)
        words = self._parts.words
        self._calls[session] = _Call(
            session,
            slot,
            number,
            policy,
            np.random.default_rng(seed),
            Stream(words.tokenizer) if words else None,
        )
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        commits = {frame.session: frame.commit for frame in frames if frame.session in self._calls}
        calls = [self._calls[session] for session in commits]
        for frame in frames:
            if frame.session in commits:
                self._take(self._calls[frame.session], frame)
        is_due = {call.session: self._has_frame(call) for call in calls}
        for turn in range(MOST_POSITIONS):
            due = [call for call in calls if self._is_live(call) and self._has_frame(call, late=turn > 0)]
            if due:
                yield from self._position(due, commits if turn == 0 else None)
        for call in calls:
            if self._is_live(call) and not is_due[call.session]:
                yield Prefilled(call.session, 0, over=commits[call.session], speaking=False)

    def cancel(self, session: SessionId) -> None:
        if call := self._calls.get(session):
            call.begun = False  # it never stops speaking; what it says next is told as a new reply

    def close(self, session: SessionId) -> None:
        if call := self._calls.pop(session, None):
            self.engine.close(call.number)
            self._free.append(call.slot)

    def blocks(self, session: SessionId) -> int:
        call = self._calls.get(session)
        return self.engine.held(call.number) if call else 0

    def policy(self, session: SessionId) -> Policy:
        return self._calls[session].policy

    def usage(self) -> KvUsage:
        pool = self.engine.pool
        return KvUsage(
            pool.leased, pool.reserved, pool.total, pool.room(self._policy, self.engine.max_append)
        )

    def _take(self, call: _Call, frame: Frame) -> None:
        """Add a frame's audio to what waits."""
        before = call.waiting[:0] if frame.clear else call.waiting
        audio = frame.audio
        if not len(audio):
            audio = np.zeros(max(0, self._samples - len(before)), np.float32)
        call.waiting = np.concatenate((before, audio))[-MOST_WAITING * self._samples :]

    def _has_frame(self, call: _Call, late: bool = False) -> bool:
        """Whether a frame waits; for a call's first position, and a tick's `late` second one, a reserve too.

        A caller who sends whole frames has none: of him either a frame is there or it is not.
        """
        is_ragged = len(call.waiting) % self._samples > 0
        reserve = RESERVE if is_ragged and (late or call.position == 0) else 0
        return bool(len(call.waiting) >= self._samples + reserve)

    def _position(self, due: list[_Call], commits: dict[SessionId, int] | None) -> Iterator[TickEvent]:
        """One position of each call. With `commits` it is the first of this tick.

        Nothing is told before all is computed: who is told may close a call, and its slot get a new tenant.
        """
        pieces = np.stack([call.waiting[: self._samples] for call in due])
        for call in due:
            call.waiting = call.waiting[self._samples :]
        numbers = [call.number for call in due]
        embedded = self.streams.hear([Place(call.slot, call.position) for call in due], pieces)
        step = self.engine.step(numbers, [1] * len(due), embedded, sample=[True] * len(due))
        for number in numbers:
            self.engine.cancel(number)  # the next position takes the id in by itself, with its codes
        draws = [call.random.random(self._parts.books, np.float32) for call in due]
        self.streams.think(step.ids, step.hidden, np.stack(draws))
        sound, finite = self.streams.speak()
        told: list[tuple[_Call, list[TickEvent]]] = []
        for call, token, pcm, is_finite in zip(due, step.ids, sound, finite, strict=True):
            if not is_finite:
                told.append(
                    (call, [Failed(call.session, "its audio holds what is no sound (NaN or infinite)")])
                )
            elif token is None:
                told.append((call, [Stalled(call.session, dropped=1)]))
            else:
                call.position += 1
                over = None if commits is None else commits[call.session]
                told.append((call, self._said(call, token, pcm, over)))
        for call, events in told:
            for event in events:
                if self._is_live(call):
                    if isinstance(event, Failed):
                        self.close(call.session)
                    yield event

    def _said(self, call: _Call, token: int, pcm: bytes, over: int | None) -> list[TickEvent]:
        said = Said(call.session, self._text(call, token), start=not call.begun, pcm=pcm)
        call.begun = True
        return [said] if over is None else [Prefilled(call.session, 1, over=over), said]

    def _text(self, call: _Call, token: int) -> str:
        words = self._parts.words
        if words is None or call.stream is None:
            return f"{token} "
        return "" if token in words.silent else call.stream.text(token)

    def _is_live(self, call: _Call) -> bool:
        return self._calls.get(call.session) is call  # not closed, nor opened anew on other terms


def _check(profile: Profile) -> None:
    """ProfileError where the profile asks for another beat, rate or manner than Moshi has."""
    model, beat = profile.model, profile.beat
    if model.rate != RATE:
        raise ProfileError("model.rate", model.rate, f"Moshi hears {RATE} samples per second; use {RATE}")
    if beat.frame_s != 0.08:
        raise ProfileError("beat.frame_s", beat.frame_s, "Moshi has 12.5 positions per second; use 0.08")
    if beat.tau != 1:
        raise ProfileError("beat.tau", beat.tau, "Moshi decodes one position per frame; use 1")
    if model.mode != "free":
        raise ProfileError("model.mode", model.mode, "Moshi listens and speaks at once; use free")


def _load(profile: Profile, policy: Policy) -> tuple[Parts, int]:
    """Everything on the profile's device, where it and its pool fit, and how many blocks that pool gets."""
    device, dtype = device_of(profile.run.device), dtype_of(profile.model.dtype)
    folder = locate(profile.model.thinker)
    blocks = _blocks(profile, policy, folder)
    return read_parts(folder, dtype, device, profile.admission.max_sessions), blocks


def _blocks(profile: Profile, policy: Policy, folder: Path) -> int:
    """Of the pool, by what `folder` says of itself. AssetError or ProfileError as of `Moshi`."""
    config = read_config(folder)
    _check_window(policy, config.sliding_window)
    weights = count_weights(folder) * dtype_of(profile.model.dtype).itemsize
    beside = codec_bytes(config) + row_bytes(config)
    return pool_blocks(profile, policy, sizes_of(config), weights, beside)


def _check_window(policy: Policy, most: int) -> None:
    """ProfileError when more would be seen than Moshi was trained to see, or less than it needs."""
    if isinstance(policy, Unbounded) or HEADER <= policy.window <= most:
        return
    cure = f"use {HEADER} to {most} positions: its codes span {HEADER}, and it was trained to see {most}"
    raise ProfileError("window.window", policy.window, cure)
