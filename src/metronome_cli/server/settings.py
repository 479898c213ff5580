"""What a session is set to: each `session.update` is checked, and taken whole or not at all.

Knows:   the defaults, which values we can meet, and what a client's event about a reply or an item may hold.
Ignores: connections, audio, and what a change sets in motion (realtime.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from pydantic import ValidationError

from .. import wire
from ..errors import InputError, ProfileError
from ..frame import SPEAKING_RATE
from ..profile import Profile, Terms
from .turns import TurnSettings

SERVER_VAD, FULL_DUPLEX = "server_vad", "full_duplex"
MOST_METADATA, LONGEST_KEY, LONGEST_VALUE = 16, 64, 512  # of a reply's metadata, as OpenAI has it
LONGEST_ID = 64  # characters of an item's id: it comes back in later events
MOST_INSTRUCTIONS = 16_384  # characters

_INPUT = "session.audio.input"
_BLAMED = ("window", "sinks", "policy", "positions", "instructions")  # the first that was sent


@dataclass(frozen=True, slots=True)
class Detection:
    """Who ends an utterance. `turns` is None where no net listens for speech."""

    shown: wire.TurnDetection | None
    duplex: bool = False  # the model answers whenever it sees fit
    turns: TurnSettings | None = None
    create_response: bool = False
    interrupt_response: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a client can set; `terms` are those of the engine's session."""

    detection: Detection
    rate: int = wire.RATES[0]
    transcription: wire.Transcription | None = None
    most_tokens: int = 0  # of one reply; 0 leaves it to the model
    aloud: bool = False  # replies are sound, with a transcript
    ticks: bool = False
    resume: bool = False
    terms: Terms = field(default_factory=Terms)


def initial(profile: Profile) -> Settings:
    """What a session is set to before its client says anything: OpenAI's defaults.

    A model that never rests answers unasked whatever the client thinks of turns; a client that never
    mentions it is shown no turn detection, since OpenAI has no name for that.
    """
    free = profile.model.mode == "free"
    detection = Detection(None, duplex=True) if free else _detection(wire.TurnDetection())
    return Settings(detection, aloud=profile.model.speaks)


def update(now: Settings, asked: wire.SessionSettings, profile: Profile) -> Settings:
    """`now` with what `asked` changes; InputError names what cannot be met."""
    if asked.type != "realtime":
        raise InputError("unsupported_session", "session.type", asked.type, 'use "realtime"')
    aloud = _aloud(asked.output_modalities, "session", profile)
    _check_tools(asked.tools, "session")
    listening = asked.audio.input if asked.audio and asked.audio.input else wire.AudioInput()
    if profile.model.speaks and asked.audio and asked.audio.output:
        _check_output(asked.audio.output.format)
    ours = asked.metronome or wire.MetronomeSettings()
    most = now.most_tokens
    if asked.max_output_tokens is not None:
        most = _tokens(asked.max_output_tokens, "session.max_output_tokens")
    return replace(
        now,
        rate=_rate(listening.format) or now.rate,
        detection=_asked_detection(now.detection, listening.turn_detection),
        transcription=_set(now.transcription, listening.transcription),
        most_tokens=most,
        aloud=now.aloud if aloud is None else aloud,
        ticks=now.ticks if ours.ticks is None else ours.ticks,
        resume=now.resume if ours.resume is None else ours.resume,
        terms=_terms(now.terms, ours, asked.instructions, profile),
    )


def info(
    settings: Settings, profile: Profile, session: str, resume_token: str | None, window: int | None = None
) -> wire.SessionInfo:
    """The session as clients are shown it; `window` is the one that the engine told of."""
    terms = profile.on(settings.terms)
    listening = wire.AudioInput(
        format=wire.AudioFormat(rate=settings.rate),
        turn_detection=settings.detection.shown,
        transcription=settings.transcription,
    )
    sound = wire.AudioOutput(format=wire.AudioFormat(rate=SPEAKING_RATE)) if profile.model.speaks else None
    return wire.SessionInfo(
        id=session,
        model=profile.name,
        audio=wire.AudioSettings(input=listening, output=sound),
        output_modalities=["audio" if settings.aloud else "text"],
        instructions=terms.model.header,
        max_output_tokens=settings.most_tokens or "inf",
        metronome=wire.MetronomeInfo(
            frame_s=profile.beat.frame_s,
            ticks=settings.ticks,
            policy=terms.window.policy,
            window=terms.window.window if window is None else window,
            sinks=terms.window.sinks,
            positions=terms.window.positions,
            resume_token=resume_token,
            grace_s=profile.server.grace_s if resume_token else None,
        ),
    )


