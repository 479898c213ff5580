"""docs/protocol.md names what the code has, all of it and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from openai.types.realtime import RealtimeClientEvent

from metronome_cli import wire
from metronome_cli.profile import Profile
from metronome_cli.server.app import _REASONS

ROOT = Path(__file__).parents[1]
FOLDERS = ("wire", "runtime", "server")  # that speak to callers
SOURCE = "\n".join(
    file.read_text("utf-8")
    for folder in FOLDERS
    for file in sorted((ROOT / "src" / "metronome_cli" / folder).rglob("*.py"))
)
PAGE = (ROOT / "docs" / "protocol.md").read_text("utf-8")
SECTIONS = {part.partition("\n")[0]: part.partition("\n")[2] for part in PAGE.split("\n## ")}
CLIENT = {str(kind.__struct_config__.tag) for kind in get_args(wire.ClientEvent)}
SERVER = {str(kind.__struct_config__.tag) for kind in get_args(wire.ServerEvent)}
EVENT = r"(?:session|input_audio_buffer|conversation|response|metronome|output_audio_buffer)\.[a-z_.]+[a-z]"


def rows(section: str) -> list[list[str]]:
    """The cells of a section's tables, without their heads."""
    lines = re.findall(r"^\| (.*) \|$", SECTIONS[section].replace("|  |", "| |"), re.MULTILINE)
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return [row for row in cells if "`" in "".join(row)]


def names(text: str) -> set[str]:
    """What stands in backticks."""
    return set(re.findall(r"`([^`]+)`", text))


def test_the_client_events_of_the_page_are_those_that_we_take() -> None:
    assert {name for row in rows("What a client says") for name in names(row[0])} == CLIENT


def test_the_client_events_that_it_says_we_refuse_are_openais_and_not_ours() -> None:
    line = SECTIONS["What a client says"].partition("Other client events")[2].partition("are answered")[0]
    listed = {re.sub(r"^\.", "conversation.item.", name) for name in names(line)}
    kinds = get_args(get_args(RealtimeClientEvent)[0])
    assert listed == {kind.model_fields["type"].annotation.__args__[0] for kind in kinds} - CLIENT


def test_every_event_of_the_server_is_in_the_page_and_no_other() -> None:
    found = set(re.findall(EVENT, PAGE)) | names(PAGE)
    assert {name for name in SERVER if name != "error"} <= found
    told = set(re.findall(EVENT, SECTIONS["A call"]))
    fields = {"session.metronome", "session.metronome.frame_s"}
    assert told - CLIENT - SERVER - fields == set()


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("session.update", wire.SessionSettings),
        ("session.update", wire.AudioInput),
        ("Our extension", wire.MetronomeSettings),
        ("Our extension", wire.TickEvent),
        ("Turn detection", wire.TurnDetection),
    ],
)
def test_every_field_that_can_be_set_or_is_told_is_in_the_page(
    section: str, kind: type[msgspec.Struct]
) -> None:
    said = {part for name in names(SECTIONS[section]) for part in re.findall(r"\w+", name)}
    assert set(kind.__struct_fields__) - said - {"event_id"} == set()


def test_the_close_codes_of_the_page_are_ours() -> None:
    table = re.findall(r"^\| (\d{4}) \| (.*?) ?\|", SECTIONS["Refusals and close codes"], re.MULTILINE)
    assert {code.strip("`"): int(number) for number, code in table if code} == wire.CLOSE_CODES
    ours = {
        value for name, value in vars(wire).items() if isinstance(value, int) and name.startswith("CLOSE_")
    }
    assert {int(number) for number, _ in table} == ours


def test_the_reasons_of_a_503_are_those_of_the_page() -> None:
    told = [names(row[1]) for row in rows("Refusals and close codes") if row[0].startswith("503")]
    assert set().union(*told) == set(_REASONS) | {"too_many_opens"}


def test_the_error_codes_of_the_page_are_those_of_the_code() -> None:
    told = {name for row in rows("Error codes") for name in names(row[0])}
    raised = set(re.findall(r'InputError\(\s*"([a-z_]+)"', SOURCE))
    raised.discard("invalid_event")  # what a client decodes
    assert raised <= told
    assert {code for code in told if f'"{code}"' not in SOURCE} == set()


def test_the_limits_of_the_page_are_the_profiles() -> None:
    profile = Profile(name="defaults").model_dump()
    for field, default, _ in rows("Limits"):
        section, _, name = field.strip("`").partition(".")
        assert default == str(profile[section][name]), field
