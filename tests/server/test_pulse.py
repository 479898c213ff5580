from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from metronome_cli.frame import Frame, KvUsage, Refused, SessionId, TickEvent
from metronome_cli.profile import OWN, Profile, Terms, parse_profile
from metronome_cli.runtime.admission import FixedCap
from metronome_cli.runtime.sessions import Session, Sessions
from metronome_cli.server.messages import Beat
from metronome_cli.server.pulse import Pulse
from metronome_cli.trace import FrameRecord, TickRecord
from metronome_cli.window import Policy, Unbounded

MUTE_S = 2.0
SOUND = np.full(16_000, 0.5, np.float32)


class Model:
    """Lets everybody in and does nothing."""

    def open(self, session: SessionId, seed: int, terms: Terms = OWN) -> Refused | None:
        return None

    def tick(self, frames: Sequence[Frame]) -> Iterator[TickEvent]:
        return iter(())

    def cancel(self, session: SessionId) -> None:
        pass

    def close(self, session: SessionId) -> None:
        pass

    def blocks(self, session: SessionId) -> int:
        return 0

    def policy(self, session: SessionId) -> Policy:
        return Unbounded()

    def usage(self) -> KvUsage:
        return KvUsage(0, 0, 100)


class Stage:
    """Ticks of one second over calls, and what is told of them."""

    def __init__(self) -> None:
        self.profile = profile()
        self.calls = Sessions(Model(), FixedCap(4), max_pending_s=60.0, seed=0)
        self._pulse = Pulse(self.profile)
        self._number = 0

    def open(self) -> Session:
        session = self.calls.open(0.0)
        assert isinstance(session, Session)
        return session

    def tick(self, said: dict[SessionId, str], sound: bool = False, room: int | None = None) -> Beat:
        """One tick: `said` by session, each token 0.3 s after the due time and the last 0.5 s after it."""
        self._number += 1
        due = float(self._number)
        for session in self.calls:
            if sound:
                session.hear(SOUND, due)
            session.cut()
            text = said.get(session.id)
            times = (due + 0.3, due + 0.5) if text is not None else (None, None)
            frame = FrameRecord(
                session=session.id, age_s=0, frame=0, tick=self._number, due=due, audio_end_ms=0,
                first=times[0], last=times[1], said=text or "", speaking=text is not None,
            )  # fmt: skip
            self._pulse.frame(frame, session)
        tick = TickRecord(tick=self._number, due=due, start=due, done=due + 0.6, sessions=len(self.calls))
        return self._pulse.close(tick, len(self.calls), room, unrecorded="the disk is full")


def profile() -> Profile:
    return parse_profile(
        "tested",
        {
            "model": {"kind": "null", "mode": "free"},
            "admission": {"max_sessions": 4},
            "server": {"mute_s": MUTE_S},
        },
    )


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_freshness_is_told_of_the_frames_that_brought_tokens(stage: Stage) -> None:
    speaks, also, listens = (stage.open().id for _ in range(3))
    beat = stage.tick({speaks: "a", also: "b"})
    assert listens not in (speaks, also)
    assert (beat.tick.sessions, beat.speaking, beat.sessions) == (3, 2, 3)
    assert beat.firsts == pytest.approx([0.3, 0.3])
    assert beat.lasts == pytest.approx([0.5, 0.5])
    later = stage.tick({})
    assert (later.speaking, later.firsts, later.lasts) == (0, [], [])


def test_what_the_pool_can_promise_and_what_is_not_recorded_are_told_with_each_beat(stage: Stage) -> None:
    stage.open()
    beat = stage.tick({}, room=2)
    assert (beat.sessions, beat.room, beat.unrecorded) == (1, 2, "the disk is full")
    assert stage.tick({}).room is None


def test_a_mute_session_is_counted_each_tick_and_told_of_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    mute, speaks = stage.open().id, stage.open().id
    told = [stage.tick({speaks: "yes"}, sound=True) for _ in range(4)]
    assert [beat.mute for beat in told] == [0, 1, 1, 1]
    assert [beat.fell_mute for beat in told] == [0, 1, 0, 0]
    assert stage.tick({mute: "at last"}, sound=True).mute == 0
    again = [stage.tick({mute: " "}, sound=True) for _ in range(3)]
    assert [(beat.mute, beat.fell_mute) for beat in again] == [(1, 1), (2, 0), (2, 0)]
    assert [record.getMessage() for record in caplog.records] == [
        f"session {number} is mute: 2 s of sound without a word since" for number in (mute, speaks)
    ]


def test_a_cancelled_reply_is_owed_no_more(stage: Stage) -> None:
    session = stage.open().id
    stage.tick({}, sound=True)
    stage.calls.cancel(session)
    assert stage.tick({}, sound=True).mute == 0
    assert stage.tick({}, sound=True).mute == 1
