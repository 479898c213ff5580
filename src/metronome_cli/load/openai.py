"""OpenAI's Realtime events as a caller says and hears them, and our own server's on top.

Knows:   both protocols' events: which delta is a token, which event ends a reply, what a tick event adds.
Ignores: sockets and clocks.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import soxr

from .. import wire
from ..errors import InputError
from ..speech import RATE
from .protocols import Begun, Event, Fault, Heard, Message, ReplyDone, Sound, Token

OPENAI_RATE = 24_000  # the only rate of audio/pcm in the GA form

# Text first, then the transcript of what is spoken; the shorter names are those of the beta.
_TOKENS = frozenset(
    {
        "response.output_text.delta",
        "response.output_audio_transcript.delta",
        "response.text.delta",
        "response.audio_transcript.delta",
    }
)
_SOUNDS = frozenset({"response.output_audio.delta", "response.audio.delta"})
_TRANSCRIPT = "conversation.item.input_audio_transcription.completed"

_DAY_S = 86_400.0  # no frame and no call of ours lasts longer
_MOST = 2**53  # that a JSON number counts exactly
_COUNTS = ("tick", "frame", "tokens_in", "tokens_out", "kv_blocks", "kv_leased", "kv_total", "skipped")


class _Event(msgspec.Struct):
    """Any event, as far as we look at it; servers differ in everything else."""

    type: str
    delta: Any = ""
    response_id: Any = ""
    transcript: Any = ""
    response: Any = None
    session: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class OpenAI:
    """A server of somebody else's: server_vad decides when to answer, and no tick event tells of frames."""

    name = "openai"
    binary = False

    def __init__(self, modality: str = "auto") -> None:
        self._modalities = ["text" if modality == "auto" else modality]
        # Quick: 0.1 ms behind, where the better ones hold 6 to 21 ms back that were due to be sent. In float,
        # because integers would be dithered, and digital silence must stay silence.
        self._resample = soxr.ResampleStream(RATE, OPENAI_RATE, 1, dtype="float32", quality="QQ")

    def opening(self) -> Sequence[Message]:
        turns = wire.TurnDetection(type="server_vad")
        return [_settings(OPENAI_RATE, turns, None, self._modalities)]

    def packet(self, pcm: bytes) -> Message | None:
        audio = self._resample.resample_chunk(np.frombuffer(pcm, "<i2").astype(np.float32))
        return wire.encode(wire.AudioAppend(audio=np.clip(audio, -32768, 32767).astype("<i2").tobytes()))

    def closing(self) -> Sequence[Message]:
        return []

    def cancel(self) -> Message | None:
        return wire.encode(wire.ResponseCancel())

    def hear(self, message: Message) -> Sequence[Event]:
        try:
            event = _decoder.decode(message)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InputError("invalid_event", "event", str(message)[:60], str(error)) from None
        if event.type in _TOKENS:
            return [Token(str(event.delta), str(event.response_id))]
        if event.type in _SOUNDS:
            return [Sound(_decoded(event.delta), str(event.response_id))]
        return _rare(event)


class Metronome:
    """Our own server: the model listens and speaks at once, and tick events close frames."""

    name = "metronome"
    binary = False

    def __init__(self, modality: str = "auto") -> None:
        self._modalities = None if modality == "auto" else [modality]

    def opening(self) -> Sequence[Message]:
        turns, ticks = wire.TurnDetection(type="full_duplex"), wire.MetronomeSettings(ticks=True)
        return [_settings(RATE, turns, ticks, self._modalities)]

    def packet(self, pcm: bytes) -> Message | None:
        return wire.encode(wire.AudioAppend(audio=pcm))

    def closing(self) -> Sequence[Message]:
        return []

    def cancel(self) -> Message | None:
        return wire.encode(wire.ResponseCancel())

    def hear(self, message: Message) -> Sequence[Event]:
        event = wire.decode_server_event(message)
        match event:
            case wire.TextDelta() | wire.TranscriptDelta():
                return [Token(event.delta, event.response_id)]
            case wire.AudioDelta():
                return [Sound(event.delta, event.response_id)]
            case wire.TickEvent():
                return [_plausible(event)]
        return _seldom(event)


def _seldom(event: wire.ServerEvent | None) -> Sequence[Event]:
    """What does not come with every token or frame. The rest says nothing that the tick event does not."""
    match event:
        case wire.TextDone() | wire.TranscriptDone():
            return [ReplyDone(event.response_id)]
        case wire.SessionCreated():
            told = event.session.metronome
            frame_s = _within("frame_s", told.frame_s or 0.0, _DAY_S) or None
            bounded = told.policy != "unbounded" if told.policy else None
            return [Begun(event.session.id, frame_s, bounded, _window(told))]
        case wire.ErrorEvent():
            return [Fault(event.error.code)]
    return []


def _window(told: wire.MetronomeInfo) -> int | None:
    """How many tokens the server keeps of a call, where it has a window and tells it in tokens."""
    if told.policy != "window" or not isinstance(told.window, int):
        return None
    sinks = told.sinks if isinstance(told.sinks, int) else 0  # the header's length is not told
    return int(_within("window", told.window + sinks, _MOST)) or None


def _plausible(event: wire.TickEvent) -> wire.TickEvent:
    """A tick event that can be counted: a run cut into steps by a time of 1e300 s would have no end."""
    for name in _COUNTS:
        _within(name, getattr(event, name), _MOST)
    _within("audio_end_ms", event.audio_end_ms, 1000 * _DAY_S)
    _within("done", event.done - event.due, _DAY_S)
    return event


def _within(name: str, value: float, most: float) -> float:
    if not 0 <= value <= most:
        raise InputError("invalid_value", name, value, f"expected 0 to {most:g}")
    return value


def _decoded(delta: Any) -> bytes:
    try:
        return base64.b64decode(str(delta), validate=True)
    except ValueError as error:
        raise InputError("invalid_audio", "delta", str(delta)[:60], f"expected base64 ({error})") from None


def _settings(
    rate: int,
    turns: wire.TurnDetection,
    extension: wire.MetronomeSettings | None,
    modalities: list[str] | None,
) -> Message:
    sound = wire.AudioInput(format=wire.AudioFormat(rate=rate), turn_detection=turns)
    settings = wire.SessionSettings(
        audio=wire.AudioSettings(input=sound), output_modalities=modalities, metronome=extension
    )
    return wire.encode(wire.SessionUpdate(session=settings))


def _rare(event: _Event) -> Sequence[Event]:
    """Everything that does not come many times a second."""
    match event.type:
        case "session.created":
            return [Begun(str(_field(event.session, "id") or ""))]
        case "response.done":
            return [ReplyDone(str(_field(event.response, "id") or ""))]
        case "error":
            return [Fault(str(_field(event.error, "code") or _field(event.error, "type") or "error"))]
        case kind if kind == _TRANSCRIPT:
            return [Heard(f"{event.transcript} ")]
    return []


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else None
