"""Which tokens belong to which frame, and when that frame was due."""

from __future__ import annotations

from typing import Any

import pytest

from metronome_cli.load.frames import CallFrames


def test_tokens_belong_to_the_frame_that_the_next_tick_event_closes(told: Any) -> None:
    frames = CallFrames(session=4, start=100.0)
    frames.token(102.5, "good ")
    frames.token(102.7, "day")
    first = frames.close(told.tick(0))
    frames.token(104.6, ".")
    second = frames.close(told.tick(1))
    assert (first.first, first.last, first.tokens_out, first.said) == (102.5, 102.7, 2, "good day")
    assert (second.first, second.last, second.tokens_out, second.said) == (104.6, 104.6, 1, ".")
    assert (first.session, second.session) == (4, 4)


def test_tokens_of_a_frame_before_ticks_were_told_make_no_later_one_look_fresher(told: Any) -> None:
    frames = CallFrames(session=4, start=100.0)
    for at, text in ((100.1, "I "), (100.2, "hear "), (102.5, "you "), (102.7, "now ")):
        frames.token(at, text)
    first = frames.close(told.tick(1, tokens_out=2))
    assert (first.first, first.last, first.tokens_out, first.said) == (102.5, 102.7, 2, "you now ")
    silent = frames.close(told.tick(2, tokens_out=0))
    assert (silent.first, silent.said) == (None, "")


def test_a_frame_is_due_when_its_last_sample_was_due_on_the_callers_own_clock(told: Any) -> None:
    frames = CallFrames(session=0, start=100.0)
    # The server's clock reads 7000: no figure of the caller's may hang on it.
    record = frames.close(told.tick(0, audio_end_ms=1980.0, due=7000.0, done=7000.5))
    assert record.due == pytest.approx(101.98)
    assert record.age_s == pytest.approx(1.98)


def test_a_frame_without_a_token_is_empty_only_when_it_was_to_speak(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    assert frames.close(told.tick(0)).empty
    assert not frames.close(told.tick(1, speaking=False)).empty


def test_a_token_whose_text_is_still_empty_counts_as_fresh(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    frames.token(2.4, "")
    record = frames.close(told.tick(0))
    assert (record.first, record.tokens_out, record.empty) == (2.4, 1, False)


def test_a_frame_whose_one_token_ends_the_reply_is_not_empty(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    frames.token(2.1, "Bye.")
    frames.close(told.tick(0))
    frames.ended(4.2)
    record = frames.close(told.tick(1))
    assert (record.first, record.tokens_out, record.said, record.empty) == (4.2, 1, "", False)


def test_the_end_of_a_reply_that_was_cut_off_is_no_token(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    frames.ended(2.1)
    frames.token(2.4, "New ")
    assert frames.close(told.tick(0, tokens_out=1)).first == 2.4
    frames.ended(4.1)
    assert frames.close(told.tick(1, tokens_out=0)).empty
    frames.token(6.2, "words")
    frames.ended(6.3)
    record = frames.close(told.tick(2))
    assert (record.first, record.last) == (6.2, 6.2)


def test_a_stalled_frame_says_so_and_takes_no_earlier_token(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    frames.token(2.4, "a")
    frames.close(told.tick(0))
    record = frames.close(told.tick(1, stalled=True, kv_blocks=9))
    assert (record.stalled, record.first, record.said, record.blocks) == (True, None, "", 9)


def test_a_packet_is_due_when_its_last_sample_is_there() -> None:
    frames = CallFrames(session=0, start=50.0)
    assert [frames.due(packet) for packet in (0, 1, 49)] == pytest.approx([50.02, 50.04, 51.0])
    assert frames.sent(0, at=50.025) == pytest.approx(50.02)
    assert list(frames.lags) == pytest.approx([0.005])


@pytest.mark.parametrize(("end_ms", "lag"), [(20.0, 0.1), (40.0, 0.2), (50.0, 0.3), (60.0, 0.3), (0.0, 0.0)])
def test_a_frames_lag_is_that_of_the_packet_with_its_last_sample(
    told: Any, end_ms: float, lag: float
) -> None:
    frames = CallFrames(session=0, start=10.0)
    for packet, late in enumerate((0.1, 0.2, 0.3)):
        frames.sent(packet, frames.due(packet) + late)
    assert frames.close(told.tick(0, audio_end_ms=end_ms)).lag == pytest.approx(lag)


def test_due_times_stay_exact_after_an_hour(told: Any) -> None:
    frames = CallFrames(session=0, start=0.0)
    assert frames.due(180_000 - 1) == pytest.approx(3600.0, abs=1e-9)
    assert frames.close(told.tick(1799)).due == pytest.approx(3600.0, abs=1e-9)
