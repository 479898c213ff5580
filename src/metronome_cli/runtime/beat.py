"""The heartbeat: gather one frame per due session, step the model, scatter what it says.

Knows:   sessions, ticks, and a model behind `TickEngine`.
Ignores: torch, sockets, and what the model does inside a tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from ..clock import Clock
from ..errors import MetronomeError
from ..frame import (
    SPEAKING_RATE,
    Failed,
    Frame,
    KvUsage,
    Prefilled,
    Said,
    SessionId,
    Stalled,
    TickEngine,
    TickEvent,
)
from ..trace import FrameRecord, TickRecord
from .admission import Measured
from .recorder import Recorder
from .sessions import Session, Sessions
from .ticker import Tick

MOST_SOUND_S = 60.0  # that one call is given in one tick: more than its caller may leave unread


class Listener(Protocol):
    """Who hears a tick as it happens."""

    def prefilled(self, frame: Prefilled) -> None:
        """A frame is in its session's cache; what was heard in it can leave now."""
        ...

    def lost(self, frame: Stalled, utterances: int) -> None:
        """A session got no block; what it brought is gone, so many utterances' ends with it."""
        ...

    def said(self, word: Said) -> None:
        """A token is decoded; it can leave now."""
        ...

    def failed(self, call: Failed) -> None:
        """A session could not go on, and is closed; its caller is to be told why. No frame_done follows."""
        ...

    def frame_done(self, frame: FrameRecord, tick: TickRecord) -> None:
        """The tick is over; nothing more comes of this frame."""
        ...

    def breathe(self) -> None:
        """The model is between two events: the moment to open, cancel or close calls."""
        ...


