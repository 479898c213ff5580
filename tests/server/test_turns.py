"""Where a caller's speech starts and stops, on real recordings."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from metronome_cli.errors import InputError
from metronome_cli.models.assets import locate
from metronome_cli.server.turns import (
    CHUNK,
    DEFAULTS,
    LONGEST_MS,
    Started,
    Stopped,
    TurnDetector,
    TurnSettings,
)
from metronome_cli.speech import RATE, Clip, at_rate, read_clips

Audio = NDArray[np.float32]
QUESTIONS = read_clips(locate("questions"))
CHUNK_MS = 32


def silence(seconds: float) -> Audio:
    return np.zeros(round(seconds * RATE), np.float32)


def noise(seconds: float, level_db: float) -> Audio:
    random = np.random.default_rng(0)
    return (random.normal(size=round(seconds * RATE)) * 10 ** (level_db / 20)).astype(np.float32)


def spoken(clips: Sequence[Clip], gap_s: float = 1.5) -> tuple[Audio, list[tuple[float, float]]]:
    """The clips with silence around each, and where each lies in milliseconds."""
    parts, places, at = [silence(1)], [], 1.0
    for clip in clips:
        parts += [clip.samples, silence(gap_s)]
        places.append((1000 * at, 1000 * (at + clip.seconds)))
        at += clip.seconds + gap_s
    return np.concatenate(parts), places


def starts(events: Sequence[Started | Stopped]) -> list[int]:
    return [event.at_ms for event in events if isinstance(event, Started)]


def stops(events: Sequence[Started | Stopped]) -> list[int]:
    return [event.at_ms for event in events if isinstance(event, Stopped)]


SHORT, PLACES = spoken(QUESTIONS[:2], gap_s=0.8)
WHOLE = TurnDetector().take(SHORT)


@pytest.mark.parametrize("noise_db", [None, -50, -35])
def test_every_question_is_one_turn_and_its_place_is_right(noise_db: int | None) -> None:
    audio, places = spoken(QUESTIONS[:8])
    if noise_db is not None:
        audio = audio + noise(len(audio) / RATE, noise_db)
    events = TurnDetector().take(audio)
    assert [type(event) for event in events] == [Started, Stopped] * len(places)
    # The recordings begin and end with up to 0.3 s of breath; padding and silence are those of the defaults.
    for (begin, end), started, stopped in zip(places, starts(events), stops(events), strict=True):
        assert begin - 300 - CHUNK_MS <= started <= begin - 100
        assert end + 500 - 300 <= stopped <= end + 500 + CHUNK_MS


@pytest.mark.parametrize("size", [480, 1920, 10_007])
def test_a_model_of_another_rate_gets_the_same_turns(size: int) -> None:
    audio, detector = at_rate(SHORT, 24_000), TurnDetector(rate=24_000)
    pieces = np.split(audio, range(size, len(audio), size))
    events = [event for piece in pieces for event in detector.take(piece)]
    assert [type(event) for event in events] == [type(event) for event in WHOLE]
    for event, expected in zip(events, WHOLE, strict=True):
        assert event.at_ms == pytest.approx(expected.at_ms, abs=2 * CHUNK_MS)


def test_what_passes_unheard_counts_at_its_own_rate() -> None:
    detector = TurnDetector(None, rate=24_000)
    for _ in range(3000):
        detector.take(np.zeros(101, np.float32))  # no whole number of samples at 16 kHz
    detector.settings = DEFAULTS
    detector.take(at_rate(SHORT, 24_000)[:1000])
    detector.reset()
    first = detector.take(at_rate(SHORT, 24_000))[0]
    assert first.at_ms == pytest.approx(WHOLE[0].at_ms + (3000 * 101 + 1000) / 24, abs=2 * CHUNK_MS)


@pytest.mark.assets("speech", "librivox")
@pytest.mark.parametrize("asset", ["speech", "librivox"])
def test_every_recording_of_other_speakers_is_heard_from_its_start(asset: str) -> None:
    for clip in read_clips(locate(asset)):
        events = TurnDetector().take(np.concatenate([clip.samples, silence(1)]))
        assert [type(event) for event in events] == [Started, Stopped] * (len(events) // 2)
        assert events, clip.name
        assert events[0].at_ms < 1000


@given(st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=20))
@settings(max_examples=12, deadline=None)
def test_the_size_of_the_packets_does_not_matter(sizes: list[int]) -> None:
    detector, at, found = TurnDetector(), 0, []
    while at < len(SHORT):
        for size in sizes:
            found += detector.take(SHORT[at : at + size])
            at += size
    assert found == WHOLE


def test_nothing_is_found_in_no_audio_and_in_less_than_a_chunk() -> None:
    detector = TurnDetector()
    assert detector.take(silence(0)) == []
    assert detector.take(SHORT[: CHUNK - 1]) == []


@pytest.mark.parametrize(
    "audio",
    [
        noise(5, -20),
        (0.3 * np.sin(np.arange(5 * RATE) * 2 * np.pi * 440 / RATE)).astype(np.float32),
        (0.9 * (np.arange(5 * RATE) % 8000 == 0)).astype(np.float32),
    ],
    ids=["noise", "tone", "clicks"],
)
def test_what_is_no_speech_starts_no_turn(audio: Audio) -> None:
    assert TurnDetector().take(audio) == []


def test_speech_is_known_to_go_on_until_it_stops() -> None:
    detector = TurnDetector()
    (begin, end), _ = PLACES
    middle = int((begin + end) / 2 * 16)
    detector.take(SHORT[:middle])
    assert detector.speaking
    detector.take(SHORT[middle : int((end + 700) * 16)])
    assert not detector.speaking


def test_padding_reaches_back_to_the_start_of_the_session_and_no_further() -> None:
    padded = TurnDetector(TurnSettings(prefix_padding_ms=5000))
    assert starts(padded.take(SHORT))[0] == 0
    bare = TurnDetector(TurnSettings(prefix_padding_ms=0))
    assert starts(bare.take(SHORT))[0] == WHOLE[0].at_ms + 300


def test_padding_reaches_back_to_the_end_of_the_last_turn_and_no_further() -> None:
    events = TurnDetector(TurnSettings(prefix_padding_ms=5000)).take(SHORT)
    assert starts(events)[1] == stops(events)[0]


def test_a_longer_silence_is_waited_for_and_is_part_of_the_end() -> None:
    """The pause between the questions is then too short to end anything."""
    events = TurnDetector(TurnSettings(silence_duration_ms=2000)).take(np.concatenate([SHORT, silence(2)]))
    assert starts(events) == starts(WHOLE)[:1]
    assert stops(events) == [stops(WHOLE)[1] + 1500]


def test_a_higher_threshold_is_met_later_if_at_all() -> None:
    strict = TurnDetector(TurnSettings(threshold=0.95)).take(SHORT)
    assert starts(strict)[0] >= starts(WHOLE)[0]
    assert TurnDetector(TurnSettings(threshold=1.0)).take(SHORT[: 2 * CHUNK]) == []


def test_silence_never_runs_the_net(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("metronome_cli.server.turns._new_net")
    assert TurnDetector().take(np.concatenate([silence(1), noise(1, -65)])) == []


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_the_net_runs_on_our_own_thread_and_leaves_the_environment_as_it_was(tmp_path: Path) -> None:
    np.save(tmp_path / "short.npy", SHORT)
    code = (
        "import os, numpy\n"
        "from metronome_cli.server.turns import TurnDetector\n"
        f"SHORT = numpy.load({str(tmp_path / 'short.npy')!r})\n"
        "before = len(os.listdir('/proc/self/task')), dict(os.environ)\n"
        "assert len(TurnDetector().take(SHORT)) == 4\n"
        "assert (len(os.listdir('/proc/self/task')), dict(os.environ)) == before\n"
    )
    for limit in ({}, {"OMP_THREAD_LIMIT": "7"}):
        env = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")} | limit
        subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


MANY_CALLERS = """
import numpy as np
from pathlib import Path
from metronome_cli.server.turns import CHUNK, DEFAULTS, TurnDetector

