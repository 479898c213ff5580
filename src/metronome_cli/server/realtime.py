"""One caller: OpenAI Realtime events on one side, the engine's messages on the other.

Knows:   what each client event and each message of the engine sets in motion.
Ignores: who let the caller in (app.py), how replies are told (conversation.py), how much may wait (line.py).
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from dataclasses import replace
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import wire
from ..clock import Clock
from ..errors import InputError
from ..frame import SessionId
from ..profile import Profile, Terms
from . import messages
from .conversation import Conversation, Say
from .intake import Intake
from .line import Line
from .link import EngineLink
from .outbox import MAX_OUTGOING, MAX_OUTGOING_BYTES, PATIENCE_S, RESUMED, Outbox, number_of
from .reader import Reader
from .settings import check_in_time, info, initial, reply_settings, typed, update
from .turns import Started, TurnDetector

_GOODBYES = (1000, 1001, 1005)  # WebSocket close codes of a client that meant it; 1005: it gave none


class Call:
    """A caller, from the moment it asks to come in until its session is over. It is the link's Caller."""

    def __init__(self, link: EngineLink, profile: Profile, clock: Clock) -> None:
        self.ended = asyncio.Event()  # by either side's wish
        self.parted = asyncio.Event()  # no connection is left
        self.token: str | None = None  # with which a lost connection is taken up again
        self._profile = profile
        self._reader = Reader(profile.server, clock, link.metrics)
        self._outbox = Outbox(link.metrics, clock)
        self._line = Line(link, profile)
        self._upbeat = link.upbeat
        self._mark = link.mark
        self._conversation = Conversation(_weakly(self._say))
        self._settings = initial(profile)
        self._tell_conversation()
        self._intake = Intake(self._settings.rate, profile.model.rate)
        self._detector = TurnDetector(self._settings.detection.turns, profile.model.rate)
        self._begun = False  # something was said or asked for
        self._most_held_s = link.upbeat.most_held_s()
        self._appended = False  # audio since the last commit
        self._agreed = self._settings.terms  # which the engine's session is held on
        self._window: int | None = None  # that it has on these terms, once the engine has told
        self._asked: deque[Terms] = deque()  # terms that the engine has not answered yet
        self._cancelling = 0  # cancels that the engine did not confirm yet
        self._told_full = False  # since the latest tick, that audio without an id was refused
        self._deaf = profile.model.kind == "text"  # and the caller was not told so yet

    @property
    def session(self) -> SessionId:
        """The engine's number; 0 before it has one."""
        return self._line.session

    # ---- The connection ----

    async def hold(self, socket: WebSocket, again: list[bytes]) -> None:
        """Accept a connection and serve it until either side ends it; `again` is sent first."""
        self.parted.clear()
        # Before anything is waited for: what is said from here on must not fall between `again` and it.
        self._outbox.begin(again)
        try:
            await socket.accept()
            await self._both_ways(socket)
        finally:
            self._outbox.end()
            self.parted.set()

    async def _both_ways(self, socket: WebSocket) -> None:
        halves = [asyncio.create_task(self._outbox.run(socket)), asyncio.create_task(self._read(socket))]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            results = await asyncio.gather(*halves, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
                raise result

    def again(self, after: str | None) -> list[bytes] | None:
        """What to send to a caller who comes back: all since its event `after`. None when that is lost."""
        number = self._outbox.number if after is None else number_of(after, self.session)
        backlog = None if number is None or self.ended.is_set() else self._outbox.since(number)
        if backlog is None:
            return None
        event_id = f"event_{self.session}_{number}{RESUMED}"
        hello = wire.SessionResumed(event_id=event_id, session=self._info(), replayed=len(backlog))
        return [wire.encode(hello), *backlog]

    def let_go(self, code: int) -> None:
        """Close the connection, not the call."""
        self._outbox.let_go(code)

    def hang_up(self, code: str, why: str, kind: str = "server_error") -> None:
        """End the call for a reason of ours."""
        self.ended.set()
        self._outbox.hang_up(self._error(kind, code, why), wire.CLOSE_CODES[code])
        # Whatever the network does with the last event, the blocks go back now.
        self._line.close()

    def warn(self, code: str, why: str) -> None:
        self._say(self._error("server_error", code, why))

    def over(self) -> None:
        """What is large goes now: the net and the kept events must not wait for the garbage collector."""
        self._detector.close()
        self._outbox.keep(0)

    async def _read(self, socket: WebSocket) -> None:
        if await self._reader.read(socket, self) in _GOODBYES:
            self.ended.set()

    # ---- What the caller says ----

    def take(self, event: wire.ClientEvent) -> None:
        """An event of the caller's. InputError when it cannot be met."""
        if self._outbox.ending:
            return
        if isinstance(event, wire.AudioAppend):
            self._append(event.audio, event.event_id)
            return
        self.hand_on()  # what is held was said before this
        match event:
            case wire.AudioCommit(event_id=event_id):
                self._commit_asked(event_id)
            case wire.AudioClear():
                self._clear()
            case wire.ItemCreate(item=item, event_id=event_id):
                text = typed(event, self._conversation.last_item)
                self._line.say(messages.Text, text, event_id, size=len(text.encode()))
                self._begun = True
                self._conversation.typed(text, item.id)
            case wire.ResponseCreate(response=asked):
                self._reply(asked)
            case wire.ResponseCancel(event_id=event_id):
                self._cancel_asked(event.response_id, event_id)
            case wire.SessionUpdate(session=settings, event_id=event_id):
                self._update(settings, event_id)

    def _update(self, asked: wire.SessionSettings, event_id: str | None) -> None:
        before, after = self._settings, update(self._settings, asked, self._profile)
        if self._begun:
            check_in_time(before, after)
        self._line.check_room(0)  # what is taken is taken whole
        if after.rate != before.rate:
            self._listen(self._intake.finish(), None)
            self._intake = Intake(after.rate, self._profile.model.rate)
        if after.detection.duplex != before.detection.duplex:
            self._detector.reset()  # a turn belongs to the one way or the other
        self._detector.settings = after.detection.turns
        self._settings = after
        self._tell_conversation()
        self._keep()
        if (after.detection.duplex, after.most_tokens) != (before.detection.duplex, before.most_tokens):
            self._tell_turns()
        if after.terms == before.terms:
            self._say(wire.SessionUpdated(event_id="", session=self._info()))
        else:
            self._asked.append(after.terms)
            self._line.follow(messages.Settle, after.terms.model_dump(exclude_none=True), event_id)

    def _append(self, pcm: bytes, event_id: str | None) -> None:
        if len(pcm) % 2:
            cure = "PCM16 has two bytes a sample: send whole samples"
            raise InputError("odd_byte_count", "audio", f"{len(pcm)} bytes", cure)
        intake, seconds = self._intake, len(pcm) / 2 / self._intake.rate
        self._line.check_room(int((intake.held_s + seconds) * 4 * self._profile.model.rate), "audio")
        if pcm:
            self._appended = self._begun = True
        if pcm and self._deaf:
            self._deaf = False
            why = "this model has no ears: audio passes unheard; send text by conversation.item.create"
            self._complain("unsupported_audio", why, "audio", event_id)
        if event_id is not None:
            self.hand_on()  # what the engine refuses of this event is to be this event's alone
        intake.put(pcm)
        listened_to = self._detector.settings is not None
        full = intake.held_s >= self._most_held_s
        if full or listened_to or event_id is not None or not self._upbeat.awaits(self):
            self.hand_on(event_id)

    def hand_on(self, event_id: str | None = None) -> None:
        """Pass on the audio that is held back."""
        if seconds := self._intake.held_s:
            self._conversation.audio(seconds)
            self._listen(self._intake.take(), event_id)

    def _listen(self, samples: NDArray[np.float32], event_id: str | None) -> None:
        """Pass the samples on, and act on the turns that end or begin in them."""
        self._hand_on(samples, event_id)
        for turn in self._detector.take(samples):
            if isinstance(turn, Started):
                self._speech_started(turn.at_ms)
            else:
                self._speech_stopped(turn.at_ms)

    def _speech_started(self, at_ms: int) -> None:
        detection = self._settings.detection
        if not detection.duplex:
            self._conversation.speech_started(at_ms)
        if detection.interrupt_response and self._conversation.replying:
            self._cancel("turn_detected")

    def _speech_stopped(self, at_ms: int) -> None:
        detection = self._settings.detection
        if detection.duplex:
            return  # the model's own ears decide
        self._conversation.speech_stopped(at_ms)
        self._commit()
        if detection.create_response:
            self._line.follow(messages.Reply, self._settings.most_tokens)
            if not self._conversation.replying:
                self._conversation.begin(self._settings.most_tokens, None)

    def _commit_asked(self, event_id: str | None) -> None:
        if not self._appended:
            cure = "append audio first"
            raise InputError("input_audio_buffer_commit_empty", "input_audio_buffer", "empty", cure)
        self._line.check_room(0)
        rest = self._intake.finish()
        self._hand_on(rest, event_id)
        self._detector.take(rest)  # its time counts; a turn that it ends is over anyway
        self._detector.reset()
        self._commit()

    def _commit(self) -> None:
        self._line.follow(messages.Commit)
        self._appended = False
        self._conversation.committed()

    def _clear(self) -> None:
        self._line.say(messages.Clear)
        self._detector.take(self._intake.finish())
        self._detector.reset()
        self._appended = False
        self._conversation.cleared()

    def _reply(self, asked: wire.ResponseSettings | None) -> None:
        most, aloud = reply_settings(asked, self._settings, self._profile)
        self._line.check_room(0)  # what is begun must be asked for
        self._conversation.begin(most, asked.metadata if asked else None, aloud)
        self._line.follow(messages.Reply, most)
        self._begun = True

    def _cancel_asked(self, response_id: str | None, event_id: str | None) -> None:
        replying = self._conversation.replying
        if replying is None or response_id not in (None, replying):
            if response_id is None:  # what was asked for and has not begun is called off all the same
                self._line.check_room(0)
                self._cancel("client_cancelled")
            why = "no such reply is in progress; there is nothing to cancel"
            self._complain("response_cancel_not_active", why, None, event_id)
        else:
            self._cancel("client_cancelled")  # whatever waits on the line: this must not wait for it

    def _cancel(self, reason: str) -> None:
        self._line.follow(messages.Cancel)
        # Words on their way belong to the cancelled reply: none is passed on until the engine confirms.
        self._cancelling += 1
        self._conversation.finish("cancelled", reason)

    def _hand_on(self, samples: NDArray[np.float32], event_id: str | None) -> None:
        if len(samples):
            self._line.follow(messages.Audio, samples.tobytes(), event_id, size=samples.nbytes)

    def _tell_conversation(self) -> None:
        settings, conversation = self._settings, self._conversation
        conversation.transcribing = settings.transcription is not None
        conversation.duplex, conversation.aloud = settings.detection.duplex, settings.aloud

    def _tell_turns(self) -> None:
        self._line.follow(messages.Turns, self._settings.detection.duplex, self._settings.most_tokens)

    # ---- What the engine says ----

    def opened(self, session: SessionId) -> None:
        self._line.session = self._conversation.session = session
        self._say(wire.SessionCreated(event_id="", session=self._info()))
        self._tell_turns()

    def heed(self, message: messages.ToCaller) -> None:
        match message:
            case messages.Word():
                if not self._cancelling:
                    self._conversation.word(message)
            case messages.Heard(_, text, overs, tokens):
                self._conversation.heard(text, overs, tokens)
            case messages.ReplyLost():
                self._reply_lost()
            case messages.FrameDone(_, mark, event):
                self._line.taken, self._told_full = mark, False
                if self._settings.ticks:
                    self._say(event)
            case _:
                self._answered(message)

    def _answered(self, message: messages.Answer) -> None:
        """The engine's answer to something that this call asked of it, or the end of it all."""
        match message:
            case messages.Cancelled():
                self._cancelling -= 1
            case messages.Cleared():
                self._conversation.clear_confirmed()
            case messages.Settled(_, window):
                self._agreed, self._window = self._asked.popleft(), window
                self._say(wire.SessionUpdated(event_id="", session=self._info()))
            case messages.Rejected(_, code, field, why, event_id):
                if field.startswith("session"):  # the session stays on the terms it had
                    self._asked.popleft()
                    terms = self._asked[-1] if self._asked else self._agreed
                    self._settings = replace(self._settings, terms=terms)
                self._complain(code, why, field, event_id)
            case messages.Ended(_, code, why):
                self.hang_up(code, why)

    def _reply_lost(self) -> None:
        if self._cancelling:
            return  # it was called off
        if not self._conversation.replying:  # asked for by a turn that ended while another went on
            self._conversation.begin(self._settings.most_tokens, None)
        why = "the KV pool had no block for this session"
        error = wire.Failure(type="server_error", code="kv_pool_full", message=why)
        self._conversation.finish("failed", None, error)

    # ---- Events out ----

    def _say(self, event: wire.ServerEvent) -> None:
        event.event_id = self._event_id()
        if not self._outbox.put(event):
            most = f"{MAX_OUTGOING} events or {MAX_OUTGOING_BYTES} bytes"
            why = f"more than {most} have waited unread for {PATIENCE_S:g} s; read them as they come"
            self.hang_up("client_too_slow", why, "invalid_request_error")

    def refuse(self, error: InputError, event_id: str | None) -> None:
        """Tell the caller that an event was not taken, and why."""
        self._complain(error.code, str(error), error.field, event_id)

    def _complain(self, code: str, why: str, field: str | None, event_id: str | None) -> None:
        if code == "buffer_full" and field == "audio" and event_id is None:
            if self._told_full:
                return  # a recording sent at once is hundreds of events: their errors would fill the outbox
            self._told_full = True
        self._say(self._error("invalid_request_error", code, why, field, event_id))

    def _error(
        self, kind: str, code: str, why: str, field: str | None = None, event_id: str | None = None
    ) -> wire.ErrorEvent:
        detail = wire.ErrorDetail(type=kind, code=code, message=why, param=field, event_id=event_id)
        return wire.ErrorEvent(event_id=self._event_id(), error=detail)

    def _event_id(self) -> str:
        return f"event_{self.session}_{self._outbox.number + 1}"

    def _keep(self) -> None:
        """Keep what was said for a caller who loses the line, if that is wished."""
        if self._settings.resume and self.token is None:
            self.token = self._mark + secrets.token_urlsafe(24)
        elif not self._settings.resume:
            self.token = None
        self._outbox.keep(self._profile.server.replay_bytes if self.token else 0)

    def _info(self) -> wire.SessionInfo:
        settings = replace(self._settings, terms=self._agreed)
        return info(settings, self._profile, f"sess_{self.session}", self.token, self._window)


def _weakly(say: Say) -> Say:
    """`say` as long as its call lives.

    A part that holds its call makes a circle: a call that is over, or was never let in, would stay until the
    garbage collector comes by, a thousand calls later.
    """
    weak = WeakMethod(say)

    def said(event: wire.ServerEvent) -> None:
        if living := weak():
            living(event)

    return said
