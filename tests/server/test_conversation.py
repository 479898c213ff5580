"""What a call tells of its items and replies, whatever happens in whatever order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli import wire
from metronome_cli.errors import InputError
from metronome_cli.server import reply
from metronome_cli.server.conversation import Conversation
from metronome_cli.server.messages import Word

from . import ga

Event = TypeVar("Event", bound=wire.ServerEvent)


class Told(Conversation):
    """A conversation that remembers what it said."""

    def __init__(self, *, transcribing: bool = True, duplex: bool = False) -> None:
        self.events: list[wire.ServerEvent] = []
        super().__init__(self._remember)
        self.session = 7
        self.transcribing, self.duplex = transcribing, duplex

    def _remember(self, event: wire.ServerEvent) -> None:
        event.event_id = f"event_7_{len(self.events) + 1}"
        self.events.append(event)

    def all(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    def last(self, kind: type[Event]) -> Event:
        return self.all(kind)[-1]

    def say(self, *words: str, end: bool = True, cut: bool = False) -> None:
        """A reply of the model, token by token."""
        for number, word in enumerate(words):
            last = end and number == len(words) - 1
            self.token(word, start=number == 0, end=last, cut=cut and last)

    def token(
        self, text: str, start: bool = False, end: bool = False, cut: bool = False, pcm: bytes = b""
    ) -> None:
        self.word(Word(self.session, text, start, end, cut, pcm))


@pytest.fixture(params=[False, True], ids=["turns", "duplex"])
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    made = Told(duplex=request.param)
    yield made
    ga.check(made.events)


def names(events: list[wire.ServerEvent]) -> list[str]:
    return [str(event.__struct_config__.tag) for event in events]


def test_a_reply_is_told_in_openais_order(told: Told) -> None:
    told.begin(None, {"topic": "order"})
    told.say("Yes", ".", "")
    assert names(told.events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    done = told.last(wire.ResponseDone).response
    assert (done.status, done.status_details, done.metadata) == ("completed", None, {"topic": "order"})
    assert done.usage == wire.Usage(input_tokens=0, output_tokens=3, total_tokens=3)


def test_a_reply_to_nobodys_asking_is_told_in_the_same_order(told: Told) -> None:
    told.say("Yes", "")
    asked = Told()
    asked.begin(None, None)
    asked.say("Yes", "")
    assert names(told.events) == names(asked.events)


def test_a_reply_without_a_word_is_a_whole_reply(told: Told) -> None:
    told.begin(None, None)
    told.say("")
    assert not told.all(wire.TextDelta)
    assert told.last(wire.TextDone).text == ""
    assert told.last(wire.ResponseDone).response.status == "completed"


def test_a_reply_cancelled_before_its_first_word_has_no_item(told: Told) -> None:
    told.begin(None, None)
    told.finish("cancelled", "client_cancelled")
    assert names(told.events) == ["response.created", "response.done"]
    response = told.last(wire.ResponseDone).response
    assert (response.status, response.output) == ("cancelled", [])
    assert response.status_details == wire.StatusDetails(type="cancelled", reason="client_cancelled")
    assert told.replying is None


def test_a_reply_that_may_not_be_longer_is_incomplete(told: Told) -> None:
    told.begin(2, None)
    told.say("One", " two", cut=True)
    response = told.last(wire.ResponseDone).response
    assert (response.status, response.max_output_tokens) == ("incomplete", 2)
    assert response.status_details == wire.StatusDetails(type="incomplete", reason="max_output_tokens")
    assert [item.status for item in response.output] == ["incomplete"]


def test_a_second_reply_is_refused_while_one_is_in_progress(told: Told) -> None:
    told.begin(None, None)
    with pytest.raises(InputError) as caught:
        told.begin(None, None)
    assert caught.value.code == "conversation_already_has_active_response"
    told.say("Still here.", "")
    told.begin(None, None)


def test_a_reply_that_breaks_in_ends_the_one_before(told: Told) -> None:
    told.say("Once upon", end=False)
    told.say("Yes?", "")
    first, second = told.all(wire.ResponseDone)
    assert first.response.status_details == wire.StatusDetails(type="cancelled", reason="turn_detected")
    assert (second.response.status, told.last(wire.TextDone).text) == ("completed", "Yes?")


def test_a_reply_without_end_goes_on_as_the_next(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "MAX_TEXT", 10)
    told.say(*["four"] * 7, end=False)
    assert [done.text for done in told.all(wire.TextDone)] == ["four" * 3] * 2
    assert {done.response.status for done in told.all(wire.ResponseDone)} == {"incomplete"}


def test_a_spoken_reply_is_told_in_openais_order() -> None:
    told = Told()
    told.aloud = True
    told.token("Yes", start=True, pcm=b"\1\0" * 3)
    told.token("", pcm=b"\2\0")  # a pause
    told.token("")  # half a character
    told.token(".")  # its sound is still to come
    told.token("", pcm=b"\3\0", end=True)
    assert names(told.events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    ga.check(told.events)
    assert b"".join(event.delta for event in told.all(wire.AudioDelta)) == b"\1\0\1\0\1\0\2\0\3\0"
    done = told.last(wire.ResponseDone).response
    assert (done.output_modalities, done.output[0].content) == (
        ["audio"],
        [wire.ContentPart(type="output_audio", transcript="Yes.")],
    )
    assert done.usage == wire.Usage(input_tokens=0, output_tokens=5, total_tokens=5)


def test_who_wants_text_gets_the_text_of_a_model_that_speaks_and_nothing_else() -> None:
    told = Told()
    told.aloud = True
    told.begin(None, None, aloud=False)
    told.token("Yes", start=True, pcm=b"\1\0")
    told.token("", pcm=b"\1\0", end=True)
    told.token("No", start=True, pcm=b"\1\0", end=True)  # the next reply is as is usual here
    ga.check(told.events)
    first, second = told.all(wire.ResponseDone)
    assert (first.response.output_modalities, second.response.output_modalities) == (["text"], ["audio"])
    assert [event.delta for event in told.all(wire.TextDelta)] == ["Yes"]
    assert len(told.all(wire.AudioDelta)) == 1


def test_much_sound_goes_out_in_pieces_and_an_endless_pause_as_several_replies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reply, "MOST_DELTA", 4)
    monkeypatch.setattr(reply, "MAX_SOUND", 30)
    told = Told()
    told.aloud = True
    for _ in range(10):
        told.token("", pcm=bytes(10))
    ga.check(told.events)
    assert {len(event.delta) for event in told.all(wire.AudioDelta)} == {4, 2}
    assert [
        done.response.usage.output_tokens for done in told.all(wire.ResponseDone) if done.response.usage
    ] == [
        4,
        4,
    ]


def test_tokens_read_are_counted_with_the_reply_that_follows(told: Told) -> None:
    told.heard("", 0, 5)
    told.heard("", 0, 2)
    told.say("a", "")
    told.heard("", 0, 4)
    told.say("b", "")
    usages = [done.response.usage for done in told.all(wire.ResponseDone)]
    assert [usage and usage.input_tokens for usage in usages] == [7, 4]


def test_an_utterance_keeps_one_id_from_its_first_sound_to_its_transcript() -> None:
    told = Told()
    told.audio(1.5)
    told.speech_started(100)
    told.heard("What is", 0, 0)
    told.speech_stopped(1400)
    told.committed()
    told.heard("the time?", 1, 6)
    assert names(told.events) == [
        "input_audio_buffer.speech_started",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.delta",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    completed = told.last(wire.HeardCompleted)
    assert (completed.transcript, completed.usage.seconds) == ("What is the time?", 1.5)
    assert "".join(delta.delta for delta in told.all(wire.HeardDelta)) == completed.transcript
    assert len({getattr(event, "item_id", completed.item_id) for event in told.events}) == 1
    ga.check(told.events)


def test_words_before_a_commit_wait_for_it_when_nobody_detects_turns() -> None:
    told = Told()
    told.audio(2.0)
    told.heard("hello there", 0, 0)
    assert told.events == []
    told.committed()
    told.heard("", 1, 3)
    assert told.last(wire.HeardCompleted).transcript == "hello there"
    assert told.last(wire.AudioCommitted).previous_item_id is None
    ga.check(told.events)


def test_two_utterances_committed_together_each_get_a_transcript() -> None:
    told = Told()
    for _ in range(2):
        told.audio(1.0)
        told.committed()
    told.heard("one and two", 2, 3)
    completed = told.all(wire.HeardCompleted)
    assert [event.transcript for event in completed] == ["one and two", ""]
    assert [event.item_id for event in completed] == [e.item_id for e in told.all(wire.AudioCommitted)]
    ga.check(told.events)


def test_nobody_is_told_what_was_heard_who_did_not_ask() -> None:
    told = Told(transcribing=False)
    told.audio(1.0)
    told.committed()
    told.heard("hello", 1, 1)
    assert not told.all(wire.HeardDelta)
    assert not told.all(wire.HeardCompleted)


def test_cleared_words_are_not_in_the_next_transcript() -> None:
    told = Told()
    told.speech_started(0)
    told.heard("never mind", 0, 0)
    told.cleared()
    told.heard("what I said", 0, 0)  # it was on its way
    told.audio(1.0)
    told.committed()
    told.heard("before", 0, 1)
    told.clear_confirmed()
    told.heard("hello", 1, 1)
    assert told.last(wire.HeardCompleted).transcript == "hello"
    ga.check(told.events)


def test_a_clear_takes_nothing_from_what_was_committed_before_it() -> None:
    told = Told()
    told.audio(1.0)
    told.committed()
    told.cleared()
    told.heard("hello", 1, 1)
    told.clear_confirmed()
    told.audio(1.0)
    told.committed()
    told.heard("again", 1, 1)
    assert [event.transcript for event in told.all(wire.HeardCompleted)] == ["hello", "again"]
    ga.check(told.events)


def test_in_a_duplex_call_an_utterance_ends_when_the_ears_say_so() -> None:
    told = Told(duplex=True)
    told.audio(2.0)
    told.heard("what is", 0, 0)
    told.heard("the time", 1, 9)
    assert told.last(wire.HeardCompleted).transcript == "what is the time"
    done = told.last(wire.ItemDone).item
    assert [part.transcript for part in done.content] == ["what is the time"]
    told.heard("again", 1, 2)
    assert len(told.all(wire.ItemAdded)) == len(told.all(wire.ItemDone)) == 2
    ga.check(told.events)


def test_what_was_cleared_in_a_duplex_call_stays_an_incomplete_item() -> None:
    told = Told(duplex=True)
    told.heard("never", 0, 0)
    told.cleared()
    assert told.last(wire.ItemDone).item.status == "incomplete"
    told.clear_confirmed()
    told.heard("hello", 1, 2)
    assert told.last(wire.HeardCompleted).transcript == "hello"
    ga.check(told.events)


def test_who_speaks_for_ever_fills_no_memory(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metronome_cli.server.conversation.MAX_WORDS", 20)
    for _ in range(50):
        told.heard("on and on", 0, 0)
    assert max(len(event.transcript.split()) for event in told.all(wire.HeardCompleted)) <= 22
    assert len(told.all(wire.HeardCompleted)) == 50 * 3 // 21


def test_a_typed_message_keeps_the_id_that_its_client_gave_it(told: Told) -> None:
    told.typed("hello", "mine")
    told.typed("again", None)
    first, second = told.all(wire.ItemAdded)
    assert first.item.id == second.previous_item_id == told.all(wire.ItemDone)[0].item.id == "mine"


def turn(told: Told) -> None:
    told.speech_started(1)
    told.heard("so", 0, 1)
    told.speech_stopped(2)
    told.committed()


def ask(told: Told) -> None:
    if told.replying is None:
        told.begin(None, None)


STEPS: dict[str, Callable[[Told], None]] = {
    "audio": lambda told: told.audio(0.1),
    "start": lambda told: told.speech_started(1),
    "turn": turn,
    "commit": lambda told: told.committed(),
    "clear": lambda told: told.cleared(),
    "confirm": lambda told: told.clear_confirmed(),
    "type": lambda told: told.typed("hello", None),
    "hear": lambda told: told.heard("words", 0, 1),
    "over": lambda told: told.heard("words", 1, 1),
    "silence": lambda told: told.heard("", 1, 0),
    "ask": ask,
    "begin": lambda told: told.token("a", start=True),
    "word": lambda told: told.token("a"),
    "sound": lambda told: told.token("a", pcm=bytes(4)),
    "pause": lambda told: told.token("", pcm=bytes(4)),
    "aloud": lambda told: setattr(told, "aloud", not told.aloud),
    "end": lambda told: told.token("", end=True),
    "cut": lambda told: told.token("a", end=True, cut=True),
    "cancel": lambda told: told.finish("cancelled", "client_cancelled"),
    "fail": lambda told: told.finish("failed", None),
    "duplex": lambda told: setattr(told, "duplex", not told.duplex),
}


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=60), st.booleans(), st.booleans())
def test_whatever_happens_the_events_hang_together(steps: list[str], duplex: bool, heard: bool) -> None:
    told = Told(duplex=duplex, transcribing=heard)
    for step in steps:
        STEPS[step](told)
    ga.check(told.events)
