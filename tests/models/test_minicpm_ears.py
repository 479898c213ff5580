"""MiniCPM-o's ears, streamed, beside a reference that computes a whole call at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metronome_cli.errors import ProfileError
from metronome_cli.models.minicpm_ears import Hearing, MiniCpmEars
from metronome_cli.models.minicpm_encoder import Encoder, cache_bytes, most_kept
from metronome_cli.models.minicpm_mel import RATE, SEGMENT, START, Mel

from .tiny_minicpm import Reference, mel, speech

NOTHING = np.zeros(0, np.float32)


def ears_of(reference: Reference, calls: int = 4) -> MiniCpmEars:
    tensors = reference.tensors()

    def take(key: str, shape: tuple[int, ...]) -> Tensor:
        assert tuple(tensors[key].shape) == shape
        return tensors[key]

    return MiniCpmEars(Encoder(reference.audio, 48, 5, take), calls)


def hear(
    ears: MiniCpmEars, calls: list[Hearing], pieces: list[NDArray[np.float32]], end: bool = False
) -> list[Tensor]:
    """One frame, in the middle of an utterance of each call or at its end."""
    return ears.hear(calls, pieces, [end] * len(calls))


def _click_before_the_cut() -> NDArray[np.float32]:
    """Faint noise and one click, which no frame reaches once the ten seconds before it are dropped."""
    audio = 1e-5 * speech(33, seed=1)
    audio[10 * RATE - 660 : 10 * RATE - 600] = 1.0  # the published code puts 560 zeros in front
    return audio.astype(np.float32)


@pytest.mark.parametrize("audio", [speech(43, seed=1), _click_before_the_cut()], ids=["43 s", "click"])
def test_features_streamed_equal_those_of_the_whole_audio_kept(audio: NDArray[np.float32]) -> None:
    expected = mel(audio)
    assert len(expected) == len(audio) // RATE > 30, "past a moment at which ten seconds are dropped"
    levels = Mel(80, 2, torch.device("cpu"))
    levels.open(1)
    waiting = np.concatenate((np.zeros(START, np.float32), audio))
    for age, features in enumerate(expected):
        segment = torch.from_numpy(waiting[age * RATE : age * RATE + SEGMENT])[None]
        found = levels(segment, [1], [age])
        skipped = 0 if age else 2
        torch.testing.assert_close(found[:, :, skipped:], features, atol=1e-4, rtol=0)
        assert not found[:, :, :skipped].any()


def test_three_calls_of_different_ages_hear_what_each_would_alone_and_whole() -> None:
    reference = Reference()
    ears = ears_of(reference)
    starts = (0, 3, 17)  # frame at which each call begins
    audio = [speech(56 - start, seed) for seed, start in enumerate(starts)]
    calls: list[Hearing] = []
    heard: list[list[Tensor]] = [[], [], []]
    for frame in range(56):
        calls += [ears.open() for start in starts if start == frame]
        pieces = [
            clip[(frame - start) * RATE : (frame - start + 1) * RATE]
            for clip, start in zip(audio[: len(calls)], starts, strict=False)
        ]
        for row, found in enumerate(hear(ears, calls, pieces)):
            heard[row].append(found)
    for clip, parts in zip(audio, heard, strict=True):
        together = torch.cat(parts)
        assert len(together) == 10 * len(clip) // RATE
        torch.testing.assert_close(together, reference.embed(clip), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sizes", [(400, 16_001, 0, 47_999), (7,), (50_000,)])
def test_how_audio_is_cut_into_frames_does_not_matter(sizes: tuple[int, ...]) -> None:
    reference = Reference()
    ears = ears_of(reference)
    audio = speech(6, seed=4) if len(sizes) > 1 or sizes[0] > 100 else speech(1.02, seed=4)
    call, at, heard = ears.open(), 0, []
    while at < len(audio):
        for size in sizes:
            heard += hear(ears, [call], [audio[at : at + size]])
            at += size
    torch.testing.assert_close(torch.cat(heard), reference.embed(audio), atol=1e-4, rtol=0)


def _sizes(ears: MiniCpmEars, call: Hearing) -> tuple[int, int, int]:
    encoder = ears._encoder
    return call.audio.nbytes, encoder._keys_LPNHD.nbytes, ears._mel._loudest_P2K.nbytes


def test_the_state_is_the_same_to_the_byte_at_any_age() -> None:
    ears = ears_of(Reference())
    call = ears.open()
    hear(ears, [call], [speech(1, seed=0)])
    sizes = _sizes(ears, call)
    pasts = set()
    for second in range(40):
        hear(ears, [call], [speech(1, seed=second)])
        pasts.add(call.past)
        assert _sizes(ears, call) == sizes
    assert pasts == {50, 100, 150, 200}, "the cache is never longer than the model's positions"


def test_the_published_size_forgets_after_29_seconds_and_its_cache_is_foreseen() -> None:
    assert most_kept(1500) == 1450
    reference = Reference()
    ears = ears_of(reference, calls=3)
    held = ears._encoder._keys_LPNHD.nbytes + ears._encoder._values_LPNHD.nbytes
    assert held == (3 + 1) * cache_bytes(reference.audio, torch.float32)


def test_a_place_taken_again_holds_nothing_of_who_was_there() -> None:
    reference = Reference()
    ears = ears_of(reference, calls=2)
    first, older = ears.open(), ears.open()
    hear(ears, [first, older], [np.full(4 * RATE, np.nan, np.float32), speech(3, seed=8)])
    place = first.place
    del first
    audio = speech(7, seed=9)
    again = ears.open()
    assert again.place == place
    # Beside a call with a longer cache, what lies behind the new one's end is looked at, and masked.
    found = [
        hear(ears, [again, older], [audio[at : at + RATE], speech(1, seed=at)])[0]
        for at in range(0, len(audio), RATE)
    ]
    torch.testing.assert_close(torch.cat(found), reference.embed(audio), atol=1e-4, rtol=0)


def test_audio_that_is_no_number_touches_one_call_alone() -> None:
    reference = Reference()
    ears = ears_of(reference)
    calls = [ears.open() for _ in range(3)]
    audio = [speech(6, seed) for seed in range(3)]
    audio[1][RATE : RATE + 5] = np.nan
    heard: list[list[Tensor]] = [[], [], []]
    for second in range(6):
        pieces = [clip[second * RATE : (second + 1) * RATE] for clip in audio]
        for row, found in enumerate(hear(ears, calls, pieces)):
            heard[row].append(found)
    for row in (0, 2):
        torch.testing.assert_close(torch.cat(heard[row]), reference.embed(audio[row]), atol=1e-4, rtol=0)
    assert not torch.cat(heard[1]).isfinite().all()


@pytest.mark.parametrize(
    ("seconds", "rows"), [(0.5, 6), (2.0, 20), (2.05, 20), (2.25, 23), (2.38, 25), (3.95, 40)]
)
def test_an_utterance_that_is_over_is_heard_to_its_end(seconds: float, rows: int) -> None:
    reference = Reference()
    ears, audio = ears_of(reference), speech(seconds, seed=3)
    call = ears.open()
    (found,) = hear(ears, [call], [audio], end=True)
    padded = np.concatenate((audio, np.zeros(RATE, np.float32)))
    assert len(found) == rows, "each tenth of a second that holds some of it; next to nothing is left"
    torch.testing.assert_close(found, reference.embed(padded)[: len(found)], atol=1e-4, rtol=0)
    assert not len(hear(ears, [call], [NOTHING], end=True)[0]), "nothing is heard twice"


def test_a_frame_of_nothing_brings_nothing() -> None:
    ears = ears_of(Reference())
    calls = [ears.open(), ears.open()]
    pieces: list[NDArray[np.float32]] = [NOTHING, speech(1, seed=0)]
    found = hear(ears, calls, pieces)
    assert [tuple(one.shape) for one in found] == [(0, 48), (10, 48)]


def test_a_call_too_many_is_refused_by_name() -> None:
    ears = ears_of(Reference(), calls=2)
    first, second = ears.open(), ears.open()
    assert not ears.has_room, "the last place is for a call that opens anew"
    third = ears.open()
    assert len({first.place, second.place, third.place}) == 3
    with pytest.raises(ProfileError, match=r"admission\.max_sessions = 2"):
        ears.open()
    place = first.place
    del first
    assert ears.open().place == place
