"""One call by itself, without sockets or an engine: when messages cross, and when all is full."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any, TypeVar, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from metronome_cli import wire
from metronome_cli.clock import Clock, VirtualClock
from metronome_cli.frame import SessionId
from metronome_cli.models.assets import locate
from metronome_cli.profile import Profile, parse_profile
from metronome_cli.server import messages
from metronome_cli.server.link import EngineLink
from metronome_cli.server.metrics import Metrics
from metronome_cli.server.realtime import Call
from metronome_cli.server.upbeat import Upbeat
from metronome_cli.speech import read_clips

from . import ga

Event = TypeVar("Event", bound=wire.ServerEvent)
Message = TypeVar("Message", bound=messages.ToEngine)


class Link:
    """The line to an engine that does nothing by itself."""

    silent_s = 0.0

    def __init__(self, profile: Profile, clock: Clock) -> None:
        self.metrics = Metrics(profile)
        self.upbeat = Upbeat(profile.beat.frame_s, clock)
        self.mark = ""
        self.sent: list[messages.ToEngine] = []

    def send(self, message: messages.ToEngine) -> None:
        self.sent.append(message)

    def close(self, session: SessionId) -> None:
        self.sent.append(messages.Close(session))


class Alone(Call):
    """A call without a connection."""

    def __init__(self, **limits: float) -> None:
        data = {
            "model": {"kind": "null", "header": "one two three"},
            "window": {"window": 64},
            "server": limits,
        }
        profile, clock = parse_profile("null", data), VirtualClock()
        self.link = Link(profile, clock)
        super().__init__(cast(EngineLink, self.link), profile, clock)
        self.said: list[wire.ServerEvent] = []
        self.opened(1)

    def _say(self, event: wire.ServerEvent) -> None:
        super()._say(event)
        self.said.append(event)

    def does(self, kind: str, **fields: Any) -> None:
        """The caller says something."""
        self._reader._heard(self, json.dumps({"type": kind, **fields}), 0, 0.0)

    def last(self, kind: type[Event]) -> Event:
        return [event for event in self.said if isinstance(event, kind)][-1]

    def to_engine(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.link.sent if isinstance(message, kind)]


def alone(play: Callable[[], None]) -> None:
    """Run `play` inside an event loop, which a call needs to be made in."""

    async def scene() -> None:
        play()

    asyncio.run(scene())


def test_a_late_word_of_a_cancelled_reply_is_not_told() -> None:
    def play() -> None:
        call = Alone()
        call.does("response.create")
        call.heed(messages.Word(1, "Well", True, False, False))
        call.does("response.cancel")
        call.heed(messages.Word(1, " late", False, False, False))
        call.does("response.create")
        call.heed(messages.Word(1, " later", False, True, False))
        call.heed(messages.Cancelled(1))
        call.heed(messages.Word(1, "New", True, True, False))
        assert [event.text for event in call.said if isinstance(event, wire.TextDone)] == ["Well", "New"]
        ga.check(call.said)

    alone(play)


def test_a_reply_that_was_lost_after_it_was_cancelled_does_not_fail_the_next() -> None:
    def play() -> None:
        call = Alone()
        call.does("response.create")
        call.does("response.cancel")
        call.does("response.create")
        call.heed(messages.ReplyLost(1))
        call.heed(messages.Cancelled(1))
        call.heed(messages.Word(1, "Here", True, True, False))
        over = [event.response.status for event in call.said if isinstance(event, wire.ResponseDone)]
        assert over == ["cancelled", "completed"]
        ga.check(call.said)

    alone(play)


def test_a_reply_that_is_lost_before_it_was_told_of_is_told_of() -> None:
    def play() -> None:
        call = Alone()
        call.heed(messages.ReplyLost(1))
        assert call.last(wire.ResponseDone).response.status == "failed"
        ga.check(call.said)

    alone(play)


def test_terms_that_are_answered_out_of_step_end_as_the_engine_has_them() -> None:
    def play() -> None:
        call = Alone()
        for window in (60, 50, 40):
            call.does("session.update", session={"metronome": {"window": window}})
        call.heed(messages.Settled(1))
        assert call.last(wire.SessionUpdated).session.metronome.window == 60
        call.heed(messages.Rejected(1, "pool_full", "session.metronome", "no room", None))
        call.does("session.update", session={"metronome": {"ticks": True}})
        assert call.last(wire.SessionUpdated).session.metronome.window == 60
        call.heed(messages.Settled(1))
        assert call.last(wire.SessionUpdated).session.metronome.window == 40
        call.does("session.update", session={"metronome": {"sinks": 1}})
        assert call.to_engine(messages.Settle)[-1].terms == {"window": 40, "sinks": 1}
        call.heed(messages.Rejected(1, "pool_full", "session.metronome", "no room", None))
        call.does("session.update", session={"metronome": {"ticks": True}})
        assert call.last(wire.SessionUpdated).session.metronome.sinks == "header"
        call.does("session.update", session={"metronome": {"window": 30}})
        assert call.to_engine(messages.Settle)[-1].terms == {"window": 30}, (
            "what was refused is not asked again"
        )

    alone(play)


def test_a_cancel_leaves_however_much_waits_for_the_engine() -> None:
    def play() -> None:
        call = Alone(max_pending_s=0.1)
        call.does("response.create")
        while not [event for event in call.said if isinstance(event, wire.ErrorEvent)]:
            call.does("input_audio_buffer.clear")
        call.does("response.cancel")
        assert call.last(wire.ResponseDone).response.status == "cancelled"
        assert len(call.to_engine(messages.Cancel)) == 1
        for _ in range(5):  # with nothing to cancel it has to wait like everybody
            call.does("response.cancel")
            assert call.last(wire.ErrorEvent).error.code == "buffer_full"
        assert len(call.to_engine(messages.Cancel)) == 1

    alone(play)


def test_a_turn_that_ends_while_the_line_is_full_is_committed_all_the_same() -> None:
    def play() -> None:
        clip = read_clips(locate("questions"))[0]
        pcm = (clip.samples * 32767).astype("<i2").tobytes() + bytes(32_000)
        call = Alone()
        form = {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}
        call.does("session.update", session={"type": "realtime", "audio": form})
        while not [event for event in call.said if isinstance(event, wire.SpeechStopped)]:
            assert pcm, "the turn ends in the recording"
            call._line._most = call._line._sent + 12_800 + 128  # room for this audio and nothing else
            call.does("input_audio_buffer.append", audio=base64.b64encode(pcm[:6_400]).decode())
            pcm = pcm[6_400:]
        assert (len(call.to_engine(messages.Commit)), len(call.to_engine(messages.Reply))) == (1, 1)
        assert call.last(wire.AudioCommitted).item_id == call.last(wire.SpeechStopped).item_id

    alone(play)


def test_an_update_that_finds_no_room_changes_nothing() -> None:
    def play() -> None:
        call = Alone(max_pending_s=0.1)
        while not [event for event in call.said if isinstance(event, wire.ErrorEvent)]:
            call.does("input_audio_buffer.clear")
        call.does("session.update", session={"metronome": {"window": 32, "ticks": True}})
        assert call.last(wire.ErrorEvent).error.code == "buffer_full"
        call.heed(messages.FrameDone(1, 10**9, cast(wire.TickEvent, None)))  # the engine has taken it all
        call.does("session.update", session={"type": "realtime"})
        shown = call.last(wire.SessionUpdated).session.metronome
        assert (shown.window, shown.ticks) == (64, False)
        assert not call.to_engine(messages.Settle)

    alone(play)


TYPED = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
DOES: list[tuple[str, dict[str, Any]]] = [
    ("input_audio_buffer.append", {"audio": base64.b64encode(bytes(4_800)).decode()}),
    ("input_audio_buffer.append", {"audio": "AAA"}),
    ("input_audio_buffer.commit", {}),
    ("input_audio_buffer.clear", {}),
    ("conversation.item.create", {"item": TYPED}),
    ("response.create", {}),
    ("response.cancel", {}),
    ("response.cancel", {"response_id": "resp_1_1"}),
    ("session.update", {"session": {"audio": {"input": {"turn_detection": None, "transcription": {}}}}}),
    ("session.update", {"session": {"audio": {"input": {"turn_detection": {"type": "full_duplex"}}}}}),
    ("session.update", {"session": {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8_000}}}}}),
    ("session.update", {"session": {"metronome": {"window": 32, "ticks": True}}}),
    ("session.update", {"session": {"metronome": {"window": 64, "resume": True}}}),
]
SAYS: list[messages.ToCaller] = [
    messages.Word(1, "one ", True, False, False),
    messages.Word(1, "more ", False, False, False),
    messages.Word(1, "", False, True, False),
    messages.Word(1, "last", False, True, True),
    messages.Heard(1, "words", 0, 1),
    messages.Heard(1, "words", 1, 1),
    messages.Heard(1, "", 2, 0),
    messages.ReplyLost(1),
]
ANSWERS: dict[type, Callable[[], messages.ToCaller]] = {
    messages.Cancel: lambda: messages.Cancelled(1),
    messages.Clear: lambda: messages.Cleared(1),
    messages.Settle: lambda: messages.Settled(1),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, len(DOES) + len(SAYS) + 4), min_size=20, max_size=80))
def test_however_messages_cross_the_events_of_a_call_hang_together(steps: list[int]) -> None:
    """The engine answers what it is asked, in order and late; the rest comes whenever it comes."""

    def play() -> None:
        call = Alone()
        answered = 0
        for step in steps:
            asked = [ANSWERS[type(sent)] for sent in call.link.sent if type(sent) in ANSWERS]
            if step < len(DOES):
                call.does(DOES[step][0], **DOES[step][1])
            elif step < len(DOES) + len(SAYS):
                call.heed(SAYS[step - len(DOES)])
            elif answered < len(asked):
                call.heed(asked[answered]())
                answered += 1
        ga.check(call.said)

    alone(play)


def errors_of(call: Alone) -> list[tuple[str | None, str | None]]:
    found = [event.error for event in call.said if isinstance(event, wire.ErrorEvent)]
    assert {(error.code, error.param) for error in found} == {("buffer_full", "audio")}
    return [(error.event_id, error.message) for error in found]


def test_a_recording_sent_at_once_is_refused_once_a_tick_and_piece_by_piece_where_pieces_have_names() -> None:
    """An error for each of its packets would fill the outbox, and end the call for reading too slowly."""
    second = base64.b64encode(bytes(48_000)).decode()

    def play() -> None:
        call = Alone(max_pending_s=2.0)
        call.does("session.update", session={"audio": {"input": {"turn_detection": None}}})
        for _ in range(3000):
            call.does("input_audio_buffer.append", audio=second)
        assert len(errors_of(call)) == 1
        call.does("input_audio_buffer.append", audio=second, event_id="mine")
        call.does("input_audio_buffer.append", audio=second, event_id="mine too")
        assert [event_id for event_id, _ in errors_of(call)] == [None, "mine", "mine too"]
        call.heed(messages.FrameDone(1, call._line._sent, cast(wire.TickEvent, None)))
        for _ in range(3):  # what the engine refuses of it, likewise
            call.heed(messages.Rejected(1, "buffer_full", "audio", "audio = 3 s: at most 2 s", None))
        assert len(errors_of(call)) == 4
        call.heed(messages.Rejected(1, "buffer_full", "audio", "audio = 3 s: at most 2 s", "mine again"))
        assert errors_of(call)[-1] == ("mine again", "audio = 3 s: at most 2 s")
        assert not call.ended.is_set()

    alone(play)
