"""vLLM's /v1/realtime as a caller says and hears it: streaming transcription under event names of its own.

Knows:   session.update with a model, appended 16 kHz PCM16, a commit that begins and a final one that ends.
Ignores: sockets and clocks. What it says back is what it heard, so its tokens are the transcript.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .. import wire
from ..errors import InputError
from .protocols import Begun, Event, Fault, Heard, Message, Token


class _Event(msgspec.Struct):
    type: str
    id: Any = ""
    delta: Any = ""
    error: Any = ""  # a sentence, not an object as in OpenAI's events
    code: Any = None


_decoder = msgspec.json.Decoder(_Event)


class Vllm:
    """One call to a server that transcribes `model`'s way."""

    name = "vllm"
    binary = False

    def __init__(self, model: str) -> None:
        self._model = model

    def opening(self) -> Sequence[Message]:
        # The first commit starts generation over all that is appended from then on.
        return [
            _encode({"type": "session.update", "model": self._model}),
            _encode({"type": "input_audio_buffer.commit", "final": False}),
        ]

    def packet(self, pcm: bytes) -> Message | None:
        return wire.encode(wire.AudioAppend(audio=pcm))

    def closing(self) -> Sequence[Message]:
        return [_encode({"type": "input_audio_buffer.commit", "final": True})]

    def cancel(self) -> Message | None:
        return None

    def hear(self, message: Message) -> Sequence[Event]:
        try:
            event = _decoder.decode(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InputError("invalid_event", "event", str(message)[:60], str(error)) from None
        match event.type:
            case "transcription.delta" if event.delta:  # an empty one says that a step went by
                return [Token(str(event.delta)), Heard(str(event.delta))]
            case "session.created":
                return [Begun(str(event.id))]
            case "error":
                return [Fault(str(event.code or event.error))]
        return []


def _encode(event: dict[str, Any]) -> bytes:
    return msgspec.json.encode(event)