class Beat:
    """One tick after another over all live calls; each due call brings one frame, empty or not."""

    def __init__(
        self, engine: TickEngine, sessions: Sessions, listener: Listener, recorder: Recorder, clock: Clock
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._listener = listener
        self._recorder = recorder
        self._clock = clock
        self._held: dict[SessionId, int] = {}  # blocks of each call served, after the latest tick

    def run(self, tick: Tick) -> TickRecord:
        """Gather, step, scatter. MetronomeError when the pool's accounts do not add up afterwards."""
        start = self._clock.now()
        frames, records = self._gather(tick, start)
        if frames:
            self._step(frames, records)
        return self._scatter(tick, start, list(records.values()))

    def _gather(self, tick: Tick, start: float) -> tuple[list[Frame], dict[SessionId, FrameRecord]]:
        """Cut every live call's next frame."""
        frames, records = [], {}
        for session in self._sessions:
            number = session.frames
            frames.append(session.cut())
            records[session.id] = FrameRecord(
                session=session.id,
                age_s=start - session.opened_at,
                frame=number,
                tick=tick.index,
                due=tick.due,
                audio_end_ms=session.audio_ms,
                speaking=False,
            )
        return frames, records

    def _step(self, frames: Sequence[Frame], records: dict[SessionId, FrameRecord]) -> None:
        """Run the model, stamp what it tells, and let every token leave at once."""
        ended = {frame.session: frame.commit for frame in frames}
        sounds: Counter[SessionId] = Counter()
        for told in self._engine.tick(frames):
            event = _heeded(told, sounds)
            session = self._sessions.find(event.session) if event.session in records else None
            # The model may have told of a call just before it was closed or its reply cancelled.
            if session and not (session.cancelled and isinstance(event, Said)):
                if isinstance(event, Stalled) and records[event.session].prefilled is None:
                    self._listener.lost(event, ended[event.session])
                _stamp(records[event.session], event, self._clock.now())
                self._tell(session, event)
            self._listener.breathe()

    def _tell(self, session: Session, event: TickEvent) -> None:
        match event:
            case Prefilled():
                session.unread = event.unread
                self._listener.prefilled(event)
            case Said():
                self._listener.said(event)
            case Failed():
                self._sessions.close(session.id)
                self._listener.failed(event)

    def _scatter(self, tick: Tick, start: float, records: list[FrameRecord]) -> TickRecord:
        """Close the frames of the calls that are still live, and the tick; of a failed call its last one."""
        done = self._clock.now()
        frames = [frame for frame in records if self._sessions.find(frame.session)]
        failed = [frame for frame in records if frame.failed]
        for frame in frames:
            frame.blocks = self._engine.blocks(frame.session)
        usage = self._checked_usage()
        cap = self._sessions.observe(self._measured(tick, done, frames, usage))
        record = TickRecord(
            tick=tick.index,
            due=tick.due,
            start=start,
            done=done,
            skipped=tick.skipped,
            sessions=len(frames),
            stalled=sum(frame.stalled for frame in frames),
            empty=sum(frame.empty for frame in frames),
            tokens_in=sum(frame.tokens_in for frame in frames),
            tokens_out=sum(frame.tokens_out for frame in frames),
            kv_leased=usage.leased,
            kv_reserved=usage.reserved,
            kv_total=usage.total,
            cap=cap.calls,
            cap_reason=cap.reason,
            failed=len(failed),
        )
        self._recorder.tick(record, [*frames, *failed])
        for frame in frames:
            self._listener.frame_done(frame, record)
        return record

    def _measured(self, tick: Tick, done: float, frames: Sequence[FrameRecord], usage: KvUsage) -> Measured:
        """What the tick tells those who decide on new calls."""
        before, self._held = self._held, {frame.session: frame.blocks for frame in frames}
        growth = [blocks - before[session] for session, blocks in self._held.items() if session in before]
        lasts = [frame.last for frame in frames if frame.last is not None]
        return Measured(
            due=tick.due,
            done=done,
            served=len(frames),
            live=len(self._sessions),
            fresh_s=max(lasts) - tick.due if lasts else None,
            stalled=sum(frame.stalled for frame in frames),
            older=len(growth),
            grown=sum(growth),
            pool=usage,
        )

    def _checked_usage(self) -> KvUsage:
        """The pool's usage, once it is sure that live calls hold every leased block."""
        usage = self._engine.usage()
        held = sum(self._engine.blocks(session.id) for session in self._sessions)
        if held != usage.leased or not 0 <= usage.leased <= usage.total:
            raise MetronomeError(
                f"the KV pool lost count: {usage.leased} of {usage.total} blocks leased, calls hold {held}"
            )
        return usage


def _heeded(event: TickEvent, sounds: Counter[SessionId]) -> TickEvent:
    """`event`, or its call's failure where what is said cannot be passed on: a model may be a user's own.

    `sounds`: bytes that each call was given in this tick, to be added to.
    MetronomeError when it is no event at all.
    """
    match event:
        case Said(session, text, pcm=pcm):
            if not isinstance(text, str):
                return Failed(session, f"the model said {type(text).__name__}, and not text")
            if not isinstance(pcm, bytes) or len(pcm) % 2:
                found = f"{len(pcm)} bytes" if isinstance(pcm, bytes) else type(pcm).__name__
                return Failed(session, f"the model gave {found} of sound, and not whole samples of 2 bytes")
            sounds[session] += len(pcm)
            if (seconds := sounds[session] / 2 / SPEAKING_RATE) > MOST_SOUND_S:
                cure = f"at most {MOST_SOUND_S:g} s can wait for a caller: give the rest in later ticks"
                return Failed(session, f"the model gave {seconds:.2f} s of sound in one tick; {cure}")
        case Prefilled() | Stalled() | Failed():
            pass
        case _:
            raise MetronomeError(f"the model told of {type(event).__name__}, which is no frame.TickEvent")
    return event


def _stamp(frame: FrameRecord, event: TickEvent, now: float) -> None:
    match event:
        case Prefilled(tokens_in=tokens_in, heard=heard, speaking=speaking):
            frame.prefilled, frame.tokens_in, frame.heard, frame.speaking = now, tokens_in, heard, speaking
        case Said(_, text):
            frame.first = now if frame.first is None else frame.first
            frame.last = now
            frame.tokens_out += 1
            frame.said += text
        case Stalled(_, dropped):
            frame.stalled, frame.dropped = True, frame.dropped + dropped
            # Whether it would have spoken is unknown when it never got in: it owes its caller a frame.
            frame.speaking = frame.speaking or frame.prefilled is None
        case Failed(_, why):
            frame.failed = why
