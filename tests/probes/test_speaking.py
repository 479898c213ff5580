"""A model with a voice of its own: what a listener hears of it is held against its own text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from metronome_cli.clock import SystemClock
from metronome_cli.errors import NotMeasured, ProfileError
from metronome_cli.models.listener import Listener
from metronome_cli.probes import quality
from metronome_cli.probes.cells import Plan, stage_of
from metronome_cli.probes.grid import UNBOUNDED, Bound, Cell
from metronome_cli.probes.quality import Material, Probe
from metronome_cli.probes.spoken import find_listener, heard_back
from metronome_cli.probes.verdict import conclude
from metronome_cli.profile import Profile, load_profile, parse_profile
from metronome_cli.speech import RATE

EXAMPLES = Path(__file__).parents[2] / "examples"
CELLS = [Cell("turn", UNBOUNDED, 0), Cell("turn", Bound("window", 32, 4), 0)]


class Hears(Listener):
    """Hears one word in all speech, and remembers how long each clip was."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def write(self, clips: Sequence[NDArray[np.float32]]) -> list[str]:
        self.seconds += [len(clip) / RATE for clip in clips]
        return ["do" if len(clip) else "" for clip in clips]


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.syspath_prepend(EXAMPLES)
    return load_profile(str(EXAMPLES / "own_model.toml"))


def probe(profile: Profile, **material: Any) -> Probe:
    plan = Plan(sessions=2, per_call=2)
    return Probe(profile, plan, Material(**material), (32,), SystemClock())


def played(profile: Profile, **material: Any) -> list[dict[str, Any]]:
    return probe(profile, **material).run(CELLS, lambda share: None)


def test_a_models_own_speech_is_written_down_and_its_text_is_the_reference(
    toy: Profile, monkeypatch: pytest.MonkeyPatch, tiny_chat: Path
) -> None:
    ears = Hears()
    monkeypatch.setattr(quality, "find_listener", lambda checkpoint: ears)
    found = played(toy, listen=True, judge=str(tiny_chat))
    rows = [row for cell in found for call in cell["calls"] for row in call]
    assert len(rows) == len(ears.seconds) == 8
    # Twelve tokens of a quarter of a frame each, whatever a window may hold.
    assert ears.seconds == pytest.approx([12 * 0.2 / 4] * 8, abs=0.01)
    assert all(len(row["said"].split()) == 12 for row in rows)
    assert {row["transcript"] for row in rows} == {"do"}
    assert all(row["asr_wer"] == (11 if "do" in row["said"].split() else 12) / 12 for row in rows)
    assert all("pcm" not in row for row in rows)
    assert (
        {row["gen_tokens"] for row in rows} == {rows[0]["gen_tokens"]} != {0}
    )  # of "do", not of what was written
    verdict = conclude([cell.bound for cell in CELLS], dict(zip(CELLS, found, strict=True)), toy, 0)
    assert 11 / 12 <= verdict[1]["turn"]["asr_wer"]["mean"] <= 1
    assert "asr_wer_difference" in verdict[1]["turn"]


def test_who_does_not_listen_keeps_no_sound(toy: Profile) -> None:
    rows = [row for cell in played(toy, gen_ppl=False) for call in cell["calls"] for row in call]
    assert not [row for row in rows if {"pcm", "transcript", "asr_wer"} & row.keys()]


def test_without_a_listener_it_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="asr_wer: 'no-ears' is no path here"):
        find_listener("no-ears")


def test_silence_and_speech_reach_the_listener_at_its_own_rate() -> None:
    ears = Hears()
    assert heard_back([bytes(2 * 24_000), b""], ears) == ["do", ""]
    assert ears.seconds == pytest.approx([1.0, 0.0])


def test_a_model_is_asked_as_it_is_and_one_that_cannot_read_is_asked_aloud(toy: Profile) -> None:
    stage = stage_of(CELLS[:1], Plan(sessions=1), toy, 1, SystemClock())
    assert stage.rate == 16_000
    moshi = parse_profile("moshi", {"model": {"kind": "moshi", "rate": 24_000}})
    with pytest.raises(ProfileError, match="--spoken"):
        stage_of(CELLS[:1], Plan(sessions=1), moshi, 1, SystemClock())
