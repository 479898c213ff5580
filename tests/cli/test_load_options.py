"""What options of `metronome load` take."""

from __future__ import annotations

import pytest
import typer

from metronome_cli.cli.load_options import patience


@pytest.mark.parametrize(("text", "found"), [("0s", 0.0), ("90s", 90.0), ("24h", 86_400.0)])
def test_one_may_wait_for_a_day(text: str, found: float) -> None:
    assert patience(text) == found


@pytest.mark.parametrize("text", ["-1s", "25h", "999999h"])
def test_nobody_waits_longer_or_less_than_not_at_all(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="use"):
        patience(text)
