"""Tables are as wide as the terminal, and whole where there is none."""

from __future__ import annotations

import pytest

from metronome_cli.cli.console import print_table

ROWS = [("laptop", "word " * 60 + "end"), ("demo", "short")]


def test_in_a_pipe_no_line_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table(("name", "about"), ROWS)
    shown = capsys.readouterr().out.splitlines()
    words = [["name", "about"], *([name, *text.split()] for name, text in ROWS)]
    assert [line.split() for line in shown] == words
    assert all(line == line.rstrip() for line in shown)


def test_columns_says_how_wide_and_names_stay_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_table(("name", "about"), [("a-name-to-be-copied", "x" * 40)], whole=("name",))
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].startswith("a-name-to-be-copied ")
    assert all(len(line) <= 30 for line in shown)
    assert sum(line.count("x") for line in shown) == 40
