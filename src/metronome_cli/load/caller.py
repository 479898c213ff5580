"""One caller: dials, speaks at wall-clock pace whatever the server does, listens, hangs up or vanishes.

Knows:   one line from the first ring to the last word, and how it ended.
Ignores: other calls, files, conclusions, and the words of any one protocol.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode

from ..clock import Clock
from ..errors import InputError, MetronomeError
from .call import Call, Cancel
from .frames import CallFrames
from .protocols import Message, Sound, Token, Tongue, recognise, tongue
from .targets import TurnedAway, dial

BROKEN = "the line broke without a goodbye"
GREETING_S = 10.0  # how long an open line may stay mute: some servers take one caller and let the others wait
_FAIR_S = 1.0  # a server must be given this long before its silence says anything
_CANCEL_AFTER_S = (0.05, 0.5)  # from a reply's first token to its cancel: within a word or two

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to call, and how to introduce oneself."""

    address: str
    protocol: str = "auto"
    model: str = ""
    api_key: str = ""
    modality: str = "auto"  # of replies, one of protocols.MODALITIES


async def hold(call: Call, target: Target, clock: Clock, until: float, stop: asyncio.Event) -> None:
    """Dial `call`, and hold it until `until` or `stop`; a call that was refused may be dialled again.

    How it ended is in its `fate`, never raised.
    """
    call.attempts += 1
    try:
        line = await _unless(stop, dial(target.address, target.api_key))
        if line is None:
            return
        if isinstance(line, TurnedAway):
            call.fate, call.why = "refused", line.reason
            call.refusals.append(line)
            return
        async with line:
            await _answered(call, target, line, clock, until, stop)
    except MetronomeError as error:
        call.fate, call.why, call.failure = "unreachable", str(error), error
    finally:
        call.begun.set()


async def _answered(
    call: Call, target: Target, line: ClientConnection, clock: Clock, until: float, stop: asyncio.Event
) -> None:
    """Wait for the server's first message, and go on in its tongue."""
    patience = max(0.0, min(GREETING_S, until - clock.now()))
    try:
        async with asyncio.timeout(patience):
            first = await _unless(stop, line.recv())
    except TimeoutError:
        if patience >= min(GREETING_S, _FAIR_S):  # else the run was over before anybody could answer
            call.fate, call.why = "refused", "no_greeting"
        return
    except ConnectionClosed:
        call.fate, call.why = "refused", _goodbye(line)
        return
    if first is None:
        return
    call.protocol = recognise(target.protocol, target.address, first)
    caller = _Caller(call, line, tongue(call.protocol, target.model, target.modality), clock)
    caller.heed(first)
    call.begun.set()
    await caller.talk(until, stop)


async def _unless(stop: asyncio.Event, wait: Coroutine[Any, Any, _T]) -> _T | None:
    """What `wait` comes to; None when the run is to end before that."""
    tasks = work, stopped = asyncio.create_task(wait), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        work.cancel()
        stopped.cancel()


class _Caller:
    """Somebody with a microphone and an open line."""

    def __init__(self, call: Call, line: ClientConnection, speaker: Tongue, clock: Clock) -> None:
        self._call, self._line, self._speaker, self._clock = call, line, speaker, clock
        self._whims = np.random.default_rng((call.manner.seed, call.number))
        self._errands: set[asyncio.Task[None]] = set()
        # The microphone opens now: sample 0 is due at this moment, and every later due time hangs on it.
        self._frames = call.frames = CallFrames(call.number, clock.now(), call.manner.arm)
        call.fate = "live"

    async def talk(self, until: float, stop: asyncio.Event) -> None:
        """Speak and listen at once, until either side has enough."""
        until = min(until, self._frames.start + self._call.manner.length_s)
        listening, speaking, vanishing, _ = tasks = (
            asyncio.create_task(self._listen()),
            asyncio.create_task(self._speak(until)),
            asyncio.create_task(self._vanish()),
            asyncio.create_task(stop.wait()),
        )
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call.ended = self._clock.now()
            vanished, hung_up = vanishing.done(), not listening.done() and not _broken(speaking)
            for task in (*tasks, *self._errands):
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, ConnectionClosed):
                raise end
        self._call.fate = "vanished" if vanished else "done" if hung_up else "cut_off"
        if self._call.fate == "cut_off":
            self._call.why, self._call.closed = _goodbye(self._line), self._line.close_code

    def heed(self, message: Message) -> None:
        """Take in what the server said."""
        at, call = self._clock.now(), self._call
        try:
            events = self._speaker.hear(message)
        except InputError as error:
            call.object(error.code, at)
            return
        for event in events:
            before = call.reply
            call.note(self._frames, event, at)
            # Sound without a reply's name is one endless stream: nothing begins in it.
            begins = isinstance(event, Token | Sound) and call.reply != before
            if begins and self._whims.random() < call.manner.cancel_rate:
                errand = asyncio.create_task(self._cancel(call.reply))
                self._errands.add(errand)
                errand.add_done_callback(self._errands.discard)

    async def _listen(self) -> None:
        async for message in self._line:
            self.heed(message)

    async def _speak(self, until: float) -> None:
        for message in self._speaker.opening():
            await self._say(message)
        frames, clock = self._frames, self._clock
        for packet in itertools.count():
            if frames.due(packet) > until:
                break
            await clock.sleep_until(frames.due(packet))
            frames.sent(packet, clock.now())
            sound = self._speaker.packet(self._call.stream.packet())
            if sound is not None:
                await self._say(sound)
        for message in self._speaker.closing():
            await self._say(message)

    async def _vanish(self) -> None:
        """The connection is gone at its hour, without a close frame: a phone in a tunnel."""
        after = self._call.manner.vanish_s
        if after is None:
            await asyncio.Event().wait()
        else:
            await self._clock.sleep_until(self._frames.start + after)
            self._line.transport.abort()

    async def _cancel(self, reply: str | None) -> None:
        await self._clock.sleep_until(self._clock.now() + self._whims.uniform(*_CANCEL_AFTER_S))
        message = self._speaker.cancel()
        if message is None or reply is None or self._call.reply != reply:
            return  # the last: it was complete before that
        self._call.cancels[reply] = Cancel(reply, self._clock.now())
        try:
            await self._say(message)
        except ConnectionClosed:
            return  # whoever listens sees it too, and tells

    async def _say(self, message: Message) -> None:
        await self._line.send(message, text=not self._speaker.binary)


def _broken(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is not None


def _goodbye(line: ClientConnection) -> str:
    if line.close_code in (None, CloseCode.ABNORMAL_CLOSURE):
        return BROKEN
    return f"closed by the server, {line.close_code} {line.close_reason or ''}".rstrip()
