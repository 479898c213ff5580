"""The server's beats as put together from several calls' tick events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from metronome_cli.load.frames import CallFrames
from metronome_cli.load.ticks import TickBook
from metronome_cli.trace import FrameRecord, TickRecord

Kept = list[tuple[TickRecord, Sequence[FrameRecord]]]


def told_by_two_calls(told: Any, ticks: Sequence[int], **fields: Any) -> tuple[TickBook, Kept]:
    kept: Kept = []
    book = TickBook(lambda record, frames: kept.append((record, frames)), arm="window")
    calls = [CallFrames(session, start=0.0) for session in (0, 1)]
    for tick in ticks:
        calls[0].token(2.0 * tick + 2.3, "a")  # the second call never speaks
        for call in calls:
            event = told.tick(tick, **fields)
            book.add(event, call.close(event), at=2.0 * tick + 2.6)
    return book, kept


def test_one_beat_becomes_one_record_with_all_calls_in_it(told: Any) -> None:
    book, kept = told_by_two_calls(told, [0])
    book.flush()
    [(record, frames)] = kept
    assert (record.sessions, record.tokens_in, record.tokens_out, record.empty) == (2, 10, 1, 1)
    assert (record.kv_leased, record.kv_total, record.arm) == (10, 40, "window")
    assert [frame.session for frame in frames] == [0, 1]


def test_a_beat_is_handed_over_once_nobody_can_add_to_it_and_none_is_lost(told: Any) -> None:
    book, kept = told_by_two_calls(told, [0, 1, 2])
    assert [record.tick for record, _ in kept] == [0]
    book.flush()
    book.flush()
    assert [record.tick for record, _ in kept] == [0, 1, 2]


def test_times_are_moved_to_the_callers_clock_and_keep_their_length(told: Any) -> None:
    book, kept = told_by_two_calls(told, [0], due=7000.0, done=7000.75)
    book.flush()
    record = kept[0][0]
    assert record.done == pytest.approx(2.6)
    assert record.done - record.due == pytest.approx(0.75)


def test_the_period_is_told_by_due_times_whatever_was_skipped_or_late(told: Any) -> None:
    book, _ = told_by_two_calls(told, [])
    assert book.period_s is None
    calls = CallFrames(0, start=0.0)
    for tick, at in ((3, 10.0), (4, 19.0), (9, 20.0)):
        event = told.tick(tick, due=100 + 0.25 * tick, skipped=4 if tick == 9 else 0)
        book.add(event, calls.close(event), at)
    assert book.period_s == pytest.approx(0.25)


@pytest.mark.parametrize("step_s", [0.0, -0.25])
def test_a_server_whose_clock_stands_still_tells_no_period(told: Any, step_s: float) -> None:
    book, _ = told_by_two_calls(told, [])
    calls = CallFrames(0, start=0.0)
    for tick in (0, 1):
        event = told.tick(tick, due=100 + step_s * tick)
        book.add(event, calls.close(event), at=0.25 * tick)
    assert book.period_s is None


@pytest.mark.parametrize(
    ("calls", "all_are"),
    [((True, True), True), ((True, False), False), ((True, None), None), ((None, True), None)],
)
def test_a_beat_is_of_calls_with_a_bound_where_all_said_so(
    told: Any, calls: tuple[bool | None, ...], all_are: bool | None
) -> None:
    book, kept = told_by_two_calls(told, [])
    for session, bounded in enumerate(calls):
        event = told.tick(0)
        book.add(event, CallFrames(session, start=0.0).close(event), 2.6, bounded)
    book.flush()
    assert kept[0][0].bounded is all_are
