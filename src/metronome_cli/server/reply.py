"""One reply of the model, as OpenAI's GA events tell it: in text, or in sound with its text as a transcript.

Knows:   which events a reply is made of and what each must hold, how much one reply may be.
Ignores: which reply is in progress and what it answers (conversation.py), sockets, who wishes for sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from .. import wire
from ..frame import SPEAKING_RATE

MAX_TEXT = 65_536  # characters of one reply; a longer one goes on as the next
MAX_SOUND = 2 * SPEAKING_RATE * 3600  # bytes, an hour; the same
MOST_DELTA = 96_000  # bytes of sound in one event, two seconds


@dataclass(slots=True)
class Reply:
    """What was said of it so far. `aloud`: its sound is told, and its text as a transcript."""

    response_id: str
    aloud: bool
    asked_tokens: int | None
    metadata: dict[str, str] | None
    item_id: str | None = None  # from the first word on, after item `before`
    before: str | None = None
    tokens: int = 0
    _text: list[str] = field(default_factory=list)
    _characters: int = 0
    _sound: int = 0  # bytes

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def too_long(self) -> bool:
        return self._characters > MAX_TEXT or self._sound > MAX_SOUND

    def begin(self, item_id: str, before: str | None) -> Iterator[wire.ServerEvent]:
        """It has an item from here on, after the item `before`."""
        self.item_id, self.before = item_id, before
        item = wire.Item(
            id=item_id, object="realtime.item", role="assistant", status="in_progress", content=[]
        )
        yield wire.OutputItemAdded(event_id="", response_id=self.response_id, item=item)
        yield wire.ItemAdded(event_id="", item=item, previous_item_id=before)
        yield wire.ContentPartAdded(
            event_id="", response_id=self.response_id, item_id=item_id, part=self._part("")
        )

    def add(self, text: str, pcm: bytes, end: bool) -> Iterator[wire.ServerEvent]:
        """One token more. An event goes out for each, but for an end without a word: its moment is told."""
        self.tokens += 1
        self._characters += len(text)
        if text:  # a pause is no text, and a model that never rests may pause for hours
            self._text.append(text)
        pcm = pcm if self.aloud else b""
        self._sound += len(pcm)
        item_id = self.item_id or ""
        if text or not (pcm or end):
            kind = wire.TranscriptDelta if self.aloud else wire.TextDelta
            yield kind(event_id="", response_id=self.response_id, item_id=item_id, delta=text)
        for start in range(0, len(pcm), MOST_DELTA):
            piece = pcm[start : start + MOST_DELTA]
            yield wire.AudioDelta(event_id="", response_id=self.response_id, item_id=item_id, delta=piece)

    def end(self, status: str) -> Iterator[wire.ServerEvent]:
        """Its item is done; nothing where it never had one."""
        if self.item_id is None:
            return
        response_id, item_id, text = self.response_id, self.item_id, self.text
        if self.aloud:
            yield wire.AudioDone(event_id="", response_id=response_id, item_id=item_id)
            yield wire.TranscriptDone(event_id="", response_id=response_id, item_id=item_id, transcript=text)
        else:
            yield wire.TextDone(event_id="", response_id=response_id, item_id=item_id, text=text)
        part = self._part(text)
        yield wire.ContentPartDone(event_id="", response_id=response_id, item_id=item_id, part=part)
        item = self._item(item_id, status)
        yield wire.OutputItemDone(event_id="", response_id=response_id, item=item)
        yield wire.ItemDone(event_id="", item=item, previous_item_id=self.before)

    def response(self, status: str) -> wire.Response:
        """The whole reply as it stands."""
        over = self.item_id is not None and status != "in_progress"
        return wire.Response(
            id=self.response_id,
            status=status,
            output=[self._item(self.item_id or "", status)] if over else [],
            output_modalities=["audio" if self.aloud else "text"],
            metadata=self.metadata,
            max_output_tokens=self.asked_tokens or "inf",
        )

    def _part(self, text: str) -> wire.Part:
        return wire.Part(type="audio", transcript=text) if self.aloud else wire.Part(text=text)

    def _item(self, item_id: str, status: str) -> wire.Item:
        if self.aloud:
            part = wire.ContentPart(type="output_audio", transcript=self.text)
        else:
            part = wire.ContentPart(type="output_text", text=self.text)
        return wire.Item(
            id=item_id,
            object="realtime.item",
            role="assistant",
            status="completed" if status == "completed" else "incomplete",
            content=[part],
        )
