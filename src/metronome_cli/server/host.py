"""The engine process's one thread: sessions of all gateways on one beat.

Knows:   the zmq socket, whose session is whose, when to tick, and who is to be let go.
Ignores: WebSockets, client events, what the model does inside a tick, how the process is started.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import numpy as np
import zmq

from ..clock import Clock
from ..errors import InputError, ProfileError
from ..frame import Failed, Prefilled, Refused, Said, SessionId, Stalled, TickEngine
from ..profile import Profile, Terms
from ..runtime.admission.choice import chosen
from ..runtime.beat import Beat
from ..runtime.recorder import Recorder
from ..runtime.sessions import Session, Sessions
from ..runtime.ticker import Ticker
from ..trace import FrameRecord, TickRecord
from ..window import Window
from ..wire import TickEvent
from . import messages
from .pulse import Pulse
from .settings import unmet

_BREATH = 256  # messages taken at a time; they cost tens of microseconds each
_SILENT_PERIODS = 3  # reaper periods: a machine that is busy for one must not end all calls of a gateway
_LONGEST_WHY = 1000  # characters of what a model tells of a failed call
_FORGOTTEN_S = 60.0  # a gateway silent for so long hears no more of ticks

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Line:
    """Which gateway holds a session, and how far the session's messages were taken."""

    gateway: bytes
    mark: int = 0


