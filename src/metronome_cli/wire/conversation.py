"""What a conversation is made of: messages, replies, and what went wrong.

Knows:   the fields of OpenAI's items and responses that we use.
Ignores: when each comes about (server/conversation.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from .session import always


class ContentPart(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`input_text` and `output_text` have a text, `output_audio` and `input_audio` a transcript."""

    type: str
    text: str | None = None
    transcript: str | None = None


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A message. Clients may create those of role "user" with content parts "input_text"."""

    content: list[ContentPart]
    type: str = always("message")
    role: str = always("user")
    id: str | None = None
    object: str | None = None
    status: str | None = None

    @classmethod
    def message(cls, text: str) -> Item:
        """One typed message."""
        return cls(content=[ContentPart(type="input_text", text=text)])


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content part of a reply, as `response.content_part.*` shows it; of sound the transcript alone."""

    text: str | None = None
    transcript: str | None = None
    type: str = always("text")


class Usage(msgspec.Struct, kw_only=True):
    """Tokens read since the last reply, and said in this one."""

    input_tokens: int
    output_tokens: int
    total_tokens: int


class Failure(msgspec.Struct, kw_only=True):
    """Why a reply has status "failed"."""

    type: str
    code: str
    message: str


class StatusDetails(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a reply ended. `reason` is OpenAI's; `error` belongs to status "failed"."""

    type: str
    reason: str | None = None
    error: Failure | None = None


class Response(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One reply; `status` is in_progress, completed, cancelled, incomplete or failed."""

    id: str
    status: str
    object: str = always("realtime.response")
    output: list[Item]
    output_modalities: list[str]
    status_details: StatusDetails | None = None
    usage: Usage | None = None
    metadata: dict[str, str] | None = None
    max_output_tokens: int | str | None = None


class ResponseSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `response` of `response.create`. What we cannot do for a single reply is refused by name."""

    output_modalities: list[str] | None = None
    max_output_tokens: int | str | None = None
    metadata: dict[str, str] | None = None
    conversation: str | None = None
    instructions: str | None = None
    input: list[Any] | None = None
    tools: list[Any] | None = None


class ErrorDetail(msgspec.Struct, kw_only=True):
    """`code` is stable and meant for programs; `event_id` is the client's own, when it gave one."""

    type: str
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
