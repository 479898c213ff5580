"""A model without weights, to measure the gateway and the beat alone.

Knows:   the block accounts of a real model: what it would append, hold, stall on and give back.
Ignores: what was said to it. It needs no torch; every token it says comes from one fixed sentence.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..engine.blocks import BlockPool, Lane
from ..frame import Frame, KvUsage, Prefilled, Refused, Said, SessionId, Stalled, TickEvent
from ..profile import OWN, Profile, Terms
from ..window import Policy, Recycle

HEARD_PER_S = 3  # tokens that a second of audio becomes: about the pace of spoken English
REPLY = ("I ", "hear ", "nothing, ", "but ", "I ", "keep ", "the ", "beat.")


@dataclass(slots=True)
class _Call:
    lane: Lane
    samples: int = 0  # heard so far
    waiting: int = 0  # tokens heard or read, not yet appended
    said: int = 0  # tokens of the current reply
    most: int = 0  # of them
    speaking: bool = False
    asked: deque[int] = field(default_factory=deque)  # most tokens of each reply that waits for this to end


class NullModel:
    """Hears nothing. In free mode it says `tau` tokens a frame; in turn mode REPLY when it is asked to, and
    in a duplex call to each text or commit."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._header = len(profile.model.header.split())
        self._policy = profile.check_fit(self._header)
        self._free = profile.model.mode == "free"
        self._tau = profile.beat.tau
        self._rate = profile.model.rate
        self._most = profile.beat.prefill_tokens
        self._pool = BlockPool(profile.pool.count, profile.pool.block_size)
        self._calls: dict[SessionId, _Call] = {}

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        header = len(self._profile.on(terms).model.header.split())
        lane = self._pool.open(self._profile.session_policy(terms, self._header, header), self._most)
        if lane is None:
            return Refused("pool_full")
        for start in range(0, header, self._most):
            if not _append(lane, min(self._most, header - start)):
                lane.close()
                return Refused("pool_full")
        self._calls[session] = _Call(lane, speaking=self._free)
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        speaking = []
        for frame in frames:
            if call := self._calls.get(frame.session):
                event = self._hear(frame, call)
                if isinstance(event, Prefilled) and event.speaking:
                    speaking.append(frame.session)
                yield event
        for _ in range(self._tau):
            if not speaking:
                return
            for session in tuple(speaking):
                word = self._speak(session)
                if word:
                    yield word
                if not isinstance(word, Said) or word.end:
                    speaking.remove(session)

    def cancel(self, session: SessionId) -> None:
        if call := self._calls.get(session):
            call.said, call.speaking = 0, self._free

    def close(self, session: SessionId) -> None:
        if call := self._calls.pop(session, None):
            call.lane.close()

    def blocks(self, session: SessionId) -> int:
        call = self._calls.get(session)
        return call.lane.held if call else 0

    def policy(self, session: SessionId) -> Policy:
        return self._calls[session].lane.policy

    def usage(self) -> KvUsage:
        pool = self._pool
        return KvUsage(pool.leased, pool.reserved, pool.total, pool.room(self._policy, self._most))

    def _hear(self, frame: Frame, call: _Call) -> Prefilled | Stalled:
        before = call.samples * HEARD_PER_S // self._rate
        call.samples += len(frame.audio)
        call.waiting += call.samples * HEARD_PER_S // self._rate - before
        call.waiting += sum(len(text.split()) for text in frame.texts)
        self._ask(frame, call)
        tokens = min(call.waiting, self._most)
        if not _append(call.lane, tokens):
            dropped, call.waiting = call.waiting, 0
            lost = call.speaking and call.said == 0 and not self._free
            call.speaking = call.speaking and not lost
            return Stalled(frame.session, dropped, reply=lost)
        call.waiting -= tokens
        unread = call.waiting + len(call.asked)
        return Prefilled(frame.session, tokens, over=frame.commit, speaking=call.speaking, unread=unread)

    def _ask(self, frame: Frame, call: _Call) -> None:
        """Note the replies that the frame asks for, and begin the next one if none is in progress."""
        times = frame.commit + len(frame.texts) if frame.duplex else 0
        if self._free:
            call.said = 0 if times else call.said  # interrupted
            return
        call.asked.extend([frame.most_tokens(len(REPLY))] * (times or frame.reply is not None))
        if call.asked and not call.speaking:
            call.said, call.speaking, call.most = 0, True, call.asked.popleft()

    def _speak(self, session: SessionId) -> Said | Stalled | None:
        """The next token of a call; None when it has nothing to say or is gone."""
        call = self._calls.get(session)
        if call is None or not call.speaking:
            return None
        if not _append(call.lane, 1):
            return Stalled(session, dropped=0)
        start, word = call.said == 0, REPLY[call.said % len(REPLY)]
        call.said += 1
        whole = call.said == len(REPLY)
        end = not self._free and (whole or call.said >= call.most)
        if end:
            call.said, call.speaking = 0, False
        return Said(session, word, end, start, cut=end and not whole)


def _append(lane: Lane, tokens: int) -> bool:
    """Lease room for `tokens` more and give back what fell out of the window; False when there is none."""
    policy = lane.policy
    if isinstance(policy, Recycle) and lane.length + tokens > policy.window:
        lane.restart()
        tokens += policy.carry
    if not lane.extend(tokens):
        return False
    lane.retire()
    return True
