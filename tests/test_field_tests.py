"""docs/field-tests.md names tests that exist, and leaves no report out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| (T\d+) \|(.*)\|$", (ROOT / "docs/field-tests.md").read_text("utf-8"), re.MULTILINE)
NAMED = re.compile(r"`(tests/\S+\.py)::(\w+)`")


def names_in(path: Path) -> set[str]:
    """Tests of a file, state machines included."""
    tree = ast.parse(path.read_text("utf-8"))
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    return assigned | {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_report_has_one_row() -> None:
    assert [number for number, _ in ROWS] == [f"T{number}" for number in range(1, 29)]


@pytest.mark.parametrize(("number", "row"), ROWS, ids=[number for number, _ in ROWS])
def test_a_row_names_its_source_and_tests_that_exist_or_says_why_there_is_none(number: str, row: str) -> None:
    source, symptom, behaviour, covered = (cell.strip() for cell in row.split("|"))
    assert "https://" in source, number
    assert symptom, number
    assert behaviour, number
    tests = NAMED.findall(covered)
    assert tests or covered.startswith("Does not concern us: "), number
    missing = [f"{path}::{name}" for path, name in tests if name not in names_in(ROOT / path)]
    assert missing == []
