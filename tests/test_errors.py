"""Every error names what is wrong and carries the exit code that the design gives it."""

from __future__ import annotations

import pytest

from metronome_cli.errors import (
    NOTHING,
    AssetError,
    FieldError,
    InputError,
    MetronomeError,
    NotMeasured,
    ProfileError,
    TargetUnreachable,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (MetronomeError, 1),
        (FieldError, 2),
        (ProfileError, 2),
        (InputError, 2),
        (AssetError, 2),
        (NotMeasured, 3),
        (TargetUnreachable, 4),
    ],
)
def test_an_error_has_the_exit_code_of_the_design(kind: type[MetronomeError], code: int) -> None:
    assert issubclass(kind, MetronomeError)
    assert kind.exit_code == code


def test_a_field_error_names_field_value_and_cure() -> None:
    error = ProfileError("pool.blocks", 3, "use 37 or more")
    assert str(error) == "pool.blocks = 3: use 37 or more"
    assert (error.field, error.value, error.cure) == ("pool.blocks", 3, "use 37 or more")


def test_a_megabyte_from_a_caller_makes_no_megabyte_of_message() -> None:
    error = InputError("bad_audio", "audio", "A" * 1_000_000, "send base64")
    assert len(str(error)) < 200
    assert "1000002 characters" in str(error)
    assert error.code == "bad_audio"


def test_a_field_without_a_value_is_told_apart_from_one_that_holds_null() -> None:
    assert str(FieldError("audio", NOTHING, "add it")) == "audio: add it"
    assert str(FieldError("audio", None, "give a recording")) == "audio = None: give a recording"
