from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from metronome_cli.cli.live import Board, watching
from metronome_cli.profile import parse_profile
from metronome_cli.server.messages import Beat
from metronome_cli.server.metrics import Metrics
from metronome_cli.trace import TickRecord

PROFILE = """
[model]
kind = "null"
mode = "free"
[beat]
frame_s = 0.1
[admission]
max_sessions = 1
"""
PATIENCE_S = 20.0


# ---- The board ----


def metrics() -> Metrics:
    return Metrics(parse_profile("tested", {"model": {"kind": "null"}, "pool": {"blocks": 100}}))


def beat(number: int, took: float = 0.5, first: float = 0.4, last: float = 0.6) -> Beat:
    """A tick of two calls, every two seconds."""
    due = 2.0 * number
    tick = TickRecord(
        tick=number, due=due, start=due + 0.004, done=due + 0.004 + took, sessions=2,
        kv_leased=25, kv_reserved=60, kv_total=100, cap=5,
    )  # fmt: skip
    return Beat(
        tick, speaking=2, sessions=2, room=None, mute=1, fell_mute=0, firsts=[first] * 2, lasts=[last] * 2
    )


def drawn(board: Board, width: int = 120) -> str:
    console = Console(file=StringIO(), record=True, width=width, force_terminal=True)
    console.print(board)
    return console.export_text()


def test_before_the_first_beat_it_waits() -> None:
    assert drawn(Board(metrics())) == "waiting for the first beat\n"


@pytest.mark.parametrize("state", ["restarting", "engine_busy", "engine_dead"])
def test_a_server_that_lets_nobody_in_shows_no_free_room_but_why(state: str) -> None:
    counts = metrics()
    counts.beat(beat(7))
    shown = drawn(Board(counts, lambda: state), width=80)
    assert "2 live, 0 free" in shown
    assert f"{state}, 1 mute" in shown


def test_a_glance_holds_the_beat_the_pool_the_calls_and_what_fell_short() -> None:
    counts = metrics()
    counts.opened, counts.detached = 2, 1
    counts.refused.update({"max_sessions": 4, "pool_full": 1})
    counts.beat(beat(7))
    shown = drawn(Board(counts))
    assert "0.500 of 2 s, 4.0 ms late, beat 7" in shown
    assert "25 of 100 blocks, 60 promised" in shown
    assert "2 live, 3 free" in shown
    assert "1 mute, 1 detached" in shown
    assert re.search(r"refused +5 calls +4 max_sessions, 1 pool_full", shown)
    assert "0 empty, 0 stalled, 0 beats skipped" in shown


def test_the_bar_says_by_its_colour_how_near_the_budget_a_tick_came() -> None:
    colours = []
    for took in (0.2, 1.7, 2.0, 5.0):
        counts = metrics()
        counts.beat(beat(0, took=took))
        output = StringIO()
        Console(file=output, width=120, force_terminal=True, color_system="standard").print(Board(counts))
        colours.append(set(re.findall(r"\x1b\[(3[1-3])m", output.getvalue().splitlines()[0])))
    assert colours == [{"32"}, {"33"}, {"31"}, {"31"}]  # green, yellow, red


def test_freshness_is_that_of_the_last_minute() -> None:
    counts = metrics()
    board = Board(counts)
    counts.beat(beat(0))
    drawn(board)
    for number in range(1, 20):
        counts.beat(beat(number, first=7.0, last=8.0))
        drawn(board)
    for number in range(20, 60):
        counts.beat(beat(number, first=0.4, last=0.6))
        shown = drawn(board)
    cuts = re.search(r"first ([\d.]+) / ([\d.]+) s, last ([\d.]+) / ([\d.]+) s", shown)
    assert cuts
    assert all(float(cut) < 0.7 for cut in cuts.groups())
    assert "p50 / max, a minute" in shown  # there is no p99 of so few frames


def busy() -> Metrics:
    """A server of many calls and many refusals, late in its life."""
    counts = metrics()
    counts.opened, counts.detached = 1234, 123
    counts.refused.update({"max_sessions": 12345, "ramp": 1234})
    late = beat(123_456, took=12.345, first=12.345, last=23.456)
    late.tick.start = late.tick.due + 12.3456
    late.tick.kv_leased, late.tick.kv_reserved, late.tick.kv_total = 12_345, 23_456, 34_567
    counts.beat(late)
    return counts


def test_80_columns_hold_all_of_it_in_a_line_each() -> None:
    wide, narrow = (drawn(Board(busy()), width=width).splitlines() for width in (200, 80))
    assert [line.split() for line in narrow] == [line.split() for line in wide]
    assert len(narrow) == 6


@pytest.mark.parametrize("width", [40, 60])
def test_it_is_made_for_a_narrow_terminal_too(width: int) -> None:
    shown = drawn(Board(busy()), width=width).splitlines()
    assert len(shown) == 6  # cut off rather than moved up and down
    assert max(map(len, shown)) <= width


