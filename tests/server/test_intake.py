from __future__ import annotations

import numpy as np
import pytest

from metronome_cli import wire
from metronome_cli.errors import InputError
from metronome_cli.server.intake import Intake, checked, typed


def tone(rate: int, seconds: float = 1.0) -> bytes:
    """440 Hz at half of full scale, as PCM16."""
    time = np.arange(int(rate * seconds)) / rate
    return (np.sin(2 * np.pi * 440 * time) * 16_384).astype("<i2").tobytes()


def in_packets(intake: Intake, pcm: bytes) -> np.ndarray:
    """What comes of `pcm` in 20 ms packets."""
    size = intake.rate // 50 * 2
    parts = [intake.take(pcm[start : start + size]) for start in range(0, len(pcm), size)]
    return np.concatenate([*parts, intake.finish()])


@pytest.mark.parametrize("rate", wire.RATES)
def test_a_second_of_any_rate_is_a_second_of_the_ears(rate: int) -> None:
    heard = in_packets(Intake(rate), tone(rate))
    assert heard.dtype == np.float32
    assert len(heard) == pytest.approx(16_000, abs=2)
    middle = heard[2_000:14_000]
    expected = np.sin(2 * np.pi * 440 * np.arange(2_000, 14_000) / 16_000) / 2
    assert np.abs(middle - expected).max() < 0.01


@pytest.mark.parametrize("rate", wire.RATES)
def test_how_audio_is_cut_into_packets_does_not_change_what_is_heard(rate: int) -> None:
    pcm = tone(rate)
    whole = Intake(rate)
    at_once = np.concatenate([whole.take(pcm), whole.finish()])
    np.testing.assert_allclose(in_packets(Intake(rate), pcm), at_once, atol=1e-6)


def test_nothing_of_an_utterance_is_heard_in_the_next_one() -> None:
    intake = Intake(24_000)
    loud, silence = tone(24_000), bytes(48_000)
    in_packets(intake, loud)
    assert np.abs(in_packets(intake, silence)).max() == 0


def test_full_scale_is_one() -> None:
    extremes = np.array([-32768, 32767], "<i2").tobytes()
    np.testing.assert_allclose(Intake(16_000).take(extremes), [-1.0, 32767 / 32768])


@pytest.mark.parametrize(
    ("settings", "rate", "ticks"),
    [
        (wire.SessionSettings(), None, None),
        (wire.SessionSettings(output_modalities=["text"]), None, None),
        (wire.SessionSettings(metronome=wire.MetronomeSettings(ticks=False)), None, False),
        (wire.SessionSettings(audio=wire.AudioSettings(input=wire.AudioInput())), None, None),
        (
            wire.SessionSettings(
                audio=wire.AudioSettings(input=wire.AudioInput(format=wire.AudioFormat(rate=8_000)))
            ),
            8_000,
            None,
        ),
        (
            wire.SessionSettings(audio=wire.AudioSettings(input=wire.AudioInput(format=wire.AudioFormat()))),
            24_000,
            None,
        ),
    ],
)
def test_settings_say_what_was_asked_for(
    settings: wire.SessionSettings, rate: int | None, ticks: bool | None
) -> None:
    assert checked(settings) == (rate, ticks)


def test_a_rate_of_nothing_is_refused() -> None:
    form = wire.AudioFormat(rate=0)
    settings = wire.SessionSettings(audio=wire.AudioSettings(input=wire.AudioInput(format=form)))
    with pytest.raises(InputError, match="use one of 24000, 16000, 8000"):
        checked(settings)


def test_the_parts_of_a_typed_message_are_its_lines() -> None:
    parts = [wire.ContentPart(type="input_text", text=text) for text in ("one", "two")]
    assert typed(wire.Item(content=parts)) == "one\ntwo"
