"""Speech: files become clips, clips become an endless stream of exact 20 ms packets."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from metronome_cli.errors import FieldError
from metronome_cli.speech import PACKET_SAMPLES, RATE, Clip, Stream, read_clips


def tone(seconds: float, rate: int = RATE) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * 220 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def clips(*seconds: float) -> list[Clip]:
    """Clips whose samples all hold one level, different for each: a packet tells which clip it is from."""
    return [
        Clip(f"{number}.wav", np.full(int(s * RATE), 0.1 * (number + 1), np.float32), f"text {number}")
        for number, s in enumerate(seconds)
    ]


def play(stream: Stream, packets: int) -> np.ndarray:
    return np.frombuffer(b"".join(stream.packet() for _ in range(packets)), "<i2")


def test_files_of_any_rate_and_channels_become_16_khz_mono(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.stack([tone(1.0, 48_000)] * 2, axis=1), 48_000)
    soundfile.write(tmp_path / "b.flac", tone(0.5, 8_000), 8_000)
    soundfile.write(tmp_path / "c.wav", tone(0.25), RATE)
    found = read_clips(tmp_path)
    assert [clip.name for clip in found] == ["a.wav", "b.flac", "c.wav"]
    assert [round(clip.seconds, 2) for clip in found] == [1.0, 0.5, 0.25]
    assert all(clip.samples.ndim == 1 and clip.samples.dtype == np.float32 for clip in found)
    # The tone is still the tone: its loudest frequency is 220 Hz.
    assert abs(np.argmax(np.abs(np.fft.rfft(found[0].samples))) - 220) <= 1


def test_the_script_says_what_is_spoken(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav", "c.wav"):
        soundfile.write(tmp_path / name, tone(0.1), RATE)
    (tmp_path / "script.json").write_text(json.dumps({"a.wav": "good morning", "b.wav": None}))
    assert [clip.text for clip in read_clips(tmp_path)] == ["good morning", None, None]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rubbish.wav", b"this is no sound"),
        ("script.json", b"{not json"),
        ("script.json", b'["a list"]'),
        ("script.json", b'{"a.wav": 3}'),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    soundfile.write(tmp_path / "a.wav", tone(0.1), RATE)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FieldError, match=name):
        read_clips(tmp_path)


@pytest.mark.parametrize("samples", [tone(0.01), np.zeros(0, np.float32), np.full(1000, np.nan, np.float32)])
def test_a_recording_without_usable_sound_is_named(tmp_path: Path, samples: np.ndarray) -> None:
    soundfile.write(tmp_path / "odd.wav", samples, RATE, subtype="FLOAT")
    with pytest.raises(FieldError, match=r"odd\.wav"):
        read_clips(tmp_path)


def test_a_folder_without_speech_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=str(tmp_path)):
        read_clips(tmp_path)
    with pytest.raises(FieldError, match="nowhere"):
        read_clips(tmp_path / "nowhere")


def test_every_packet_is_exactly_20_ms_of_pcm16() -> None:
    stream = Stream(clips(0.05, 0.333, 1.0), seed=1)
    assert {len(stream.packet()) for _ in range(500)} == {2 * PACKET_SAMPLES}
    assert stream.sent == 500 * PACKET_SAMPLES


def test_samples_beyond_full_scale_are_clipped_and_never_wrap() -> None:
    loud = Clip("loud.wav", np.full(RATE, 1.5, np.float32))
    heard = play(Stream([loud], seed=0), 10)
    assert set(heard.tolist()) - {0} == {32767}  # zeros are the gaps


@given(seed=st.integers(0, 2**32), caller=st.integers(0, 500))
def test_a_stream_is_its_clips_and_gaps_in_the_order_it_says(seed: int, caller: int) -> None:
    stream = Stream(clips(0.3, 0.5, 0.7), seed, caller)
    heard = play(stream, 300)
    for passage in stream.passages:
        level = 0.0 if passage.clip is None else 0.1 * (int(passage.clip[0]) + 1)
        assert np.all(heard[passage.start : passage.stop] == int(level * 32767))
        if passage.clip is None:
            assert 0.2 * RATE - 1 <= passage.stop - passage.start <= RATE
    assert [p.clip is None for p in stream.passages[1:]] == [
        number % 2 == 0 for number in range(len(stream.passages) - 1)
    ]


def test_all_clips_are_played_before_one_comes_again() -> None:
    stream = Stream(clips(0.2, 0.2, 0.2, 0.2), seed=5)
    play(stream, 1000)
    names = [passage.clip for passage in stream.passages if passage.clip]
    rounds = [names[start : start + 4] for start in range(0, len(names) - 3, 4)]
    assert len(rounds) > 2
    assert all(len(set(one)) == 4 for one in rounds)


def test_one_seed_and_caller_always_sound_the_same_and_two_callers_never() -> None:
    def speech(seed: int, caller: int) -> bytes:
        return play(Stream(clips(0.5, 0.6, 0.7), seed, caller), 200).tobytes()

    assert speech(7, 3) == speech(7, 3)
    assert len({speech(7, caller) for caller in range(20)} | {speech(8, 0)}) == 21


def test_a_stream_knows_what_was_playing_when() -> None:
    stream = Stream(clips(0.5, 0.5), seed=0)
    play(stream, 400)
    first, gap, second = stream.passages[:3]
    assert stream.playing(0.0) == first
    assert stream.playing(gap.start / RATE) == gap
    assert stream.playing((second.stop - 1) / RATE) == second
    assert stream.playing(1e9).start < stream.sent  # what was not given out yet was not playing
    assert second.text in ("text 0", "text 1")


def test_a_clip_entered_halfway_has_no_text() -> None:
    stream = Stream(clips(0.5), seed=0)
    play(stream, 100)
    assert stream.passages[0].text is None
    assert stream.passages[2].text == "text 0"


def test_ends_and_share_of_speech_count_only_what_was_given_out() -> None:
    stream = Stream(clips(2.0), seed=3)
    assert stream.speech_ends() == []
    assert stream.speech_share == 0.0
    play(stream, 10)
    entered_late = stream.passages[0].stop < 10 * PACKET_SAMPLES
    assert stream.speech_ends() == ([stream.passages[0].stop / RATE] if entered_late else [])
    play(stream, 990)
    spoken = np.count_nonzero(play(Stream(clips(2.0), seed=3), 1000))
    assert stream.speech_share == pytest.approx(spoken / stream.sent)
    assert 0.6 < stream.speech_share < 0.95


def test_gaps_are_as_long_as_they_are_asked_to_be() -> None:
    stream = Stream([Clip("a", np.full(RATE, 0.5, np.float32))], seed=1, gap_s=(0.3, 0.3))
    while stream.sent < 10 * RATE:
        stream.packet()
    gaps = [passage.stop - passage.start for passage in stream.passages if passage.clip is None]
    assert len(gaps) >= 6
    assert set(gaps) == {int(0.3 * RATE)}
