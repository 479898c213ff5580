"""What is said over /v1/realtime: OpenAI's Realtime events (GA form) and our tick event.

Knows:   paths, close codes, event names, their fields, JSON, and how a malformed event is explained.
Ignores: sockets, sessions, audio contents, and what any event sets in motion.

`input_audio_buffer.append` carries PCM16 little-endian mono; `bytes` fields are base64 in JSON.
"""

from __future__ import annotations

from .client import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    ClientEvent,
    ItemCreate,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from .codec import decode_client_event, decode_server_event, encode, event_id_of
from .conversation import (
    ContentPart,
    ErrorDetail,
    Failure,
    Item,
    Part,
    Response,
    ResponseSettings,
    StatusDetails,
    Usage,
)
from .server import (
    AudioCleared,
    AudioCommitted,
    AudioDelta,
    AudioDone,
    ContentPartAdded,
    ContentPartDone,
    Duration,
    ErrorEvent,
    HeardCompleted,
    HeardDelta,
    ItemAdded,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    Refusal,
    RefusalDetail,
    ResponseCreated,
    ResponseDone,
    ServerEvent,
    SessionCreated,
    SessionResumed,
    SessionUpdated,
    SpeechStarted,
    SpeechStopped,
    TextDelta,
    TextDone,
    TickEvent,
    TranscriptDelta,
    TranscriptDone,
)
from .session import (
    PCM,
    RATES,
    AudioFormat,
    AudioInput,
    AudioOutput,
    AudioSettings,
    MetronomeInfo,
    MetronomeSettings,
    SessionInfo,
    SessionSettings,
    Transcription,
    TurnDetection,
)

REALTIME_PATH = "/v1/realtime"
HEALTH_PATH = "/health"

# WebSocket close codes that follow a fatal `error` event of the same name.
CLOSE_ENGINE_DEAD = 1011
CLOSE_SESSION_IDLE = 4408
CLOSE_TOO_SLOW = 4429
CLOSE_REPLACED = 4409
CLOSE_DRAINED = 1012

CLOSE_CODES = {
    "engine_dead": CLOSE_ENGINE_DEAD,
    "engine_hung": CLOSE_ENGINE_DEAD,
    "session_lost": CLOSE_ENGINE_DEAD,
    "session_failed": CLOSE_ENGINE_DEAD,
    "session_idle": CLOSE_SESSION_IDLE,
    "client_too_slow": CLOSE_TOO_SLOW,
    "server_draining": CLOSE_DRAINED,
}

__all__ = [
    "CLOSE_CODES",
    "CLOSE_DRAINED",
    "CLOSE_ENGINE_DEAD",
    "CLOSE_REPLACED",
    "CLOSE_SESSION_IDLE",
    "CLOSE_TOO_SLOW",
    "HEALTH_PATH",
    "PCM",
    "RATES",
    "REALTIME_PATH",
    "AudioAppend",
    "AudioClear",
    "AudioCleared",
    "AudioCommit",
    "AudioCommitted",
    "AudioDelta",
    "AudioDone",
    "AudioFormat",
    "AudioInput",
    "AudioOutput",
    "AudioSettings",
    "ClientEvent",
    "ContentPart",
    "ContentPartAdded",
    "ContentPartDone",
    "Duration",
    "ErrorDetail",
    "ErrorEvent",
    "Failure",
    "HeardCompleted",
    "HeardDelta",
    "Item",
    "ItemAdded",
    "ItemCreate",
    "ItemDone",
    "MetronomeInfo",
    "MetronomeSettings",
    "OutputItemAdded",
    "OutputItemDone",
    "Part",
    "Refusal",
    "RefusalDetail",
    "Response",
    "ResponseCancel",
    "ResponseCreate",
    "ResponseCreated",
    "ResponseDone",
    "ResponseSettings",
    "ServerEvent",
    "SessionCreated",
    "SessionInfo",
    "SessionResumed",
    "SessionSettings",
    "SessionUpdate",
    "SessionUpdated",
    "SpeechStarted",
    "SpeechStopped",
    "StatusDetails",
    "TextDelta",
    "TextDone",
    "TickEvent",
    "TranscriptDelta",
    "TranscriptDone",
    "Transcription",
    "TurnDetection",
    "Usage",
    "decode_client_event",
    "decode_server_event",
    "encode",
    "event_id_of",
]