def check_in_time(before: Settings, after: Settings) -> None:
    """InputError when other terms are asked for; a session keeps those that it began on."""
    if after.terms != before.terms:
        other = after.terms.instructions != before.terms.instructions
        field_name = "session.instructions" if other else "session.metronome"
        cure = "a session keeps what it began with: ask before the first audio, text or reply"
        raise InputError("session_started", field_name, "changed", cure)


def unmet(error: ProfileError, terms: Terms) -> InputError:
    """What the profile has against a session's terms, in the words of the one who asked for them."""
    section, _, name = error.field.partition(".")
    if section == "session":
        return InputError("invalid_value", error.field, error.value, error.cure)
    sent = terms.model_dump(exclude_none=True)
    if section == "window" and name in sent:
        return InputError("invalid_value", f"session.metronome.{name}", error.value, error.cure)
    # It was something of the profile's own that does not go with what was asked for.
    name = next((name for name in _BLAMED if name in sent), "window")
    where = f"session.{name}" if name == "instructions" else f"session.metronome.{name}"
    return InputError("invalid_value", where, sent.get(name), f"it does not fit: {error}")


def reply_settings(asked: wire.ResponseSettings | None, now: Settings, profile: Profile) -> tuple[int, bool]:
    """Most tokens of the reply that a `response.create` asks for, and whether it is to be sound.

    InputError for what it cannot have.
    """
    if asked is None:
        return now.most_tokens, now.aloud
    aloud = _aloud(asked.output_modalities, "response", profile)
    _check_tools(asked.tools, "response")
    for name in ("instructions", "input"):
        if getattr(asked, name):
            cure = "a single reply cannot have its own; set it for the session, or say it in the conversation"
            raise InputError("unsupported_parameter", f"response.{name}", "given", cure)
    if asked.conversation not in (None, "auto"):
        raise InputError(
            "unsupported_parameter",
            "response.conversation",
            asked.conversation,
            'leave it out, or use "auto"',
        )
    _check_metadata(asked.metadata or {})
    most = now.most_tokens
    if asked.max_output_tokens is not None:
        most = _tokens(asked.max_output_tokens, "response.max_output_tokens")
    return most, now.aloud if aloud is None else aloud


def typed(event: wire.ItemCreate, last_item: str | None) -> str:
    """The text of a typed message; InputError for any other kind of item, or any place but the end."""
    item = event.item
    if item.type != "message":
        raise InputError("unsupported_item", "item.type", item.type[:60], 'use "message"')
    if item.role != "user":
        raise InputError(
            "unsupported_item", "item.role", item.role[:60], 'use "user"; set instructions for the session'
        )
    if item.id is not None and not 1 <= len(item.id) <= LONGEST_ID:
        raise InputError("invalid_value", "item.id", item.id[:60], f"use 1 to {LONGEST_ID} characters")
    if event.previous_item_id not in (None, last_item):
        cure = "items can only be added at the end: leave it out"
        raise InputError("unsupported_parameter", "previous_item_id", event.previous_item_id, cure)
    for number, part in enumerate(item.content):
        if part.type != "input_text":
            field_name = f"item.content[{number}].type"
            raise InputError("unsupported_content", field_name, part.type[:60], 'use "input_text"')
    return "\n".join(part.text or "" for part in item.content)


def _check_metadata(asked: dict[str, str]) -> None:
    too_long = any(len(key) > LONGEST_KEY or len(value) > LONGEST_VALUE for key, value in asked.items())
    if len(asked) > MOST_METADATA or too_long:
        limits = f"use at most {MOST_METADATA} keys of {LONGEST_KEY} characters and values of {LONGEST_VALUE}"
        raise InputError("invalid_value", "response.metadata", f"{len(asked)} pairs", limits)


def _aloud(asked: list[str] | None, where: str, profile: Profile) -> bool | None:
    """Whether sound is asked for; None where nothing is. InputError for what the model does not give."""
    known = [["audio"], ["text"]] if profile.model.speaks else [["text"]]
    if asked not in (None, *known):
        field_name, cure = f"{where}.output_modalities", " or ".join(map(json.dumps, known))
        raise InputError("unsupported_modality", field_name, str(asked)[:60], f"use {cure}")
    return None if asked is None else asked == ["audio"]


