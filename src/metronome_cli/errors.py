"""What can go wrong, as one small tree.

Knows:   which exit code belongs to which failure, and how a message is built.
Ignores: who prints it, and which event or HTTP status carries it.

MetronomeError            exit 1   our error
├── FieldError            exit 2   a named field has a value we cannot take
│   ├── ProfileError               ... in a profile or an option
│   └── InputError                 ... in what a caller sent; the call goes on
├── AssetError            exit 2   weights or data are missing or damaged
├── NotMeasured           exit 3   the run went through, but the score could not be taken
└── TargetUnreachable     exit 4   nobody answers at the address
"""

from __future__ import annotations

from typing import Final

NOTHING: Final = object()  # in place of a field's value: it has none, not even null


class MetronomeError(Exception):
    """Root of every error this project raises on purpose; its message is shown as it stands."""

    exit_code = 1


class FieldError(MetronomeError):
    """A value somebody typed or sent: says which field, what it held, and what would do."""

    exit_code = 2

    def __init__(self, field: str, value: object, cure: str) -> None:
        held = "" if value is NOTHING else f" = {_shown(value)}"
        super().__init__(f"{field}{held}: {cure}")
        self.field = field
        self.value = value
        self.cure = cure


class ProfileError(FieldError):
    """A profile or a command-line option is wrong."""


class InputError(FieldError):
    """A caller's event or audio is wrong. `code` is stable and meant for programs."""

    def __init__(self, code: str, field: str, value: object, cure: str) -> None:
        super().__init__(field, value, cure)
        self.code = code


class AssetError(MetronomeError):
    """Weights or data are missing, damaged or cannot be fetched."""

    exit_code = 2


class NotMeasured(MetronomeError):
    """A measurement could not be taken; the message says why and what mends it."""

    exit_code = 3


class TargetUnreachable(MetronomeError):
    """Nobody answers at the address."""

    exit_code = 4


def _shown(value: object) -> str:
    """A value as a message can bear it: what a caller sent may be a megabyte long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"
