"""One caller's connection: OpenAI Realtime events on one side, the engine's messages on the other.

Knows:   what each client event sets in motion, replies and their ids, how much may wait in each direction.
Ignores: who let the caller in, the engine process, what is heard and said.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from starlette.websockets import WebSocket, WebSocketDisconnect

from .. import wire
from ..errors import InputError
from ..frame import HEARING_RATE, SessionId
from ..profile import Profile
from . import messages
from .intake import Intake, checked, typed
from .link import EngineLink

MAX_OUTGOING = 1024  # events that a caller may leave unread, beyond what the network holds
MAX_REPLY = 65_536  # characters of one response; a longer one goes on as the next
_OVERHEAD = 128  # bytes that a message costs on the line beside its contents
_LINE_SHARE = 2  # the line may hold this many times what a session may: small packets cost more there
_HANG_UP_S = 2.0  # how long a caller's last event may take to leave

_CLOSE_CODES = {
    "engine_dead": wire.CLOSE_ENGINE_DEAD,
    "session_lost": wire.CLOSE_ENGINE_DEAD,
    "session_idle": wire.CLOSE_SESSION_IDLE,
    "client_too_slow": wire.CLOSE_TOO_SLOW,
}


class Outbox:
    """Events on their way to one caller. It is bounded: a caller that does not read costs no memory."""

    def __init__(self, socket: WebSocket) -> None:
        self.ending = False
        self._socket = socket
        self._waiting: asyncio.Queue[wire.ServerEvent | int] = asyncio.Queue(MAX_OUTGOING)
        self._writer: asyncio.Task[None] | None = None

    def put(self, event: wire.ServerEvent) -> bool:
        """Send `event` in its turn; False when there is no room."""
        if self.ending:
            return True
        if self._waiting.full():
            return False
        self._waiting.put_nowait(event)
        return True

    def hang_up(self, last: wire.ErrorEvent, code: int) -> None:
        """Send `last` instead of all that waits, and close the connection with `code`."""
        if self.ending:
            return
        self.ending = True
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._waiting.put_nowait(last)
        self._waiting.put_nowait(code)
        if self._writer:  # a caller who does not read does not take his last event either
            asyncio.get_running_loop().call_later(_HANG_UP_S, self._writer.cancel)

    async def run(self) -> None:
        """Write until the connection ends."""
        self._writer = asyncio.current_task()
        while True:
            event = await self._waiting.get()
            if isinstance(event, int):
                await self._socket.close(event)
                return
            await self._socket.send_text(wire.encode(event).decode())


@dataclass(slots=True)
class _Reply:
    response_id: str
    item_id: str
    text: str = ""


class Call:
    """A caller, from the moment it asks to come in. It is the link's Caller."""

    def __init__(self, socket: WebSocket, link: EngineLink, profile: Profile) -> None:
        self._socket = socket
        self._link = link
        self._model = profile.name
        self._max_event_bytes = profile.server.max_event_bytes
        self._max_on_line = int(_LINE_SHARE * 4 * HEARING_RATE * profile.server.max_pending_s)
        self._outbox = Outbox(socket)
        self._session: SessionId = 0
        self._intake = Intake(wire.RATES[0])
        self._ticks = False
        self._sent = 0  # bytes given to the line so far
        self._taken = 0  # of them, taken by the engine
        self._events = 0
        self._replies = 0
        self._reply: _Reply | None = None
        self._cancelling = 0  # cancels that the engine did not confirm yet

    # ---- The connection ----

    async def hold(self) -> None:
        """Serve the accepted connection until either side ends it."""
        halves = [asyncio.create_task(self._outbox.run()), asyncio.create_task(self._read())]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            results = await asyncio.gather(*halves, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
                raise result

    async def _read(self) -> None:
        while (message := await self._socket.receive())["type"] != "websocket.disconnect":
            text = message.get("text")
            if self._outbox.ending:
                continue
            try:
                self._take(self._event(text))
            except InputError as error:
                self._complain(error.code, str(error), error.field, text and wire.event_id_of(text))

    def _event(self, text: str | None) -> wire.ClientEvent:
        if text is None:
            raise InputError("binary_frame", "frame", "binary", "send JSON in text frames, audio as base64")
        size = len(text) if text.isascii() else len(text.encode())
        if size > self._max_event_bytes:
            cure = f"send at most {self._max_event_bytes} bytes per event"
            raise InputError("event_too_large", "event", f"{size} bytes", cure)
        return wire.decode_client_event(text)

    # ---- What the caller says ----

    def _take(self, event: wire.ClientEvent) -> None:
        match event:
            case wire.SessionUpdate(session=settings):
                self._update(settings)
            case wire.AudioAppend(audio=pcm, event_id=event_id):
                self._append(pcm, event_id)
            case wire.AudioCommit(event_id=event_id):
                self._hand_on(self._intake.finish(), event_id)
                self._link.send(messages.Commit(self._session, self._mark(0)))
            case wire.ItemCreate(item=item, event_id=event_id):
                text = typed(item)
                self._link.send(messages.Text(self._session, self._mark(len(text.encode())), text, event_id))
            case wire.ResponseCancel(event_id=event_id):
                self._cancel(event_id)

    def _update(self, settings: wire.SessionSettings) -> None:
        rate, ticks = checked(settings)
        if rate is not None and rate != self._intake.rate:
            self._hand_on(self._intake.finish(), None)
            self._intake = Intake(rate)
        if ticks is not None:
            self._ticks = ticks
        self._say(wire.SessionUpdated(event_id=self._event_id(), session=self._info()))

    def _append(self, pcm: bytes, event_id: str | None) -> None:
        if len(pcm) % 2:
            cure = "PCM16 has two bytes a sample: send whole samples"
            raise InputError("odd_byte_count", "audio", f"{len(pcm)} bytes", cure)
        self._check_room(2 * len(pcm) * HEARING_RATE // self._intake.rate)
        self._hand_on(self._intake.take(pcm), event_id)

    def _hand_on(self, samples: NDArray[np.float32], event_id: str | None) -> None:
        if len(samples):
            mark = self._mark(samples.nbytes)
            self._link.send(messages.Audio(self._session, mark, samples.tobytes(), event_id))

    def _cancel(self, event_id: str | None) -> None:
        self._link.send(messages.Cancel(self._session, self._mark(0)))
        # Words on their way belong to the cancelled reply: none is passed on until the engine confirms.
        self._cancelling += 1
        if self._reply is None:
            why = "no reply is in progress; there is nothing to cancel"
            self._complain("response_cancel_not_active", why, None, event_id)
        else:
            self._finish_reply(self._reply)

    def _check_room(self, size: int) -> None:
        on_line = self._sent - self._taken + size + _OVERHEAD
        if on_line > self._max_on_line:
            cure = f"at most {self._max_on_line} bytes may wait for the engine; send at the pace of speech"
            raise InputError("buffer_full", "event", f"{on_line} bytes", cure)

    def _mark(self, size: int) -> int:
        """Count a message of `size` bytes onto the line; InputError when too much waits there."""
        self._check_room(size)
        self._sent += size + _OVERHEAD
        return self._sent

    # ---- What the engine says ----

    def opened(self, session: SessionId) -> None:
        self._session = session
        self._say(wire.SessionCreated(event_id=self._event_id(), session=self._info()))

    def heed(self, message: messages.ToCaller) -> None:
        match message:
            case messages.Word(_, text, start, end):
                if not self._cancelling:
                    self._word(text, start, end)
            case messages.FrameDone(_, mark, event):
                self._taken = mark
                if self._ticks:
                    event.event_id = self._event_id()
                    self._say(event)
            case messages.Cancelled():
                self._cancelling -= 1
            case messages.Rejected(_, code, field, why, event_id):
                self._complain(code, why, field, event_id)
            case messages.Ended(_, code, why):
                self._hang_up(code, why, "server_error")

    def _word(self, text: str, start: bool, end: bool) -> None:
        if start and self._reply:
            self._finish_reply(self._reply)  # interrupted by a new turn
        if self._reply is None:
            self._replies += 1
            number = f"{self._session}_{self._replies}"
            self._reply = _Reply(f"resp_{number}", f"item_{number}")
        reply = self._reply
        if text or not end:
            self._say(
                wire.TextDelta(
                    event_id=self._event_id(),
                    response_id=reply.response_id,
                    item_id=reply.item_id,
                    delta=text,
                )
            )
        reply.text += text
        if end or len(reply.text) > MAX_REPLY:
            self._finish_reply(reply)

    def _finish_reply(self, reply: _Reply) -> None:
        self._reply = None
        self._say(
            wire.TextDone(
                event_id=self._event_id(),
                response_id=reply.response_id,
                item_id=reply.item_id,
                text=reply.text,
            )
        )

    # ---- Events out ----

    def _say(self, event: wire.ServerEvent) -> None:
        if not self._outbox.put(event):
            why = f"more than {MAX_OUTGOING} events wait to be read; read them as they come"
            self._hang_up("client_too_slow", why, "invalid_request_error")

    def _complain(self, code: str, why: str, field: str | None, event_id: str | None) -> None:
        self._say(self._error("invalid_request_error", code, why, field, event_id))

    def _hang_up(self, code: str, why: str, kind: str) -> None:
        self._outbox.hang_up(self._error(kind, code, why), _CLOSE_CODES[code])
        # Whatever the network does with the last event, the blocks go back now.
        self._link.close(self._session)

    def _error(
        self, kind: str, code: str, why: str, field: str | None = None, event_id: str | None = None
    ) -> wire.ErrorEvent:
        detail = wire.ErrorDetail(type=kind, code=code, message=why, param=field, event_id=event_id)
        return wire.ErrorEvent(event_id=self._event_id(), error=detail)

    def _event_id(self) -> str:
        self._events += 1
        return f"event_{self._session}_{self._events}"

    def _info(self) -> wire.SessionInfo:
        audio = wire.AudioSettings(input=wire.AudioInput(format=wire.AudioFormat(rate=self._intake.rate)))
        return wire.SessionInfo(
            id=f"sess_{self._session}",
            model=self._model,
            audio=audio,
            metronome=wire.MetronomeSettings(ticks=self._ticks),
        )
