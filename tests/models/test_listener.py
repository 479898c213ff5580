"""A listener writes down what is said, each clip by itself, however long."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from metronome_cli.errors import AssetError
from metronome_cli.models import listener as listener_module
from metronome_cli.models.assets import locate
from metronome_cli.models.listener import Listener
from metronome_cli.models.normal import normal
from metronome_cli.speech import RATE, read_clips

pytestmark = pytest.mark.usefixtures("one_thread")


def padded(samples: np.ndarray, seconds: float) -> np.ndarray:
    return np.pad(samples, (0, round(seconds * RATE) - len(samples)))


@pytest.mark.assets("whisper-tiny.en")
def test_clips_of_all_lengths_are_written_down_in_their_order() -> None:
    first, second = read_clips(locate("questions"))[:2]
    # The second fits the whole context only, and the third does not.
    clips = [first.samples, padded(second.samples, 10.0), padded(first.samples, 31.0), first.samples[:0]]
    heard = Listener().write(clips)
    assert [normal(text) for text in heard] == [
        normal(c.text or "" if c else "") for c in (first, second, first, None)
    ]


def test_a_clip_that_comes_again_is_heard_once(tiny_whisper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(tiny_whisper)
    noise = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    batches: list[int] = []

    def hear(clips: list[np.ndarray], context_s: float) -> list[str]:
        batches.append(len(clips))
        return [f"clip of {len(clip)}" for clip in clips]

    monkeypatch.setattr(listener, "_hear", hear)
    assert listener.write([noise, noise[:9000], noise.copy()]) == [
        "clip of 16000",
        "clip of 9000",
        "clip of 16000",
    ]
    assert batches == [2]


def test_company_changes_nothing_in_what_is_heard(
    tiny_whisper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_module, "_MOST_TOKENS", 20)  # it babbles without end
    listener = Listener(tiny_whisper)
    draw = np.random.default_rng(0)
    clips = [draw.normal(0, 0.1, RATE * n).astype(np.float32) for n in (1, 2, 3)]
    assert listener.write(clips) == [listener.write([clip])[0] for clip in clips]


def test_a_missing_checkpoint_is_named() -> None:
    with pytest.raises(AssetError, match="no-such-ears"):
        Listener("no-such-ears")
