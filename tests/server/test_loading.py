"""The bar of a model that loads."""

from __future__ import annotations

import io

from metronome_cli.clock import VirtualClock
from metronome_cli.server.loading import Bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_moves_a_few_times_a_second_and_leaves_nothing() -> None:
    screen, clock = Terminal(), VirtualClock()
    bar = Bar(screen, clock)
    for part in range(1, 11):
        bar.show(part * 1_000_000_000, 10_000_000_000)
        clock.advance(0.11)
    lines = screen.getvalue().split("\r")[1:]
    assert lines[0] == "reading weights [#########.....................]  30% of 10.0 GB"
    assert [line[-14:-11] for line in lines[:-2]] == ["30%", "50%", "70%", "90%"]
    assert (lines[-2].strip(), lines[-1]) == ("", "")
    assert len(lines[-2]) == len(lines[0])


def test_nothing_is_drawn_where_nobody_watches() -> None:
    stream = io.StringIO()
    Bar(stream, VirtualClock()).show(1, 2)
    assert stream.getvalue() == ""
