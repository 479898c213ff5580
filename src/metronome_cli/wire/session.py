"""What a session is set to, as `session.update` asks and `session.created` tells.

Knows:   the fields of OpenAI's session object that we use, and our own under `metronome`.
Ignores: which values can be met (server/settings.py judges them).

Keys of OpenAI's session object that we do not use are ignored; our own are checked.
"""

from __future__ import annotations

from typing import Any

import msgspec

RATES = (24_000, 16_000, 8_000)  # samples per second a client may send; the first is the default
PCM = "audio/pcm"


def always(value: str) -> str:
    """A default that is written out all the same: others read these events too."""
    field: str = msgspec.field(default_factory=lambda: value)
    return field


class AudioFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`rate` is one of RATES; None means the default."""

    type: str = always(PCM)
    rate: int | None = None


class TurnDetection(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Who decides that an utterance is over; None means the default, see server/settings.py.

    `full_duplex` is ours: the model itself decides, and answers without being asked.
    """

    type: str = always("server_vad")
    threshold: float | None = None  # server_vad: probability, 0 to 1, from which a sound is speech
    prefix_padding_ms: int | None = None
    silence_duration_ms: int | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


class Transcription(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Asks to be told what was heard. There is one pair of ears: the model named here changes nothing."""

    model: str | None = None
    language: str | None = None


class AudioInput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Null turns detection or transcription off; left out, it stays as it is."""

    format: AudioFormat | None = None
    turn_detection: TurnDetection | msgspec.UnsetType | None = msgspec.UNSET
    transcription: Transcription | msgspec.UnsetType | None = msgspec.UNSET


class AudioOutput(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A model that speaks has one voice, whatever is asked for beside the format."""

    format: AudioFormat | None = None


class AudioSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    input: AudioInput | None = None
    output: AudioOutput | None = None


class MetronomeSettings(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Our extension; None leaves a setting as it is.

    `ticks` asks for a `metronome.tick` event per frame, `resume` for a token with which a lost
    connection can be taken up again. The others are the session's own retention, within the profile's.
    """

    ticks: bool | None = None
    resume: bool | None = None
    policy: str | None = None
    window: int | None = None
    sinks: int | str | None = None  # tokens, or "header"
    positions: str | None = None


class SessionSettings(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The `session` of `session.update`; None leaves a setting as it is."""

    type: str = always("realtime")
    audio: AudioSettings | None = None
    output_modalities: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: int | str | None = None  # a number, or "inf"
    tools: list[Any] | None = None
    metronome: MetronomeSettings | None = None


class MetronomeInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What our extension stands at. `window` is in tokens, or seconds as the profile has it."""

    frame_s: float | None = None  # seconds from beat to beat
    ticks: bool = False
    policy: str = ""
    window: int | str = 0
    sinks: int | str = 0
    positions: str = ""
    resume_token: str | None = None
    grace_s: float | None = None  # how long the session outlives its connection


class SessionInfo(msgspec.Struct, kw_only=True):
    """The `session` of `session.created` and `session.updated`. `id` ends in the number that traces use."""

    id: str
    model: str
    audio: AudioSettings
    metronome: MetronomeInfo
    instructions: str = ""
    max_output_tokens: int | str = "inf"
    type: str = "realtime"
    object: str = "realtime.session"
    output_modalities: list[str] = msgspec.field(default_factory=lambda: ["text"])
