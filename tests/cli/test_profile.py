"""`metronome profile` answers on standard output, as a table or as one JSON document."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from metronome_cli.cli.main import app
from metronome_cli.errors import ProfileError
from metronome_cli.profile import load_profile, profile_names


def profile(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


def test_the_list_names_every_built_in_profile_and_says_what_it_is_for() -> None:
    shown = profile("list").stdout
    listed = json.loads(profile("list", "--json").stdout)
    assert [row["name"] for row in listed] == profile_names()
    for row in listed:
        assert row["name"] in shown
        assert row["about"].split()[0] in shown


def test_show_gives_every_value_the_defaults_included() -> None:
    shown = profile("show", "laptop").stdout
    rows = dict(re.findall(r"^(\w+\.\w+) +(.*\S)", shown, re.MULTILINE))
    assert rows["beat.frame_s"] == "2.0"
    assert rows["window.sinks"] == '"header"'
    assert rows["server.reaper_s"] == "2.0"
    assert rows["window.carry"] == "not set"
    assert "One session needs at most 39 blocks and its header; the pool has 336." in shown


def test_show_as_json_is_the_profile_and_its_bound() -> None:
    shown = json.loads(profile("show", "laptop", "--json").stdout)
    assert shown.pop("session_blocks") == 39
    assert shown == load_profile("laptop").model_dump()


def test_an_unbounded_profile_is_shown_to_have_no_bound(tmp_path: Path) -> None:
    file = tmp_path / "free.toml"
    file.write_text('[window]\npolicy = "unbounded"\n')
    assert "One session has no bound; the pool has 320 blocks." in profile("show", str(file)).stdout
    assert json.loads(profile("show", str(file), "--json").stdout)["session_blocks"] is None


@pytest.mark.parametrize("name", profile_names())
def test_check_passes_every_built_in_profile(name: str) -> None:
    result = profile("check", name)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{name}: in order.")


def test_check_counts_pinned_sinks_into_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[window]\nsinks = 16\n")
    assert (
        profile("check", str(file)).stdout == "mine: in order. Its ears hear speech, its thinker answers. "
        "One session needs at most 38 blocks; the pool has 320.\n"
    )


def test_check_warns_of_a_pool_that_cannot_hold_every_call(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[pool]\nblocks = 100\n")
    result = profile("check", str(file))
    assert result.exit_code == 0
    assert result.stderr.endswith(
        "warning: 100 blocks are 2 calls of 37, and admission.max_sessions is 8: calls beyond 2 are refused "
        "as pool_full; use pool.blocks = 296 or more, a smaller window, or admission.max_sessions = 2\n"
    )
    assert "warning" not in profile("check", "laptop").stderr


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_null_model_is_said_to_be_one(tmp_path: Path, command: str) -> None:
    file = tmp_path / "beat.toml"
    file.write_text('[model]\nkind = "null"\nthinker = "/nowhere"\n')  # a null model looks for no weights
    result = profile(command, str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    assert "A null model, without weights: it says one fixed sentence" in result.stdout


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('thinker = "{here}/nowhere"', "nothing is there; give a folder with a config.json and safetensors"),
        ('thinker = "{here}/mine.toml"', "give a folder with a config.json"),
        ('thinker = "{here}"', "give a folder with a config.json"),
        ('ears = "whisper-nowhere"', "nothing is there; give a Whisper .pt file"),
        ('ears = "{here}"', "give a Whisper .pt file"),
    ],
)
def test_check_refuses_weights_that_are_not_there(tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f"[model]\n{line.format(here=tmp_path)}\n")
    result = profile("check", str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.exception.field == f"model.{line.split(maxsplit=1)[0]}"
    assert said in result.exception.cure
    assert result.stdout == ""


def test_check_names_weights_that_are_still_to_be_fetched(
    tmp_path: Path, tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRONOME_HOME", str(tmp_path / "empty"))
    result = profile("check", "laptop")
    assert result.exit_code == 0
    assert (
        "note: whisper-tiny.en is missing; `metronome assets fetch whisper-tiny.en` gets it" in result.stderr
    )
    file = tmp_path / "mine.toml"
    file.write_text(f'[model]\nthinker = "{tiny_chat}"\nears = "openai/whisper-tiny.en"\n')
    result = profile("check", str(file))
    assert (result.exit_code, result.stderr.count("note:")) == (0, 1)
    assert "as a hub id it is fetched" in result.stderr


@pytest.mark.parametrize("command", ["check", "show"])
def test_a_profile_that_cannot_work_is_refused(tmp_path: Path, command: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[pool]\nblocks = 3\n")
    result = profile(command, str(file))
    assert isinstance(result.exception, ProfileError)
    assert result.stdout == ""
