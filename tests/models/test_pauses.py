"""Speech and pauses by frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from metronome_cli.models.pauses import LONGEST_S, Pauses

RATE = 16_000


def noise(seconds: float, level: float = 0.1) -> NDArray[np.float32]:
    samples = np.random.default_rng(0).standard_normal(round(seconds * RATE))
    return (samples * level).astype(np.float32)


def quiet(seconds: float) -> NDArray[np.float32]:
    return np.zeros(round(seconds * RATE), np.float32)


def test_an_utterance_is_over_after_a_pause_however_frames_cut_it() -> None:
    for frame in (0.1, 0.4, 1.0, 2.0):
        audio = np.concatenate((quiet(1.0), noise(1.3), quiet(0.4), noise(0.5), quiet(2.0)))
        pauses, size, over = Pauses(), round(frame * RATE), []
        for at in range(0, len(audio), size):
            if pauses.take(audio[at : at + size])[1]:
                over.append((at + size) / RATE)
        assert len(over) == 1
        assert 3.8 - 1e-6 <= over[0] <= 3.8 + frame + 0.1, "0.6 s after the last sound, at the end of a frame"


def test_a_click_is_no_speech_and_begins_no_utterance() -> None:
    audio = quiet(1.0)
    audio[8000:8400] = 0.5
    assert Pauses().take(audio) == (False, False)
    assert Pauses().take(quiet(0.0)) == (False, False)


def test_who_never_pauses_is_cut() -> None:
    pauses = Pauses()
    over = [pauses.take(noise(1.0))[1] for _ in range(round(2 * LONGEST_S))]
    assert [second for second, is_over in enumerate(over, start=1) if is_over] == [LONGEST_S, 2 * LONGEST_S]


def test_steady_noise_becomes_the_floor() -> None:
    pauses = Pauses()
    spoke = [pauses.take(noise(1.0, level=0.004))[0] for _ in range(20)]
    assert spoke[0]
    assert not any(spoke[-8:])
