"""What the server says: OpenAI's server events, and ours to those who asked for them.

Knows:   their names and fields, and the body of a refused upgrade.
Ignores: when each is said (server/realtime.py, server/conversation.py).
"""

from __future__ import annotations

import msgspec

from .conversation import ErrorDetail, Item, Part, Response
from .session import SessionInfo


class _ServerEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    event_id: str


class SessionCreated(_ServerEvent, tag="session.created"):
    session: SessionInfo


class SessionUpdated(_ServerEvent, tag="session.updated"):
    session: SessionInfo


class SessionResumed(_ServerEvent, tag="metronome.resumed"):
    """First on a connection that takes up a lost one; the events since `after` follow, as first sent."""

    session: SessionInfo
    replayed: int


class SpeechStarted(_ServerEvent, tag="input_audio_buffer.speech_started"):
    """`audio_start_ms` counts the audio of this call."""

    audio_start_ms: int
    item_id: str


class SpeechStopped(_ServerEvent, tag="input_audio_buffer.speech_stopped"):
    audio_end_ms: int
    item_id: str


class AudioCommitted(_ServerEvent, tag="input_audio_buffer.committed"):
    item_id: str
    previous_item_id: str | None


class AudioCleared(_ServerEvent, tag="input_audio_buffer.cleared"):
    pass


class ItemAdded(_ServerEvent, tag="conversation.item.added"):
    item: Item
    previous_item_id: str | None


class ItemDone(_ServerEvent, tag="conversation.item.done"):
    item: Item
    previous_item_id: str | None


class HeardDelta(_ServerEvent, tag="conversation.item.input_audio_transcription.delta"):
    """Words that the ears hand on, as soon as they do."""

    item_id: str
    delta: str
    content_index: int = 0


class Duration(msgspec.Struct, kw_only=True):
    """What a transcript cost: seconds of audio."""

    seconds: float
    type: str = "duration"


class HeardCompleted(_ServerEvent, tag="conversation.item.input_audio_transcription.completed"):
    """All that was heard of one utterance."""

    item_id: str
    transcript: str
    usage: Duration
    content_index: int = 0


class ResponseCreated(_ServerEvent, tag="response.created"):
    response: Response


class OutputItemAdded(_ServerEvent, tag="response.output_item.added"):
    response_id: str
    item: Item
    output_index: int = 0


class ContentPartAdded(_ServerEvent, tag="response.content_part.added"):
    response_id: str
    item_id: str
    part: Part
    output_index: int = 0
    content_index: int = 0


class TextDelta(_ServerEvent, tag="response.output_text.delta"):
    """One token's text, sent as soon as it is decoded; empty while its character is incomplete."""

    response_id: str
    item_id: str
    delta: str
    output_index: int = 0
    content_index: int = 0


class TextDone(_ServerEvent, tag="response.output_text.done"):
    """The reply is complete, or was cancelled; `text` is all of it."""

    response_id: str
    item_id: str
    text: str
    output_index: int = 0
    content_index: int = 0


class AudioDelta(_ServerEvent, tag="response.output_audio.delta"):
    """One token's sound, sent as soon as it is made: PCM16 little-endian mono, 24 kHz."""

    response_id: str
    item_id: str
    delta: bytes
    output_index: int = 0
    content_index: int = 0


class AudioDone(_ServerEvent, tag="response.output_audio.done"):
    """The sound of the reply is complete, or was cut off."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class TranscriptDelta(_ServerEvent, tag="response.output_audio_transcript.delta"):
    """One token's text, where the reply is sound; a token that is only sound has none."""

    response_id: str
    item_id: str
    delta: str
    output_index: int = 0
    content_index: int = 0


class TranscriptDone(_ServerEvent, tag="response.output_audio_transcript.done"):
    """All that the reply said, in text."""

    response_id: str
    item_id: str
    transcript: str
    output_index: int = 0
    content_index: int = 0


class ContentPartDone(_ServerEvent, tag="response.content_part.done"):
    response_id: str
    item_id: str
    part: Part
    output_index: int = 0
    content_index: int = 0


class OutputItemDone(_ServerEvent, tag="response.output_item.done"):
    response_id: str
    item: Item
    output_index: int = 0


class ResponseDone(_ServerEvent, tag="response.done"):
    response: Response


class ErrorEvent(_ServerEvent, tag="error"):
    error: ErrorDetail


class TickEvent(_ServerEvent, tag="metronome.tick"):
    """Closes a frame: the deltas since the previous tick event belong to it.

    `due` and `done` are monotonic seconds of the server; `audio_end_ms` is the audio of this call, at the
    client's pace, consumed up to and including this frame; `kv_*` count blocks.
    """

    tick: int  # the server's count of beats
    frame: int  # the session's own count, from 0
    audio_end_ms: float
    due: float
    done: float
    stalled: bool  # no block was free; this frame's input is lost
    speaking: bool  # whether the session was to speak in this frame
    tokens_in: int
    tokens_out: int
    kv_blocks: int  # held by this session
    kv_leased: int  # held by all sessions
    kv_total: int
    skipped: int  # beats left out just before this one
    heard: str  # words handed on by the ears in this frame


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | SessionResumed
    | SpeechStarted
    | SpeechStopped
    | AudioCommitted
    | AudioCleared
    | ItemAdded
    | ItemDone
    | HeardDelta
    | HeardCompleted
    | ResponseCreated
    | OutputItemAdded
    | ContentPartAdded
    | TextDelta
    | TextDone
    | AudioDelta
    | AudioDone
    | TranscriptDelta
    | TranscriptDone
    | ContentPartDone
    | OutputItemDone
    | ResponseDone
    | ErrorEvent
    | TickEvent
)


class RefusalDetail(msgspec.Struct, kw_only=True):
    """`code` is the machine-readable reason."""

    code: str
    message: str
    type: str = "server_overloaded"


class Refusal(msgspec.Struct, kw_only=True):
    """Body of the HTTP 503 that stands in place of an upgrade."""

    error: RefusalDetail
