"""One call's items and replies, told as OpenAI's GA events in their order.

Knows:   ids, which reply is in progress, which utterance is being heard, what the events of one must hold.
Ignores: how a reply is told (reply.py), sockets, the engine, settings: it is told what happened and says so
         through `say`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from .. import wire
from ..errors import InputError
from ..frame import SessionId
from .messages import Word
from .reply import Reply

MAX_WORDS = 10_000  # heard of one utterance, an hour of speech; a longer one goes on as the next

Say = Callable[[wire.ServerEvent], None]


@dataclass(slots=True)
class _Utterance:
    """What the caller is saying, or has said and we are still hearing."""

    item_id: str
    words: list[str] = field(default_factory=list)
    told: int = 0  # of the words, told as deltas
    seconds: float = 0.0  # of audio
    named: bool = False  # the client knows the id
    added: bool = False  # it is in the conversation, after item `before`
    before: str | None = None
    clears: int = 0  # before it

    @property
    def transcript(self) -> str:
        return " ".join(self.words)

    def item(self, transcript: str | None, status: str) -> wire.Item:
        part = wire.ContentPart(type="input_audio", transcript=transcript)
        return wire.Item(id=self.item_id, object="realtime.item", status=status, content=[part])


class Conversation:
    """Everything that `say` is given hangs together: each id was announced before it is used."""

    def __init__(self, say: Say) -> None:
        self.session: SessionId = 0
        self.last_item: str | None = None
        self.transcribing = False
        self.duplex = False  # an utterance ends when the ears say so
        self.aloud = False  # replies are told in sound, unless they are asked for in another way
        self._say = say
        self._items = 0
        self._replies = 0
        self._reply: Reply | None = None
        self._tokens_in = 0  # since the last reply
        self._utterance: _Utterance | None = None  # being said
        self._committed: deque[_Utterance] = deque()  # said, and still being heard
        self._clears = 0  # by the caller,
        self._confirmed = 0  # and by the ears: until then words that come were said before

    @property
    def replying(self) -> str | None:
        """The id of the reply in progress."""
        return self._reply.response_id if self._reply else None

    # ---- What the caller brings ----

    def audio(self, seconds: float) -> None:
        """More audio of the utterance being said."""
        if self._utterance or seconds:
            self._current().seconds += seconds

    def speech_started(self, at_ms: int) -> None:
        utterance = self._current()
        utterance.named = True
        self._say(wire.SpeechStarted(event_id="", audio_start_ms=at_ms, item_id=utterance.item_id))

    def speech_stopped(self, at_ms: int) -> None:
        self._say(wire.SpeechStopped(event_id="", audio_end_ms=at_ms, item_id=self._current().item_id))

    def committed(self) -> None:
        """The utterance being said is over; what was heard of it follows when it is heard."""
        utterance, self._utterance = self._current(), None
        self._committed.append(utterance)
        self._say(
            wire.AudioCommitted(
                event_id="",
                item_id=utterance.item_id,
                previous_item_id=utterance.before if utterance.added else self.last_item,
            )
        )
        self._add(utterance)
        item = utterance.item(None, "completed")
        self._say(wire.ItemDone(event_id="", item=item, previous_item_id=utterance.before))
        self._tell_words(utterance)

    def cleared(self) -> None:
        self._clears += 1
        utterance, self._utterance = self._utterance, None
        if utterance and utterance.added:
            item = utterance.item(None, "incomplete")
            self._say(wire.ItemDone(event_id="", item=item, previous_item_id=utterance.before))
        self._say(wire.AudioCleared(event_id=""))

    def clear_confirmed(self) -> None:
        """The ears have forgotten what was cleared."""
        self._confirmed += 1

    def typed(self, text: str, item_id: str | None) -> None:
        """A typed message joins the conversation."""
        part = wire.ContentPart(type="input_text", text=text)
        item = wire.Item(
            id=item_id or self._item_id(), object="realtime.item", status="completed", content=[part]
        )
        before, self.last_item = self.last_item, item.id
        self._say(wire.ItemAdded(event_id="", item=item, previous_item_id=before))
        self._say(wire.ItemDone(event_id="", item=item, previous_item_id=before))

    # ---- What the ears hand on ----

    def heard(self, text: str, overs: int, tokens: int) -> None:
        """Words of the oldest utterance that is not heard out, and how many are heard out with them."""
        self._tokens_in += tokens
        if text:
            utterance = self._committed[0] if self._committed else self._current()
            if self._is_heard(utterance):
                self._take_words(utterance, text.split())
        for _ in range(overs):
            self._heard_out()

    # ---- What the model says ----

    def begin(
        self, most_tokens: int | None, metadata: dict[str, str] | None, aloud: bool | None = None
    ) -> None:
        """A reply is asked for; InputError while another is in progress. `aloud` None: as is usual here."""
        if self._reply:
            cure = "wait for its response.done, or cancel it"
            code = "conversation_already_has_active_response"
            raise InputError(code, "response", self._reply.response_id, cure)
        self._replies += 1
        in_sound = self.aloud if aloud is None else aloud
        reply = self._reply = Reply(f"resp_{self.session}_{self._replies}", in_sound, most_tokens, metadata)
        self._say(wire.ResponseCreated(event_id="", response=reply.response("in_progress")))

    def word(self, word: Word) -> None:
        """One token of the reply in progress, which begins here if it did not yet."""
        if word.start and self._reply and self._reply.item_id:
            self.finish("cancelled", "turn_detected")  # interrupted by a new turn
        if self._reply is None:
            self.begin(None, None)
        reply = self._reply
        assert reply is not None  # noqa: S101
        if reply.item_id is None:
            before, self.last_item = self.last_item, self._item_id()
            self._say_all(reply.begin(self.last_item, before))
        self._say_all(reply.add(word.text, word.pcm, word.end))
        if word.end and not word.cut:
            self.finish("completed", None)
        elif word.end or reply.too_long:
            self.finish("incomplete", "max_output_tokens")

    def finish(self, status: str, reason: str | None, error: wire.Failure | None = None) -> None:
        """The reply in progress is over; nothing happens when there is none."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        self._say_all(reply.end(status))
        response = reply.response(status)
        if status != "completed":
            response.status_details = wire.StatusDetails(type=status, reason=reason, error=error)
        response.usage = wire.Usage(
            input_tokens=self._tokens_in,
            output_tokens=reply.tokens,
            total_tokens=self._tokens_in + reply.tokens,
        )
        self._tokens_in = 0
        self._say(wire.ResponseDone(event_id="", response=response))

    # ---- The parts ----

    def _current(self) -> _Utterance:
        if self._utterance is None:
            self._utterance = _Utterance(self._item_id(), clears=self._clears)
        return self._utterance

    def _item_id(self) -> str:
        self._items += 1
        return f"item_{self.session}_{self._items}"

    def _add(self, utterance: _Utterance) -> None:
        if utterance.added:
            return
        utterance.added = utterance.named = True
        utterance.before, self.last_item = self.last_item, utterance.item_id
        item = utterance.item(None, "in_progress")
        self._say(wire.ItemAdded(event_id="", item=item, previous_item_id=utterance.before))

    def _tell_words(self, utterance: _Utterance) -> None:
        if not (self.transcribing and utterance.named):
            return
        for number in range(utterance.told, len(utterance.words)):
            delta = utterance.words[number] if number == 0 else f" {utterance.words[number]}"
            self._say(wire.HeardDelta(event_id="", item_id=utterance.item_id, delta=delta))
        utterance.told = len(utterance.words)

    def _is_heard(self, utterance: _Utterance) -> bool:
        """Whether what comes from the ears can be of it: they have come to the clears before it."""
        return utterance.clears <= self._confirmed

    def _take_words(self, utterance: _Utterance, words: list[str]) -> None:
        utterance.words += words
        if self.duplex and not self._committed:
            self._add(utterance)  # nobody needs to commit it: it is there from its first word on
        self._tell_words(utterance)
        if len(utterance.words) > MAX_WORDS:
            self._heard_out()

    def _heard_out(self) -> None:
        """The oldest utterance is heard to its end."""
        committed = bool(self._committed)
        if committed and not self._is_heard(self._committed[0]):
            return
        if committed:
            utterance = self._committed.popleft()
        elif self._utterance and self._utterance.words:
            utterance, self._utterance = self._utterance, None
            self._add(utterance)
        else:
            return
        self._tell_words(utterance)
        if self.transcribing:
            self._say(
                wire.HeardCompleted(
                    event_id="",
                    item_id=utterance.item_id,
                    transcript=utterance.transcript,
                    usage=wire.Duration(seconds=round(utterance.seconds, 3)),
                )
            )
        if not committed:
            item = utterance.item(utterance.transcript, "completed")
            self._say(wire.ItemDone(event_id="", item=item, previous_item_id=utterance.before))

    def _say_all(self, events: Iterable[wire.ServerEvent]) -> None:
        for event in events:
            self._say(event)
