"""The cut of the design, as tests: who may import whom, who may read a clock, how long a piece may be."""

from __future__ import annotations

import ast
import graphlib
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

import metronome_cli

PACKAGE = Path(metronome_cli.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# Top-level modules are words: the lowest layer. A folder may import words, itself, and what stands here.
MAY_IMPORT: dict[str, set[str]] = {
    "words": set(),
    "engine": set(),
    "models": {"engine"},
    "runtime": set(),
    "server": {"engine", "models", "runtime"},
    "load": {"engine", "models", "runtime"},
    "probes": {"engine", "models", "runtime"},
    "fit": {"engine", "models", "runtime"},
    "reporting": {"engine", "models", "runtime"},
    "cli": {"engine", "models", "runtime", "server", "load", "probes", "fit", "reporting"},
}

WORDS_THAT_ARE_FOLDERS = {"wire"}

# Packages that only these folders may touch.
ONLY_IN: dict[str, set[str]] = {
    "torch": {"engine", "models"},
    "transformers": {"engine", "models"},
    "whisper": {"engine", "models"},
    "gguf": {"models"},
    "huggingface_hub": {"models"},
    "typer": {"cli"},
    "rich": {"cli"},
}

CLOCK_READERS = {
    "datetime.now", "datetime.today", "datetime.utcnow", "date.today",
    "get_running_loop().time", "get_event_loop().time", "loop.time",
}  # fmt: skip


def folder_of(path: Path) -> str:
    """The part of the cut that a module belongs to."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 and parts[0] not in WORDS_THAT_ARE_FOLDERS else "words"


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, those inside functions and type checks included."""
    package = ("metronome_cli", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            module = ".".join(base + ([node.module] if node.module else []))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def folder_imported(name: str) -> str | None:
    """The part of the cut that an import leads to; None when it leads out of the project."""
    parts = name.split(".")
    if parts[0] != "metronome_cli":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "words"


def violations(path: Path) -> Iterator[str]:
    here = folder_of(path)
    allowed = MAY_IMPORT[here] | {"words", here}
    for line, name in imports(path):
        there = folder_imported(name)
        if there is not None and there not in allowed:
            yield f"{name_of(path)}:{line} imports {name}: {here} must not know {there}"
        outside = name.split(".")[0]
        if outside in ONLY_IN and here not in ONLY_IN[outside]:
            yield f"{name_of(path)}:{line} imports {outside}: only {sorted(ONLY_IN[outside])} may"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_up_the_page_only(path: Path) -> None:
    # The two files that start the command line stand outside of the cut.
    if path.name != "__main__.py":
        assert list(violations(path)) == []


def test_the_walk_sees_an_import_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    module = tmp_path / "runtime" / "beat.py"
    module.parent.mkdir()
    module.write_text(
        "from __future__ import annotations\nimport torch.nn\n"
        "from ..server.app import serve\nfrom .. import cli\n"
        "from metronome_cli.load import runner\nfrom ..clock import Clock\nfrom . import ticker\n"
        "def f():\n    from typer import echo\n"
    )
    found = [violation.split(": ")[0] for violation in violations(module)]
    assert [line.split(" imports ")[1] for line in found] == [
        "torch", "metronome_cli.server.app.serve", "metronome_cli.cli", "metronome_cli.load.runner", "typer",
    ]  # fmt: skip


def test_every_folder_has_its_place_in_the_cut() -> None:
    assert {folder_of(path) for path in MODULES} <= MAY_IMPORT.keys()


def clock_readings(path: Path) -> Iterator[str]:
    for line, name in imports(path):
        if name.split(".")[0] == "time":
            yield f"{name_of(path)}:{line} imports {name}"
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(tuple(CLOCK_READERS)):
            yield f"{name_of(path)}:{node.lineno} calls {ast.unparse(node.func)}"


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path) != "clock.py"], ids=name_of)
def test_only_clock_py_reads_a_clock(path: Path) -> None:
    assert list(clock_readings(path)) == []


def test_clock_py_would_be_caught_reading_a_clock() -> None:
    assert list(clock_readings(PACKAGE / "clock.py"))


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name not in ("__init__.py", "__main__.py")], ids=name_of
)
def test_a_module_opens_with_what_it_knows_and_ignores(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    places = [docstring.find(word) for word in ("Knows:", "Ignores:")]
    assert 0 < places[0] < places[1], (
        f"{name_of(path)} must open with a docstring that has Knows: and Ignores:"
    )


def function_lengths(path: Path) -> dict[str, int]:
    return {
        f"{name_of(path)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_no_file_passes_400_lines_and_no_function_60(path: Path) -> None:
    assert path.read_text("utf-8").count("\n") <= 400
    assert {name: length for name, length in function_lengths(path).items() if length > 60} == {}


def test_most_functions_are_far_shorter() -> None:
    lengths = [length for path in MODULES for length in function_lengths(path).values()]
    assert statistics.median(lengths) < 10
    assert statistics.quantiles(lengths, n=10)[-1] < 30


def test_words_do_not_import_each_other_in_a_circle() -> None:
    words = {path.stem: path for path in MODULES if folder_of(path) == "words" and path.stem != "__main__"}

    def below(path: Path) -> set[str]:
        return {name.split(".")[1] for _, name in imports(path) if name.startswith("metronome_cli.")}

    graph = {word: below(path) & words.keys() for word, path in words.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError
