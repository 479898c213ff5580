"""`metronome profile`: which set-ups there are, what one holds, and whether it can work.

Knows:   how a profile looks in a terminal and as JSON.
Ignores: what the fields mean; profile.py checks them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ProfileError
from ..kinds import is_own, kind_of
from ..memory import in_bytes
from .changes import Changes, load_changed, takes_changes
from .console import print_table

if TYPE_CHECKING:
    from ..profile import Profile
    from .room import Room

app = typer.Typer(no_args_is_help=True, help="List, show and check set-ups.")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
AsToml = Annotated[bool, typer.Option("--toml", help="Print its file as it stands, to begin one's own with.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Tell how many sessions so much memory beside the weights holds."),
]
NameOrPath = Annotated[
    str, typer.Argument(metavar="NAME", help="A built-in profile, or a path ending in .toml.")
]


@app.command(name="list")
def list_profiles(as_json: AsJson = False) -> None:
    """List the built-in profiles.

    \b
    Examples:
      metronome profile list
      metronome profile list --json
    """
    from ..profile import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if as_json:
        typer.echo(json.dumps([{"name": profile.name, "about": profile.about} for profile in profiles]))
    else:
        print_table(("profile", "about"), [(profile.name, profile.about) for profile in profiles])


@app.command()
@takes_changes
def show(
    name: NameOrPath,
    *,
    memory: Memory = None,
    as_toml: AsToml = False,
    as_json: AsJson = False,
    changes: Changes,
) -> None:
    """Show every value of a profile, what its model is, what its calls take of a memory, and what is refused.

    No weights are needed: a checkpoint that is not here yet is known by its name. With the options of `serve`
    it shows what that would serve.

    \b
    Examples:
      metronome profile show laptop
      metronome profile show moshi --memory 80GiB
      metronome profile show moshi --model ./moshi-weights --device cpu --blocks 1000
      metronome profile show ./mine.toml --json
      metronome profile show moshi --toml
    """
    from .room import bytes_of, room_of, session_blocks

    profile = load_changed(name, changes)
    if as_toml:
        typer.echo(_file(name, as_json, changes), nl=False)
        return
    size, room = None if memory is None else bytes_of(memory), room_of(profile)
    if as_json:
        told = room.told(size) if room else None
        more = {"session_blocks": session_blocks(profile), "room": told, "refuses": list(_refuses(profile))}
        more["unused"] = list(kind_of(profile.model.kind).unused)
        typer.echo(json.dumps(profile.model_dump() | more))
        return
    print_table(("field", "value"), list(_rows(profile)))
    if room:
        print_table(("memory", ""), list(_memory(room, size)))
    for line in _refuses(profile):
        typer.echo(f"refused {line}")
    typer.echo(f"{kind_of(profile.model.kind).about} {_room(profile)}")


@app.command()
@takes_changes
def check(name: NameOrPath, *, as_json: AsJson = False, changes: Changes) -> None:
    """Check a profile: exit code 0 when it can work, 2 with the reason when it cannot.

    Weights are looked for and not loaded; those that have not been fetched yet are named. All else that
    `serve`, with the same options, would refuse at its start is refused here, but for address and port: a
    device that is not there, half a checkpoint, more blocks or calls than memory holds. What a hub id names
    is looked at once it is here.

    \b
    Examples:
      metronome profile check laptop
      metronome profile check ./mine.toml --json
      metronome profile check moshi --model ./moshi-weights --device cpu --blocks 1000 --max-sessions 4
    """
    from ..models.factory import check as check_model
    from ..models.factory import lacking, weights_of

    profile = load_changed(name, changes, thorough=True)
    missing = [said for field, name in weights_of(profile).items() if (said := lacking(field, name))]
    check_model(profile)
    if as_json:
        problem = pool_problem(profile)
        warning = problem and dict(zip(("found", "costs", "mend"), problem, strict=True))
        typer.echo(json.dumps({"name": profile.name, "missing": missing, "warning": warning}))
        return
    typer.echo(f"{profile.name}: in order. {kind_of(profile.model.kind).about} {_room(profile)}")
    for said in missing:
        typer.echo(f"note: {said}", err=True)
    warn_of_pool(profile)


def warn_of_pool(profile: Profile) -> None:
    """A line on standard error where fewer calls are held than let in."""
    if problem := pool_problem(profile):
        typer.echo("warning: {}: {}; use {}".format(*problem), err=True)


def pool_problem(profile: Profile) -> tuple[str, str, str] | None:
    """(found, costs, mend) where the pool cannot promise blocks to as many calls as the profile lets in."""
    from ..profile import MOST_BLOCKS
    from .room import session_blocks

    calls, bound = profile.admission.max_sessions, session_blocks(profile)
    blocks = profile.pool.blocks
    if bound is None or blocks == "free" or bound * calls <= blocks:
        return None
    room = blocks // bound
    held = f"{room} {'call' if room == 1 else 'calls'}"
    found = f"{blocks} blocks are {held} of {bound}, and admission.max_sessions is {calls}"
    more = f"pool.blocks = {bound * calls} or more, " if bound * calls <= MOST_BLOCKS else ""
    mend = f"{more}a smaller window, or admission.max_sessions = {room}"
    return found, f"calls beyond {room} are refused as pool_full", mend


def _memory(room: Room, memory: int | None) -> Iterator[tuple[str, str]]:
    """What `room` says, a line each."""
    yield "KV cache per token", f"{in_bytes(room.token_bytes)} ({room.token_bytes} bytes)"
    if room.session_blocks is None or room.session_bytes is None:
        yield "a session", "has no bound"
    else:
        share = "" if room.pool_share is None else f", {100 * room.pool_share:.1f} % of the pool"
        size = in_bytes(room.session_bytes)
        yield "a session, at most", f"{room.session_blocks} blocks, {size}{share}"
    if room.beside_bytes:
        yield "and beside the pool", in_bytes(room.beside_bytes)
    if room.pool_bytes is not None:
        held = "" if room.pool_sessions is None else f": {room.pool_sessions} sessions"
        yield "the pool", f"{room.pool_blocks} blocks, {in_bytes(room.pool_bytes)}{held}"
    if memory is not None:
        sessions = room.sessions_in(memory)
        held = "no bound, no count" if sessions is None else f"{sessions} sessions"
        yield in_bytes(memory), f"beside the weights: {held}"


def _refuses(profile: Profile) -> Iterator[str]:
    """What is refused on this profile, and where, a sentence each."""
    model, kind, most = profile.model, kind_of(profile.model.kind), _most(profile)
    if kind.weights:
        yield "at the start: a checkpoint of another architecture, quantised, with keys missing or too many"
    if kind.rate:
        yield f"at the start: model.rate other than {kind.rate}"
    if positions := math.ceil(round(kind.per_s * profile.beat.frame_s, 6)):
        yield f"at the start: a window below the {positions + profile.beat.tau} tokens of one frame"
    yield from (f"at the start: {what}" for what in kind.refuses)
    yield f"of a caller: audio at any rate but 24, 16 and 8 kHz; it is resampled to {model.rate / 1000:g} kHz"
    modalities = "text alone, or audio with a transcript" if model.speaks else "text alone"
    yield f"of a caller: output_modalities other than {modalities}"
    if most is not None:
        yield f"of a caller: a window, sinks or instructions of more than {most}"
    yield f"of a caller: more than {profile.server.max_pending_s:g} s of audio waiting for a tick"


def _file(name: str, as_json: bool, changes: Changes) -> str:
    """The profile's own text. ProfileError when something else is asked for besides."""
    from ..profile import profile_text

    if as_json or changes:
        also = "--json" if as_json else f"an option that changes {next(iter(changes))}"
        raise ProfileError("--toml", True, f"it prints the file as it stands: leave out {also}")
    return profile_text(name)


