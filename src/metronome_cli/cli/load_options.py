"""The options of `metronome load`, and how what was typed becomes a plan.

Knows:   names, helps and defaults; which options exclude each other.
Ignores: how a plan is carried out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ProfileError
from ..load.lengths import Length, parse_seconds

if TYPE_CHECKING:
    from ..load.plan import Plan

SESSIONS = 4
KEY_VARIABLE = "METRONOME_API_KEY"


_DAY_S = 86_400.0


def seconds(text: str) -> float:
    """A length of time, for typer."""
    try:
        return parse_seconds(text)
    except ProfileError as error:
        raise typer.BadParameter(f"{text!r} is {error.cure}") from None


def patience(text: str) -> float:
    """A length of time that somebody may wait, for typer: 0 to a day."""
    if not 0.0 <= (found := seconds(text)) <= _DAY_S:
        raise typer.BadParameter(f"{text!r} is out of range: use 0s to 24h")
    return found


def length(text: str) -> Length:
    """A distribution of lengths, for typer."""
    try:
        return Length.parse(text)
    except ProfileError as error:
        raise typer.BadParameter(f"{text!r}: {error.cure}") from None


Url = Annotated[str, typer.Argument(metavar="URL", help="A server: http(s):// or ws(s)://.")]
Sessions = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"Calls kept live, {SESSIONS} when left out; with --find-n the N to begin with."
    ),
]
Offer = Annotated[
    int | None, typer.Option(min=1, help="Calls made in total instead, whatever becomes of the others.")
]
Duration = Annotated[float, typer.Option(parser=seconds, metavar="TIME", help="Length of a run.")]
Spread = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="TIME",
        help="Time in which all join, one by one: one frame of the server when left out, or 2s.",
    ),
]
ArrivalRate = Annotated[
    float | None, typer.Option(metavar="PER_SECOND", help="Calls that join per second, instead of --spread.")
]
Arrivals = Annotated[
    str, typer.Option(help="How --arrival-rate is kept: constant, poisson, or ramp (from 0 up to it).")
]
Redials = Annotated[
    int,
    typer.Option(
        min=0,
        help="Times that a call is dialled again when the server says no: after its Retry-After, twice as "
        "long each time. 0: a refusal is final.",
    ),
]
Wait = Annotated[
    float,
    typer.Option(
        parser=patience,
        metavar="TIME",
        help="How long to wait for a server that is still starting. 0s (dial at once) to 24h.",
    ),
]
CallLength = Annotated[
    Length | None,
    typer.Option(
        parser=length,
        metavar="LENGTH",
        help="How long a call lasts: 60s, exp:60s (mean), lognormal:60s:0.5 (median, sigma) or "
        "uniform:30s:90s. A line whose call is over dials again. To the end of the run when left out.",
    ),
]
CancelRate = Annotated[
    float, typer.Option(metavar="SHARE", help="Replies cancelled within half a second of their first token.")
]
VanishRate = Annotated[
    float, typer.Option(metavar="SHARE", help="Calls whose connection breaks off without goodbye.")
]
Speech = Annotated[
    str,
    typer.Option(
        help="What callers say: a folder of .wav or .flac files, the name of a speech asset, or "
        "dataset:PATH[:CONFIG[:SPLIT]]."
    ),
]
Talk = Annotated[
    float | None,
    typer.Option(
        parser=seconds, metavar="TIME", help="Recut the speech into spurts this long (with --silence)."
    ),
]
Silence = Annotated[
    float | None, typer.Option(parser=seconds, metavar="TIME", help="Silence after each spurt (with --talk).")
]
Protocol = Annotated[
    str,
    typer.Option(
        help="metronome, openai, vllm or moshi; auto goes by the path and the server's first message."
    ),
]
Model = Annotated[str, typer.Option(help="The model to ask for, where a server wants to know (vllm).")]
Replies = Annotated[
    str,
    typer.Option(
        help="What replies are to be: text, audio, or auto, which is our own server's default and text "
        "elsewhere."
    ),
]
KeepSpeech = Annotated[
    int,
    typer.Option(
        min=0, metavar="CALLS", help="Calls whose first minute of spoken replies is kept as WAV in the run."
    ),
]
Listen = Annotated[
    bool,
    typer.Option(
        "--listen", help="Let openai-whisper hear what was kept, and count errors against the transcript."
    ),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(help=f"A file whose first line is the server's API key; or set {KEY_VARIABLE}."),
]
Budget = Annotated[
    float | None,
    typer.Option(
        parser=seconds,
        metavar="TIME",
        help="What freshness may be, at p99: one frame of the server when left out. Of a server without "
        "ticks: what the first token after speech may take.",
    ),
]
FindN = Annotated[
    bool,
    typer.Option("--find-n", help="Search the largest number of calls that holds, fresh calls for each N."),
]
Most = Annotated[int, typer.Option(min=1, help="The largest N that --find-n tries.")]
Resume = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Go on with a --find-n that was ended, in its run folder.")
]
Seed = Annotated[int, typer.Option(min=0, help="Of everything drawn: speech, arrivals, lengths, cancels.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as one JSON document.")]
Out = Annotated[Path, typer.Option(help="Where run folders are made.")]


def plan_of(typed: Mapping[str, Any]) -> Plan:
    """The plan in the options of `metronome load`, by their names. ProfileError names what does not fit."""
    from ..load.plan import Plan

    if typed["sessions"] and typed["offer"]:
        raise ProfileError(
            "offer", typed["offer"], "leave out --sessions: the one keeps lines busy, the other not"
        )
    return Plan(
        typed["url"],
        typed["offer"] or typed["sessions"] or SESSIONS,
        typed["duration"],
        typed["seed"],
        typed["spread"],
        redial=typed["offer"] is None,
        rate_hz=typed["arrival_rate"],
        talk_s=typed["talk"],
        silence_s=typed["silence"],
        budget_s=typed["budget"],
        api_key=_api_key(typed["api_key_file"]),
        **{name: typed[name] for name in _SAME},
    )


_SAME = (
    "arrivals",
    "redials",
    "call_length",
    "cancel_rate",
    "vanish_rate",
    "protocol",
    "model",
    "replies",
    "keep_speech",
)


def _api_key(file: Path | None) -> str:
    if file is None:
        return os.environ.get(KEY_VARIABLE, "")
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError("api-key-file", str(file), f"give a file that can be read ({error})") from None
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ProfileError("api-key-file", str(file), "it holds no key")
    return keys[0]
