"""Generated pages are those that the code would write now, and no page names what is not there."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from metronome_cli.cli import docs
from metronome_cli.cli.main import app
from metronome_cli.kinds import KINDS
from metronome_cli.profile import Profile, parse_profile, profile_names
from metronome_cli.server.restarts import SERVED_S, STEADY_S
from metronome_cli.server.silence import Silence


def test_generated_pages_are_fresh() -> None:
    assert docs.stale(docs.FOLDER) == [], "run `make docs`"


def test_a_missing_and_a_changed_page_are_called_stale(tmp_path: Path) -> None:
    for name, text in docs.pages().items():
        (tmp_path / name).write_text(text, "utf-8")
    assert docs.stale(tmp_path) == []
    (tmp_path / "cli.md").write_text(docs.pages()["cli.md"] + "one line more\n", "utf-8")
    (tmp_path / "trace.schema.json").unlink()
    assert docs.stale(tmp_path) == ["cli.md", "trace.schema.json"]


def test_the_command_page_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    page = docs.pages()["cli.md"]
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert docs.pages()["cli.md"] == page
    assert "\x1b" not in page


ROOT = docs.FOLDER.parent
WRITTEN = sorted({*ROOT.glob("*.md"), *docs.FOLDER.glob("*.md"), *ROOT.glob("evals/**/*.md")})
pages = pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))


@pages
def test_a_link_to_a_file_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:|#)([^)#]+)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pages
def test_a_command_or_make_target_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    commands = typer.main.get_command(app).commands.keys()  # type: ignore[attr-defined]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:`|^    )metronome ([a-z]+)", text, re.MULTILINE)) <= commands
    assert set(re.findall(r"(?:`|^    )make ([a-z-]+)", text, re.MULTILINE)) <= set(targets)


def examples() -> list[str]:
    """Every line of a --help that begins with `metronome` and is indented as an example."""
    return re.findall(r"^ {4}(metronome .+)$", docs.pages()["cli.md"], re.MULTILINE)


@pytest.mark.parametrize("line", examples())
def test_an_example_in_a_help_page_can_be_parsed(line: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(line, comments=True)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


def test_every_command_has_an_example() -> None:
    leaves = re.findall(
        r"^Usage: (metronome [a-z ]*[a-z]) (?!.*COMMAND)", docs.pages()["cli.md"], re.MULTILINE
    )
    assert leaves
    assert [leaf for leaf in leaves if not any(line.startswith(leaf) for line in examples())] == []


def told(page: str) -> str:
    return " ".join((docs.FOLDER / page).read_text("utf-8").split())


@pytest.mark.parametrize("page", ["profiles.md", "protocol.md", "metrics.md", "adding-a-model.md"])
def test_from_when_on_a_silent_engine_is_told_is_one_rule_in_the_same_words(page: str) -> None:
    rule = "10 s (half of `server.hang_s` where that is less) and two frames without a beat"
    assert rule in told(page)
    for hang_s, least_s in ((60.0, 10.0), (8.0, 4.0)):
        section = {"server": {"hang_s": hang_s}, "beat": {"frame_s": 1.5}, "model": {"kind": "null"}}
        assert Silence(parse_profile("null", section)).busy_s == least_s + 2 * 1.5


@pytest.mark.parametrize("page", ["profiles.md", "protocol.md", "adding-a-model.md"])
def test_how_long_a_load_may_give_no_sign_is_one_rule_in_the_same_words(page: str) -> None:
    assert "three times as long as the longest load that came up took" in told(page)
    silence = Silence(parse_profile("null", {"model": {"kind": "null"}}))
    silence.load(0.0)
    silence.begin(1.0)
    silence.load(0.0)
    while not silence.is_hung:
        silence.look(silence.mute_s + 0.25)
    assert silence.mute_s == silence.hang_s + 3 * 1.0 + 0.25


@pytest.mark.parametrize("page", ["profiles.md", "protocol.md"])
def test_how_often_an_engine_is_started_again_is_one_rule_in_the_same_words(page: str) -> None:
    useful = f"served calls for {SERVED_S:g} s (frames that they got) or been ready for {STEADY_S:g} s"
    rule = f"times in a row that an engine is started again that ended before it had {useful}"
    assert f"{rule}; one that did either always is, but for 0" in told(page)
    assert "tells its callers and ends with exit code 1" in told(page)


def test_the_page_on_profiles_has_every_field_its_default_and_every_kind() -> None:
    page = (docs.FOLDER / "profiles.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+\.\w+)` \| (?:`(.*?)`|not set) \|", page, re.MULTILINE)
    fields = {
        f"{name}.{field}": "" if value is None else json.dumps(value)
        for name, section in Profile(name="x").model_dump().items()
        if isinstance(section, dict)
        for field, value in section.items()
    }
    assert rows == list(fields.items())
    assert all(f"\n| `{kind}` |" in page for kind in KINDS)
    assert all(f"`{name}`" in page for name in profile_names())