def _check_output(asked: wire.AudioFormat | None) -> None:
    if asked is not None and (asked.type != wire.PCM or asked.rate not in (None, SPEAKING_RATE)):
        cure = f'use {{"type": "{wire.PCM}", "rate": {SPEAKING_RATE}}}, or leave it out'
        shown = f"{asked.type[:60]} at {asked.rate}"
        raise InputError("unsupported_format", "session.audio.output.format", shown, cure)


def _check_tools(asked: list[Any] | None, where: str) -> None:
    if asked:
        cure = "this model calls no tools: leave them out"
        raise InputError("unsupported_parameter", f"{where}.tools", f"{len(asked)} tools", cure)


def _tokens(asked: int | str, where: str) -> int:
    if asked == "inf":
        return 0
    if not isinstance(asked, int) or not 1 <= asked <= 2**31:
        raise InputError("invalid_value", where, asked, 'use 1 or more tokens, or "inf"')
    return asked


def _rate(asked: wire.AudioFormat | None) -> int | None:
    if asked is None:
        return None
    if asked.type != wire.PCM:
        raise InputError("unsupported_format", f"{_INPUT}.format.type", asked.type[:60], f'use "{wire.PCM}"')
    if asked.rate is not None and asked.rate not in wire.RATES:
        rates = ", ".join(map(str, wire.RATES))
        raise InputError("unsupported_rate", f"{_INPUT}.format.rate", asked.rate, f"use one of {rates}")
    return asked.rate or wire.RATES[0]


def _set(
    now: wire.Transcription | None, asked: wire.Transcription | msgspec.UnsetType | None
) -> wire.Transcription | None:
    return now if isinstance(asked, msgspec.UnsetType) else asked


def _asked_detection(now: Detection, asked: wire.TurnDetection | msgspec.UnsetType | None) -> Detection:
    if isinstance(asked, msgspec.UnsetType):
        return now
    return Detection(None) if asked is None else _detection(asked)


def _detection(asked: wire.TurnDetection) -> Detection:
    """`asked` with OpenAI's defaults filled in."""
    if asked.type not in (SERVER_VAD, FULL_DUPLEX):
        cure = f'use "{SERVER_VAD}", "{FULL_DUPLEX}", or null to commit by yourself'
        raise InputError("unsupported_turn_detection", f"{_INPUT}.turn_detection.type", asked.type[:60], cure)
    duplex = asked.type == FULL_DUPLEX
    numbers = {
        name: value
        for name in ("threshold", "prefix_padding_ms", "silence_duration_ms")
        if (value := getattr(asked, name)) is not None
    }
    turns = TurnSettings(**numbers)
    create = asked.create_response is not False and not duplex
    interrupt = bool(asked.interrupt_response) if duplex else asked.interrupt_response is not False
    if duplex:
        shown = wire.TurnDetection(type=FULL_DUPLEX, interrupt_response=interrupt)
    else:
        shown = wire.TurnDetection(
            threshold=turns.threshold,
            prefix_padding_ms=turns.prefix_padding_ms,
            silence_duration_ms=turns.silence_duration_ms,
            create_response=create,
            interrupt_response=interrupt,
        )
    # A duplex session needs the net only to be interrupted; it costs a hundredth of a core per call.
    listens = not duplex or interrupt
    return Detection(shown, duplex, turns if listens else None, create, interrupt)


def _terms(now: Terms, ours: wire.MetronomeSettings, instructions: str | None, profile: Profile) -> Terms:
    """The terms asked for; those of the profile count where it gives less."""
    asked = {
        name: value
        for name in ("policy", "window", "sinks", "positions")
        if (value := getattr(ours, name)) is not None
    }
    if instructions is not None:
        if len(instructions) > MOST_INSTRUCTIONS:
            size = f"{len(instructions)} characters"
            raise InputError(
                "invalid_value", "session.instructions", size, f"use {MOST_INSTRUCTIONS} or fewer"
            )
        asked["instructions"] = instructions
    if not asked:
        return now
    try:
        terms = Terms.model_validate({**now.model_dump(exclude_none=True), **asked})
        profile.session_policy(terms, 0, 0)  # the headers' lengths are the model's to know
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        raise InputError(
            "invalid_value", f"session.metronome.{name}", problem["input"], problem["msg"]
        ) from None
    except ProfileError as error:
        raise unmet(error, terms) from None
    return terms