# ---- A terminal ----


class Screen:
    """As much of a terminal as is needed to know what is left on it."""

    def __init__(self) -> None:
        self.lines = [""]
        self._row = self._column = 0
        self.cursor_shown = True

    def write(self, text: str) -> None:
        for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", text):
            if part.startswith("\x1b"):
                self._control(part)
            elif part == "\r":
                self._column = 0
            elif part == "\n":
                self._row += 1
                self._column = 0
                self.lines += [""] * (self._row + 1 - len(self.lines))
            else:
                line = self.lines[self._row].ljust(self._column)
                self.lines[self._row] = line[: self._column] + part + line[self._column + len(part) :]
                self._column += len(part)

    def _control(self, sequence: str) -> None:
        if sequence in ("\x1b[?25l", "\x1b[?25h"):
            self.cursor_shown = sequence.endswith("h")
        elif sequence == "\x1b[2K":
            self.lines[self._row] = ""
        elif up := re.fullmatch(r"\x1b\[(\d*)A", sequence):
            self._row -= int(up[1] or 1)
        else:
            assert sequence.endswith("m"), sequence

    @property
    def left(self) -> list[str]:
        return [line.rstrip() for line in self.lines if line.strip()]


class Terminal:
    """`metronome serve` with a terminal as its standard error."""

    def __init__(self, folder: Path, *options: str) -> None:
        profile = folder / "null.toml"
        profile.write_text(PROFILE)
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "metronome_cli", "serve", "--profile", str(profile), "--port", "0"]
        self.process = subprocess.Popen(
            [*command, "--no-record", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            text=True,
        )
        os.close(theirs)
        self.said = ""

    def until(self, pattern: str) -> re.Match[str]:
        while not (found := re.search(pattern, self.said)):
            assert self._read(), self.said
        return found

    def end(self) -> tuple[int, str, Screen]:
        """Exit code, standard output, and what is left on the screen."""
        self.process.send_signal(signal.SIGINT)
        while self._read():
            pass
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        screen = Screen()
        screen.write(self.said)
        return self.process.returncode, out, screen

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._ours)

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], PATIENCE_S)[0]:
            return False
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # the last process that held the other end is gone
            return False
        self.said += data.decode()
        return bool(data)


@contextmanager
def terminal(folder: Path, *options: str) -> Iterator[Terminal]:
    running = Terminal(folder, *options)
    try:
        yield running
    finally:
        running.close()


def test_the_beat_is_shown_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        address = shell.until(r"ready at (ws://\S+),")[1]
        shell.until(r"beat \d+")
        with connect(address, proxy=None), pytest.raises(InvalidStatus), connect(address, proxy=None):
            pass
        shell.until("1 max_sessions")
        code, out, screen = shell.end()
    assert code == 0
    assert screen.cursor_shown
    loading, ready = screen.left
    assert re.fullmatch(r"metronome: starting \w+, whose model has no weights \.\.\.", loading)
    assert address in ready
    assert re.search(r"calls refused\W+1 max_sessions", out)
    assert re.search(r"beats kept / skipped", out)


def test_what_the_engine_says_meanwhile_stays_above_the_board(tmp_path: Path) -> None:
    with terminal(tmp_path) as shell:
        shell.until(r"beat \d+")
        children = Path(f"/proc/{shell.process.pid}/task/{shell.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        shell.until("engine process ended with signal SIGKILL")
        _, _, screen = shell.end()
    assert sum("signal SIGKILL" in line for line in screen.left) == 1
    assert not any("promised" in line for line in screen.left)


def test_without_the_live_view_a_terminal_gets_lines_only(tmp_path: Path) -> None:
    with terminal(tmp_path, "--no-live", "--json") as shell:
        shell.until("is ready at")
        code, out, screen = shell.end()
    assert code == 0
    assert "\x1b" not in shell.said
    assert len(screen.left) == 2
    assert json.loads(out)["url"].startswith("http://127.0.0.1:")


LEFT_BEHIND = """
import subprocess
from metronome_cli.cli.live import watching
with watching(True):
    left = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
print(left.pid, flush=True)
"""


def test_a_process_that_does_not_end_holds_up_nobody() -> None:
    """It still holds the pipe that stood in for standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", LEFT_BEHIND]
    env = {**os.environ, "TERM": "xterm"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=theirs, env=env, text=True, check=True, timeout=PATIENCE_S
    )
    os.kill(int(done.stdout), signal.SIGKILL)
    os.close(theirs)
    os.close(ours)


def test_where_nobody_watches_nothing_is_touched(capfd: pytest.CaptureFixture[str]) -> None:
    with watching(True):
        os.write(2, b"as it was\n")
    with watching(False):
        os.write(2, b"as it was\n")
    assert capfd.readouterr().err == "as it was\n" * 2
