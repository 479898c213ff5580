"""What a client says: OpenAI's client events, as far as we take them.

Knows:   their names and fields.
Ignores: what each sets in motion (server/realtime.py).
"""

from __future__ import annotations

import msgspec

from .conversation import Item, ResponseSettings
from .session import SessionSettings


class _ClientEvent(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    event_id: str | None = None


class SessionUpdate(_ClientEvent, tag="session.update"):
    session: SessionSettings


class AudioAppend(_ClientEvent, tag="input_audio_buffer.append"):
    audio: bytes


class AudioCommit(_ClientEvent, tag="input_audio_buffer.commit"):
    """The utterance is over."""


class AudioClear(_ClientEvent, tag="input_audio_buffer.clear"):
    """Forget the audio since the last commit."""


class ItemCreate(_ClientEvent, tag="conversation.item.create"):
    item: Item
    previous_item_id: str | None = None


class ResponseCreate(_ClientEvent, tag="response.create"):
    """Answer what was said since the last reply."""

    response: ResponseSettings | None = None


class ResponseCancel(_ClientEvent, tag="response.cancel"):
    """Abandon the reply in progress; the call goes on."""

    response_id: str | None = None


ClientEvent = (
    SessionUpdate | AudioAppend | AudioCommit | AudioClear | ItemCreate | ResponseCreate | ResponseCancel
)
