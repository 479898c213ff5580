"""What is changed of a profile on the command line is the same for `serve` and all that tells beforehand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from metronome_cli.cli import changes
from metronome_cli.cli.main import app
from metronome_cli.engine import device
from metronome_cli.errors import MetronomeError
from metronome_cli.profile import Profile, load_profile

TYPED = {
    "model": ("/nowhere", "/nowhere"),
    "host": ("127.0.0.2", "127.0.0.2"),
    "port": ("0", 0),
    "gateways": ("2", 2),
    "policy": ("unbounded", "unbounded"),
    "window": ("20 s", "20 s"),
    "sinks": ("3", 3),
    "positions": ("absolute", "absolute"),
    "blocks": ("777", 777),
    "device": ("cuda", "cuda"),
    "admit": ("aimd", "aimd"),
    "max_sessions": ("5", 5),
    "seed": ("9", 9),
}
COMMANDS = (["serve"], ["doctor"], ["profile", "show"], ["profile", "check"])


def metronome(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def options(words: list[str]) -> dict[str, str]:
    """The options of a command, with their help."""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return {parameter.name: getattr(parameter, "help", "") for parameter in command.params}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_every_option_in_the_same_words(command: list[str]) -> None:
    assert TYPED.keys() == changes._OPTIONS.keys()
    found, serve = options(command), options(["serve"])
    assert {name: found[name] for name in TYPED} == {name: serve[name] for name in TYPED}
    assert "changes" not in found


@pytest.mark.parametrize("option", TYPED)
def test_each_option_changes_its_field_and_nothing_else(option: str) -> None:
    typed, value = TYPED[option]
    field, _ = changes._OPTIONS[option]
    shown = json.loads(
        metronome("profile", "show", "laptop", f"--{option.replace('_', '-')}", typed, "--json").stdout
    )
    section, _, name = field.partition(".")
    wanted = load_profile("laptop").model_dump()
    wanted[section][name] = value
    assert {key: shown[key] for key in wanted} == wanted


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Profile]:
    """What `serve` would serve, in place of serving it: the model is built as its engine process does."""
    from metronome_cli.cli import serve
    from metronome_cli.models.factory import build
    from metronome_cli.server import logs

    found: list[Profile] = []

    def run(profile: Profile, *_: object) -> None:
        found.append(profile)
        build(profile)
        raise MetronomeError("it would serve")

    monkeypatch.setattr(serve, "_run", run)
    monkeypatch.setattr(logs, "set_up_logging", lambda _: None)  # of the whole process, which is the tests'
    return found


HALF = ["--model", "{half}", "--device", "cpu", "--blocks", "1000"]
REFUSED = {
    "no folder": ("laptop-text", ["--model", "{here}/nowhere"]),
    "an empty folder": ("laptop-text", ["--model", "{here}"]),
    "no name": ("laptop-text", ["--model", ""]),
    "a file": ("laptop-text", ["--model", "{whole}/config.json"]),
    "half a folder": ("laptop-text", HALF),
    "another architecture": ("moshi", ["--model", "{whole}", "--device", "cpu", "--blocks", "1000"]),
    "no such device": ("laptop-text", ["--model", "{whole}", "--device", "gpu"]),
    "free blocks on a CPU": ("laptop-text", ["--model", "{whole}", "--blocks", "free"]),
    "too many blocks": ("laptop-text", ["--model", "{whole}", "--blocks", "10000000"]),
    "too few blocks": ("laptop-text", ["--model", "{whole}", "--blocks", "3"]),
    "a window of words": ("laptop-text", ["--model", "{whole}", "--window", "long"]),
    "too long a header": ("laptop-text", ["--model", "{whole}", "--window", "8"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_check_and_doctor_say_what_serve_says(
    case: str, tmp_path: Path, tiny_chat: Path, started: list[Profile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_memory", lambda: 2**30)
    half = tmp_path / "half"
    half.mkdir()
    for file in tiny_chat.iterdir():
        if file.suffix != ".safetensors":
            (half / file.name).write_bytes(file.read_bytes())
    profile, words = REFUSED[case]
    words = [word.format(half=half, whole=tiny_chat, here=tmp_path / "half" / "..") for word in words]
    served = metronome("serve", "--profile", profile, *words)
    checked = metronome("profile", "check", profile, *words)
    assert isinstance(served.exception, MetronomeError)
    assert str(served.exception) != "it would serve"
    assert str(checked.exception) == str(served.exception)
    told = metronome("doctor", "--profile", profile, *words, "--json")
    if not isinstance(told.exception, SystemExit):  # the profile itself cannot be read
        assert str(told.exception) == str(served.exception)
        return
    assert told.exit_code == 3
    wrong = [finding for finding in json.loads(told.stdout)["findings"] if not finding["fine"]]
    messages = [f"{finding['found']}: {finding['mend']}" for finding in wrong]
    messages += [finding["found"] for finding in wrong]
    assert str(served.exception) in messages or case == "free blocks on a CPU"


def test_what_serve_would_serve_is_in_order_for_check(tiny_chat: Path, started: list[Profile]) -> None:
    words = ["--model", tiny_chat, "--blocks", "100", "--max-sessions", "2", "--window", "64"]
    assert str(metronome("serve", "--profile", "laptop-text", *words).exception) == "it would serve"
    checked = metronome("profile", "check", "laptop-text", *words)
    assert (checked.exit_code, checked.stderr) == (0, "")
    (served,) = started
    assert (served.model.thinker, served.pool.blocks, served.window.window) == (str(tiny_chat), 100, 64)


@pytest.mark.parametrize(
    "command", [["profile", "show"], ["profile", "check"], ["serve", "--profile"]], ids=" ".join
)
def test_what_is_set_in_vain_is_told(
    tmp_path: Path, tiny_chat: Path, started: list[Profile], command: list[str]
) -> None:
    file = tmp_path / "null.toml"
    file.write_text('[model]\nkind = "null"\nproducts = "bfloat16"\n')
    result = metronome(*command, file, "--model", "mine")
    told = {line.split()[1] for line in result.stderr.splitlines() if line.startswith("note: ")}
    of_the_file = {"model.products"} if "check" in command else set()
    assert told == {"model.thinker"} | of_the_file
    assert "note: model.thinker is set, and a model of kind null does not use it" in result.stderr
    assert "does not use" not in metronome(*command, "laptop-text", "--model", tiny_chat).stderr


def test_a_file_as_it_stands_takes_no_changes() -> None:
    for words, said in (
        (["--blocks", "900"], "an option that changes pool.blocks"),
        (["--json"], "leave out --json"),
    ):
        result = metronome("profile", "show", "laptop", "--toml", *words)
        assert isinstance(result.exception, MetronomeError)
        assert said in str(result.exception)
        assert result.stdout == ""
