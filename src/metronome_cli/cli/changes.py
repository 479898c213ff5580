"""What is changed of a profile on the command line: the options of `serve`, and of all that tells beforehand.

Knows:   each option, the field that it changes, and how a command gets all of them at once.
Ignores: what the fields mean (profile.py), and what a command does with the profile.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..profile import Profile

Changes = dict[str, Any]  # "section.field" to what was typed, as `load_profile` takes it

Name = Annotated[str, typer.Option(help="A built-in profile, or a path ending in .toml.")]

_Text, _Number = str | None, int | None

# By option: the field of a profile, and what is typed.
_OPTIONS: dict[str, tuple[str, Any]] = {
    "model": (
        "model.thinker",
        Annotated[
            _Text, typer.Option(help="In place of model.thinker: an asset, a local folder or a hub id.")
        ],
    ),
    "host": ("server.host", Annotated[_Text, typer.Option(help="Address to listen on.")]),
    "port": ("server.port", Annotated[_Number, typer.Option(help="Port to listen on; 0 for any free one.")]),
    "gateways": (
        "server.gateways",
        Annotated[_Number, typer.Option(help="Processes that share the port, for many calls.")],
    ),
    "policy": (
        "window.policy",
        Annotated[_Text, typer.Option(help="Retention: window, unbounded or recycle.")],
    ),
    "window": ("window.window", Annotated[_Text, typer.Option(help='W in tokens, or in seconds as "20 s".')]),
    "sinks": ("window.sinks", Annotated[_Text, typer.Option(help='S in tokens, or "header".')]),
    "positions": ("window.positions", Annotated[_Text, typer.Option(help="anchored or absolute.")]),
    "blocks": (
        "pool.blocks",
        Annotated[_Text, typer.Option(help='Blocks in the KV pool; "free": all the GPU has.')],
    ),
    "device": ("run.device", Annotated[_Text, typer.Option(help="Where the model computes: cpu or cuda.")]),
    "admit": (
        "admission.admit",
        Annotated[_Text, typer.Option(help="What caps live calls: fixed, aimd, gradient or forecast.")],
    ),
    "max_sessions": (
        "admission.max_sessions",
        Annotated[_Number, typer.Option(help="Most calls at a time, whatever caps them.")],
    ),
    "seed": ("run.seed", Annotated[_Number, typer.Option(help="Seed of all sampling.")]),
}
_COUNTS = ("window", "sinks", "blocks")  # typed as words, or as numbers


def takes_changes(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with all of these options in the place of its parameter `changes`: what was typed of them."""
    signature = inspect.signature(command, eval_str=True)
    parameters = list(_with_options(signature))

    @wraps(command)
    def run(**typed: Any) -> None:
        asked = {name: typed.pop(name) for name in _OPTIONS}
        asked |= {name: _number(asked[name]) for name in _COUNTS}
        command(
            **typed, changes={_OPTIONS[name][0]: value for name, value in asked.items() if value is not None}
        )

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def load_changed(profile: str, changes: Changes, thorough: bool = False) -> Profile:
    """The profile of that name or path with the changes. ProfileError as of `load_profile`.

    What was typed and means nothing to its kind of model is told on standard error; where one is `thorough`,
    what its file sets in vain is, too.
    """
    from ..profile import load_profile

    loaded = load_profile(profile, changes)
    for field in _set_in_vain(loaded):
        if thorough or field in changes:
            typer.echo(
                f"note: {field} is set, and a model of kind {loaded.model.kind} does not use it", err=True
            )
    return loaded


def _set_in_vain(profile: Profile) -> Iterator[str]:
    from ..kinds import kind_of

    for field in kind_of(profile.model.kind).unused:
        section, _, name = field.partition(".")
        values = getattr(profile, section)
        if name in values.model_fields_set and getattr(values, name):
            yield field


def _with_options(signature: inspect.Signature) -> Iterator[inspect.Parameter]:
    for parameter in signature.parameters.values():
        if parameter.name != "changes":
            yield parameter
            continue
        for name, (_, annotation) in _OPTIONS.items():
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _number(text: str | None) -> int | str | None:
    """A count as a number; anything else as it stands, for the profile to judge."""
    return int(text) if text and text.isdecimal() and len(text) < 20 else text
