"""Where a buffer holds sound that could be speech."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.models.speech_gate import HOP, QUIETEST_FLOOR, next_floor, voiced

SECOND = 16_000


def noise(seconds: float, level_db: float, seed: int = 0) -> NDArray[np.float32]:
    """White noise at `level_db` of full scale."""
    random = np.random.default_rng(seed)
    return (random.normal(size=round(seconds * SECOND)) * 10 ** (level_db / 20)).astype(np.float32)


def floor_after(audio: NDArray[np.float32]) -> float:
    """The noise floor once frames of 2 s have been followed."""
    floor = QUIETEST_FLOOR
    for start in range(0, len(audio), 2 * SECOND):
        floor = next_floor(floor, audio[start : start + 2 * SECOND])
    return floor


def test_sound_over_the_noise_is_voiced_and_the_noise_is_not() -> None:
    audio = np.concatenate([noise(1, -60), noise(0.5, -25), noise(1, -60)])
    found = np.flatnonzero(voiced(audio, floor_after(noise(4, -60))))
    assert (found[0], found[-1]) == (50, 74)


def test_a_click_is_no_speech() -> None:
    audio = noise(1, -60)
    audio[SECOND // 2 : SECOND // 2 + HOP] = 0.9
    assert not voiced(audio, QUIETEST_FLOOR).any()


@pytest.mark.parametrize("level_db", [-60, -50, -42])
def test_steady_noise_is_taken_for_speech_no_longer_than_ten_seconds(level_db: float) -> None:
    audio = noise(12, level_db)
    assert not voiced(audio[-2 * SECOND :], floor_after(audio)).any()


def test_the_floor_falls_at_once_and_rises_slowly() -> None:
    high = floor_after(noise(12, -45))
    assert next_floor(high, noise(0.2, -60)) < -58
    assert next_floor(-60.0, noise(1, -30)) == pytest.approx(-57, abs=0.1)


def test_gaps_of_digital_silence_do_not_lower_the_floor() -> None:
    high = floor_after(noise(12, -45))
    assert next_floor(high, np.zeros(SECOND, np.float32)) == high


def test_no_audio_has_no_hops() -> None:
    nothing = np.zeros(0, np.float32)
    assert len(voiced(nothing, QUIETEST_FLOOR)) == 0
    assert next_floor(-50.0, nothing) == -50.0
    assert len(voiced(np.zeros(HOP - 1, np.float32), QUIETEST_FLOOR)) == 0