sound = np.random.default_rng(0).normal(0, 0.1, CHUNK).astype(np.float32)

def call():
    detector = TurnDetector()
    detector.take(sound)
    return detector

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

sizes = []
for _ in range(6):
    calls = [call() for _ in range(80)]
    sizes.append(resident())
    for detector in calls:
        detector.close()
    sizes.append(resident())
print(sizes[0], sizes[-2], sizes[-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have habits of their own")
def test_callers_who_come_and_go_take_no_more_memory_and_give_it_back() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_CALLERS], capture_output=True, text=True, check=True, timeout=60
    )
    full, later, after = (int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20 for pages in done.stdout.split())
    assert later < full + 10
    assert after < full - 80


def test_after_long_silence_a_detector_hears_as_a_new_one_does() -> None:
    question = np.concatenate([silence(0.32), QUESTIONS[2].samples, silence(1)])
    past = np.concatenate([SHORT, silence(2)])
    past = past[: len(past) // CHUNK * CHUNK]
    used = TurnDetector()
    used.take(past)
    later = [event.at_ms - len(past) // 16 for event in used.take(question)]
    assert later == [event.at_ms for event in TurnDetector().take(question)]


def test_cleared_audio_counts_as_time_and_is_never_part_of_a_turn() -> None:
    detector = TurnDetector(TurnSettings(prefix_padding_ms=5000))
    detector.take(SHORT[:10_000])
    detector.reset()
    first = detector.take(SHORT[10_000:])[0]
    assert first == Started(10_000 // 16)


def test_speech_that_is_cleared_in_its_middle_starts_again() -> None:
    detector = TurnDetector()
    middle = int(sum(PLACES[0]) / 2 * 16)
    assert [type(event) for event in detector.take(SHORT[:middle])] == [Started]
    detector.reset()
    assert not detector.speaking
    events = detector.take(SHORT[middle:])
    assert isinstance(events[0], Started)
    assert middle // 16 <= events[0].at_ms <= middle // 16 + 200
    assert stops(events) == pytest.approx(stops(WHOLE), abs=CHUNK_MS)


def test_audio_that_nobody_listens_to_counts_as_time_and_is_never_part_of_a_turn() -> None:
    """Turned off in the middle of the first question, and on again before the second."""
    off, on = int(sum(PLACES[0]) / 2 * 16), int(PLACES[0][1] * 16)
    detector = TurnDetector()
    detector.take(SHORT[:off])
    detector.settings = None
    assert detector.take(SHORT[off:on]) == []
    assert not detector.speaking
    detector.settings = TurnSettings(prefix_padding_ms=5000)
    started, stopped = detector.take(SHORT[on:])
    assert started == Started(on // 16)
    assert stopped.at_ms == pytest.approx(WHOLE[3].at_ms, abs=CHUNK_MS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threshold", -0.1),
        ("threshold", 1.5),
        ("threshold", float("nan")),
        ("prefix_padding_ms", -1),
        ("silence_duration_ms", LONGEST_MS + 1),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"turn_detection\.{name} = ") as caught:
        TurnSettings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.code == "invalid_value"


def test_the_net_of_an_ended_call_serves_the_next_one_and_remembers_nothing() -> None:
    question, _ = spoken(QUESTIONS[:1])
    alone = TurnDetector().take(question)
    first = TurnDetector()
    first.take(question[: len(question) // 2])
    net = first._net
    first.close()
    second = TurnDetector()
    assert second.take(question) == alone
    assert second._net is net
    assert first.take(question) == []
