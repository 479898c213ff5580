"""The beat as it goes on, in the terminal of `metronome serve`.

Knows:   rich, what a glance at a server holds, and how a terminal is kept clean while others write to it.
Ignores: how anything is counted, and who calls.

It is drawn by a thread of its own, so that a terminal that is paused pauses nobody's call.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..server.metrics import Metrics

if TYPE_CHECKING:
    from ..server.link import EngineLink

_EVERY_S = 0.25  # between two drawings, at least: they cost CPU that calls may need,
_LATEST_S = 1.0  # and at most: an engine that is silent or gone tells of no beat
_MINUTE_S = 60.0
_SPARE_S = 1.0  # between two copies of the counts, at least
_BAR = 20  # columns; with the longest name and text a row fits 80
_TIGHT = 0.8  # share of the budget from which on a bar is a warning
_STDERR = 2
_LAST_LINES_S = 1.0  # what an engine that was killed has to say still comes, if at all, in this time

Watch = Callable[["EngineLink"], None]  # show this link's beat from now on


class Board:
    """What is shown, made anew from the counts each time it is drawn."""

    def __init__(self, metrics: Metrics, state: Callable[[], str] = lambda: "ok") -> None:
        self._metrics = metrics
        self._state = state  # why no call is let in, if it is not ok
        # (when, counts of first and of last tokens by then); the oldest is what the last minute began with.
        self._past: deque[tuple[float, dict[int, int], dict[int, int]]] = deque()

    def __rich__(self) -> Table | Text:
        beat = self._metrics.latest
        if beat is None:
            return Text("waiting for the first beat")
        self._remember(beat.tick.done)
        board = Table.grid("", "", "", padding=(0, 2))
        for column in board.columns:  # a row that is two would move the board up and down
            column.no_wrap, column.overflow = True, "ellipsis"
        rows = (self._tick(), self._pool(), self._fresh(), self._calls(), self._refused(), self._frames())
        for name, bar, text in rows:
            board.add_row(Text(name, style="bold"), bar, text)
        return board

    def _tick(self) -> tuple[str, ProgressBar, str]:
        assert self._metrics.latest is not None  # noqa: S101
        tick, frame_s = self._metrics.latest.tick, self._metrics.profile.beat.frame_s
        took = tick.done - tick.start
        late_ms = 1000 * (tick.start - tick.due)
        text = f"{took:.3f} of {frame_s:g} s, {late_ms:.1f} ms late, beat {tick.tick}"
        return "tick", _bar(took / frame_s), text

    def _pool(self) -> tuple[str, ProgressBar, str]:
        assert self._metrics.latest is not None  # noqa: S101
        tick = self._metrics.latest.tick
        text = f"{tick.kv_leased} of {tick.kv_total} blocks, {tick.kv_reserved} promised"
        return "pool", _bar(tick.kv_leased / max(1, tick.kv_total)), text

    def _fresh(self) -> tuple[str, str, str]:
        _, firsts, lasts = self._past[0]
        metrics = self._metrics
        cuts = [metrics.first_s.since(firsts).percentiles(), metrics.last_s.since(lasts).percentiles()]
        end = "p99" if cuts[0] and cuts[0]["p99"] is not None else "max"  # there is no p99 of a few
        first, last = (f"{cut['p50']:.3f} / {cut[end]:.3f} s" if cut else "-" for cut in cuts)
        return "freshness", f"p50 / {end}, a minute", f"first {first}, last {last}"

    def _calls(self) -> tuple[str, str, str]:
        metrics, state = self._metrics, self._state()
        mute = metrics.latest.mute if metrics.latest else 0
        places = f"{metrics.live} live, {metrics.free if state == 'ok' else 0} free"
        why = "" if state == "ok" else f"{state}, "
        return "calls", places, f"{why}{mute} mute, {metrics.whole.detached} detached"

    def _refused(self) -> tuple[str, str, str]:
        refused = self._metrics.whole.refused
        reasons = ", ".join(f"{count} {reason}" for reason, count in refused.items())
        return "refused", f"{sum(refused.values())} calls", reasons or "-"

    def _frames(self) -> tuple[str, str, str]:
        metrics = self._metrics
        lost = f"{metrics.empty} empty, {metrics.stalled} stalled, {metrics.skipped} beats skipped"
        return "frames", f"{metrics.frames} in {metrics.ticks} beats", lost

    def _remember(self, now: float) -> None:
        past = self._past
        if past and now < past[-1][0] + _SPARE_S:
            return
        past.append((now, self._metrics.first_s.fine.copy(), self._metrics.last_s.fine.copy()))
        while len(past) > 1 and past[1][0] <= now - _MINUTE_S:
            past.popleft()


@contextmanager
def watching(wanted: bool) -> Iterator[Watch]:
    """What to call with a link whose beat is to be shown; where nobody would see it, that does nothing.

    Until the block ends, all that anybody writes to standard error, the engine process included, comes out
    above the board. Afterwards the board is gone and standard error is what it was.
    """
    if not wanted or not _is_terminal(sys.stderr):
        yield lambda _: None
        return
    with _own_terminal() as console, Live(console=console, auto_refresh=False, transient=True) as live:
        drawer = _Drawer(live)
        try:
            yield drawer.watch
        finally:
            drawer.stop()


class _Drawer:
    """Draws after each beat, but at most once in `_EVERY_S` and at least once in `_LATEST_S`."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._due = threading.Event()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def watch(self, link: EngineLink) -> None:
        """Show this link's beat from now on."""
        self._live.update(Board(link.metrics, lambda: link.state))
        link.on_beat = lambda _: self._due.set()
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._due.set()
        if self._thread.ident:
            self._thread.join(_LAST_LINES_S)

    def _run(self) -> None:
        while not self._over.is_set():
            self._due.wait(_LATEST_S)
            self._due.clear()
            self._live.refresh()
            self._over.wait(_EVERY_S)


@contextmanager
def _own_terminal() -> Iterator[Console]:
    """A console on the terminal behind standard error, while standard error itself becomes a pipe whose
    lines the console prints. Processes that are started meanwhile write into the pipe too."""
    terminal = os.dup(_STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    with os.fdopen(terminal, "w") as screen:
        console = Console(file=screen, markup=False, highlight=False)
        reader = threading.Thread(target=_pass_on, args=(reading, console), daemon=True)
        reader.start()
        try:
            yield console
        finally:
            sys.stderr.flush()
            # Ends the pipe, unless a process of ours did not end: nobody waits for that one.
            os.dup2(terminal, _STDERR)
            reader.join(_LAST_LINES_S)


def _pass_on(pipe: int, console: Console) -> None:
    with os.fdopen(pipe, errors="replace") as lines, suppress(ValueError):  # the terminal was given back
        for line in lines:
            console.print(Text.from_ansi(line.rstrip("\n")), soft_wrap=True)


def _is_terminal(file: TextIO) -> bool:
    console = Console(file=file)
    return console.is_terminal and not console.is_dumb_terminal


def _bar(share: float) -> ProgressBar:
    style = "green" if share < _TIGHT else "yellow"
    return ProgressBar(1.0, min(1.0, share), width=_BAR, complete_style=style, finished_style="red")