def _rows(profile: Profile) -> Iterator[tuple[str, str]]:
    """All fields, and of each that means nothing to the profile's kind of model that this is so."""
    kind = profile.model.kind
    for field, value in _values(profile.model_dump()):
        yield field, f"{value} (not used by {kind})" if field in kind_of(kind).unused else value


def _values(section: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """("section.field", value as TOML writes it) for all fields, nested sections laid flat."""
    rows: list[tuple[str, str]] = []
    for key, value in section.items():
        if isinstance(value, dict):
            rows += _values(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, "not set" if value is None else json.dumps(value, ensure_ascii=False)))
    return rows


def _room(profile: Profile) -> str:
    """How many blocks one session can hold, in words."""
    most, blocks = _most(profile), profile.pool.blocks
    total = "what the GPU has left" if blocks == "free" else str(blocks)
    if most is None:
        return f"One session has no bound; the pool has {total}{'' if blocks == 'free' else ' blocks'}."
    return f"One session needs at most {most}; the pool has {total}."


def _most(profile: Profile) -> str | None:
    """The blocks that one session can hold, in words; a header's tokens are guessed from its words."""
    from .room import session_blocks

    bound, window = session_blocks(profile), profile.window
    if bound is None or window.policy != "window" or window.sinks != "header":
        return None if bound is None else f"{bound} blocks"
    return f"{bound} blocks and its header" if is_own(profile.model.kind) else f"about {bound} blocks"
