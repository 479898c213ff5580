from __future__ import annotations

import numpy as np
import pytest

from metronome_cli import wire
from metronome_cli.server.intake import Intake
from metronome_cli.speech import RATE


def tone(rate: int, seconds: float = 1.0) -> bytes:
    """440 Hz at half of full scale, as PCM16."""
    time = np.arange(int(rate * seconds)) / rate
    return (np.sin(2 * np.pi * 440 * time) * 16_384).astype("<i2").tobytes()


def take(intake: Intake, pcm: bytes) -> np.ndarray:
    intake.put(pcm)
    return intake.take()


def in_packets(intake: Intake, pcm: bytes) -> np.ndarray:
    """What comes of `pcm` in 20 ms packets."""
    size = intake.rate // 50 * 2
    parts = [take(intake, pcm[start : start + size]) for start in range(0, len(pcm), size)]
    return np.concatenate([*parts, intake.finish()])


@pytest.mark.parametrize("to", [16_000, 24_000])
@pytest.mark.parametrize("rate", wire.RATES)
def test_a_second_of_any_rate_is_a_second_of_the_models(rate: int, to: int) -> None:
    heard = in_packets(Intake(rate, to), tone(rate))
    assert heard.dtype == np.float32
    assert len(heard) == pytest.approx(to, abs=2)
    middle = heard[2_000:14_000]
    expected = np.sin(2 * np.pi * 440 * np.arange(2_000, 14_000) / to) / 2
    assert np.abs(middle - expected).max() < 0.01


@pytest.mark.parametrize("rate", wire.RATES)
def test_how_audio_is_cut_into_packets_does_not_change_what_is_heard(rate: int) -> None:
    pcm = tone(rate)
    whole = Intake(rate, RATE)
    at_once = np.concatenate([take(whole, pcm), whole.finish()])
    np.testing.assert_allclose(in_packets(Intake(rate, RATE), pcm), at_once, atol=1e-6)


def test_nothing_of_an_utterance_is_heard_in_the_next_one() -> None:
    intake = Intake(24_000, RATE)
    loud, silence = tone(24_000), bytes(48_000)
    in_packets(intake, loud)
    assert np.abs(in_packets(intake, silence)).max() == 0


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_full_scale_is_one_and_nothing_changes_at_the_models_own_rate(rate: int) -> None:
    extremes = np.array([-32768, 32767], "<i2").tobytes()
    assert take(Intake(rate, rate), extremes).tolist() == [-1.0, 32767 / 32768]


@pytest.mark.parametrize("rate", wire.RATES)
def test_what_is_held_comes_whole_and_once(rate: int) -> None:
    pcm = tone(rate, 0.1)
    held, whole = Intake(rate, RATE), Intake(rate, RATE)
    for start in range(0, len(pcm), 2 * rate // 50):
        held.put(pcm[start : start + 2 * rate // 50])
    assert held.held_s == pytest.approx(0.1)
    np.testing.assert_array_equal(held.take(), take(whole, pcm))
    assert held.held_s == 0
    np.testing.assert_array_equal(held.finish(), whole.finish())