class Host:
    """Sessions of all gateways on one beat. It is the beat's Listener."""

    def __init__(
        self,
        profile: Profile,
        engine: TickEngine,
        socket: zmq.Socket[bytes],
        recorder: Recorder,
        clock: Clock,
        opened: int = 0,
    ) -> None:
        self._limits = profile.server
        self._socket = socket
        self._clock = clock
        self._sessions = Sessions(
            engine,
            chosen(profile),
            profile.server.max_pending_s,
            profile.run.seed,
            opened,
            profile.model.rate,
        )
        self._engine = engine
        self._pulse = Pulse(profile)
        self._recorder = recorder
        self._beat = Beat(engine, self._sessions, self, recorder, clock)
        self._ticker = Ticker(profile.beat.frame_s, clock.now() + profile.beat.frame_s)
        self._reap_due = clock.now() + self._limits.reaper_s
        self._were_away = False  # at the latest look for the dead
        self._gateways: dict[bytes, float] = {}  # when each was last heard
        self._lines: dict[SessionId, _Line] = {}
        self._clears: list[SessionId] = []  # since the last tick
        self._writes = not profile.model.speaks and profile.model.output is None

    def run(self, lifeline: int) -> NoReturn:
        """Keep the beat until SystemExit: by a Stop, a signal, or the end of file `lifeline`."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(lifeline, zmq.POLLIN)
        while True:
            waiting = dict(poller.poll(self._patience_ms()))
            if lifeline in waiting and not os.read(lifeline, 1):
                sys.exit(0)
            self.breathe()
            if self._clock.now() >= self._reap_due:
                self._reap()
            if tick := self._ticker.take(self._clock.now()):
                self._confirm_clears()
                self._tell_all(self._beat.run(tick))

    def _confirm_clears(self) -> None:
        """Before a tick cuts its frames: what is heard in it came after these."""
        for session in self._clears:
            if session in self._lines:
                self._tell(session, messages.Cleared(session))
        self._clears.clear()

    def said(self, word: Said) -> None:
        if word.pcm and self._writes:
            self._writes = False  # once is enough
            _log.warning('its sound is not sent: give the profile model.output = "audio", or "text"')
        told = messages.Word(word.session, word.text, word.start, word.end, word.cut, word.pcm)
        self._tell(word.session, told)

    def prefilled(self, frame: Prefilled) -> None:
        if frame.heard or frame.over or frame.tokens_in:
            told = messages.Heard(frame.session, frame.heard, frame.over, frame.tokens_in)
            self._tell(frame.session, told)

    def lost(self, frame: Stalled, utterances: int) -> None:
        if utterances:
            self._tell(frame.session, messages.Heard(frame.session, "", utterances, 0))
        if frame.reply:
            self._tell(frame.session, messages.ReplyLost(frame.session))

    def failed(self, call: Failed) -> None:
        why = str(call.why)[:_LONGEST_WHY]
        _log.error("session %d is closed: %s", call.session, why)
        self._end(call.session, "session_failed", why)

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None:
        event = TickEvent(
            event_id="",
            tick=tick.tick,
            frame=frame.frame,
            audio_end_ms=frame.audio_end_ms,
            due=tick.due,
            done=tick.done,
            stalled=frame.stalled,
            speaking=frame.speaking,
            tokens_in=frame.tokens_in,
            tokens_out=frame.tokens_out,
            kv_blocks=frame.blocks,
            kv_leased=tick.kv_leased,
            kv_total=tick.kv_total,
            skipped=tick.skipped,
            heard=frame.heard,
        )
        if session := self._sessions.find(frame.session):
            self._pulse.frame(frame, session)
        mark = self._lines[frame.session].mark
        self._tell(frame.session, messages.FrameDone(frame.session, mark, event))

    def breathe(self) -> None:
        """Take messages that wait, so many at a time that a flood of them cannot hold up the beat."""
        taken = 0
        while taken < _BREATH:
            try:
                gateway, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            taken += len(parts)
            self.heed(gateway, parts)

    def heed(self, gateway: bytes, parts: Sequence[bytes]) -> None:
        """Take what a gateway said."""
        for part in parts:
            try:
                self._take(gateway, messages.to_engine(part))
            except msgspec.DecodeError as error:
                _log.error("a message that is none of ours is left out: %s", error)

    def _tell_all(self, tick: TickRecord) -> None:
        """Tell every gateway that lives of the tick as a whole."""
        room = self._engine.usage().room
        beat = self._pulse.close(tick, len(self._sessions), room, self._recorder.failure)
        for gateway, heard in self._gateways.items():
            # What is sent to one that was stopped would wait for it in memory.
            if self._clock.now() - heard < _FORGOTTEN_S:
                self._send(gateway, beat)

    def _patience_ms(self) -> int:
        """How long nothing but a message can want us, in whole milliseconds, rounded up."""
        due = min(self._ticker.next_due, self._reap_due)
        return max(0, int((due - self._clock.now()) * 1000 + 0.999))

    def _take(self, gateway: bytes, message: messages.ToEngine) -> None:
        if isinstance(message, messages.Hello):
            self._greet(gateway, message.protocol)
        elif gateway not in self._gateways:
            _log.error("a gateway that did not say hello is ignored")
        else:
            self._gateways[gateway] = self._clock.now()
            match message:
                case messages.Open(request):
                    self._open(gateway, request)
                case messages.Stop():
                    sys.exit(0)
                case messages.Heartbeat():
                    pass
                case _:
                    self._serve(gateway, message)

    def _greet(self, gateway: bytes, protocol: int) -> None:
        if protocol == messages.PROTOCOL:
            self._gateways[gateway] = self._clock.now()
            self._send(gateway, self._ready())
        else:
            both = f"the gateway speaks protocol {protocol}, the engine {messages.PROTOCOL}"
            self._send(gateway, messages.Failed(f"{both}: install one version of metronome-cli", 1))

    def _ready(self) -> messages.Ready:
        cap, room = self._sessions.cap, self._engine.usage().room
        return messages.Ready(len(self._sessions), cap.calls, cap.reason, room, self._recorder.failure)

    def _open(self, gateway: bytes, request: int) -> None:
        answer = self._sessions.open(self._clock.now())
        if isinstance(answer, Refused):
            self._send(gateway, messages.TurnedAway(request, answer.reason, answer.retry_after_s))
        else:
            self._lines[answer.id] = _Line(gateway)
            self._send(gateway, messages.Opened(request, answer.id))

    def _serve(
        self,
        gateway: bytes,
        message: messages.ToSession | messages.Close,
    ) -> None:
        line, session = self._lines.get(message.session), self._sessions.find(message.session)
        if line is None or session is None or line.gateway != gateway:
            return  # said before the gateway heard that the session is over
        if isinstance(message, messages.Close):
            self._close(session.id)
            return
        line.mark = message.mark
        match message:
            case messages.Audio() | messages.Text() | messages.Settle():
                self._input(session, message)
            case messages.Commit():
                session.commit()
            case messages.Clear():
                session.clear()
                self._clears.append(session.id)
            case messages.Turns(duplex=duplex, most=most):
                session.duplex, session.most = duplex, most
            case messages.Reply(most=most):
                session.ask(most)
            case messages.Cancel():
                self._sessions.cancel(session.id)
                self._tell(session.id, messages.Cancelled(session.id))

    def _input(self, session: Session, message: messages.Audio | messages.Text | messages.Settle) -> None:
        """Take what may be refused; its caller is told of a refusal, and the session goes on."""
        now = self._clock.now()
        try:
            match message:
                case messages.Audio(samples=samples):
                    session.hear(np.frombuffer(samples, np.float32), now)
                case messages.Text(text=text):
                    session.read(text, now)
                case messages.Settle(terms=terms):
                    self._settle(session, Terms.model_validate(terms))
        except InputError as error:
            refusal = messages.Rejected(session.id, error.code, error.field, str(error), message.event_id)
            self._tell(session.id, refusal)
            if self._sessions.find(session.id) is None:
                self._end(session.id, "session_failed", "the model had no room for it any more; call again")
        except ValueError as error:  # half a sample, or terms that are none: a gateway of ours checks both
            _log.error("a message that is none of ours is left out: %s", error)

    def _settle(self, session: Session, terms: Terms) -> None:
        try:
            self._sessions.settle(session, terms)
        except ProfileError as error:
            raise unmet(error, terms) from None
        policy = self._engine.policy(session.id)
        window = policy.window if isinstance(policy, Window) else None
        self._tell(session.id, messages.Settled(session.id, window))

    def _close(self, session: SessionId) -> None:
        self._sessions.close(session)
        self._lines.pop(session, None)

    def _reap(self) -> None:
        """Let go of callers who sent nothing for long, and of all calls of a gateway that vanished."""
        now, due = self._clock.now(), self._reap_due
        self._reap_due = now + self._limits.reaper_s
        self._were_away = now > due + self._limits.reaper_s and not self._were_away
        if self._were_away:
            return  # what was said while we were long in a tick still waits: nobody was silent but we
        for session in self._sessions.idle(now, self._limits.idle_s):
            why = f"no audio and no text for {self._limits.idle_s:g} s; send silence to stay in the call"
            self._end(session.id, "session_idle", why)
        for number, line in tuple(self._lines.items()):
            silent_s = now - self._gateways[line.gateway]
            if silent_s > _SILENT_PERIODS * self._limits.reaper_s:
                _log.error("session %d is closed: its gateway is silent for %.1f s", number, silent_s)
                self._end(number, "session_lost", "the gateway was silent for too long")

    def _end(self, session: SessionId, code: str, why: str) -> None:
        self._tell(session, messages.Ended(session, code, why))
        self._close(session)

    def _tell(self, session: SessionId, message: messages.ToCaller) -> None:
        self._send(self._lines[session].gateway, message)

    def _send(self, gateway: bytes, message: messages.ToGateway) -> None:
        self._socket.send_multipart([gateway, messages.pack(message)], zmq.NOBLOCK)
