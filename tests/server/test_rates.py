"""A model that hears 24 kHz: its callers send what they like, and are told of their own audio rightly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from metronome_cli import wire
from metronome_cli.models.assets import locate
from metronome_cli.speech import at_rate, read_clips

from .running import Server, call, outlasting

MODEL = """
import numpy as np
from dataclasses import replace
from metronome_cli.frame import Prefilled
from metronome_cli.models.null import NullModel

class Counts(NullModel):
    "Tells how many samples it heard, and how loud the loudest was."

    def tick(self, frames):
        audio = {frame.session: frame.audio for frame in frames}
        for event in super().tick(frames):
            if isinstance(event, Prefilled) and len(heard := audio[event.session]):
                event = replace(event, heard=f"{len(heard)}:{np.abs(heard).max():.2f}")
            yield event
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("rates")
    (folder / "counting.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=":")
        kind = 'counting:Counts"\nrate = 24000\noutput = "audio'
        with outlasting(folder, kind=kind, mode="turn", frame_s=0.05, max_pending_s=20) as running:
            yield running


@pytest.mark.parametrize("rate", wire.RATES)
def test_a_second_of_any_rate_is_24_000_samples_and_1000_ms(server: Server, rate: int) -> None:
    times = np.arange(rate) / rate
    pcm = (np.sin(2 * np.pi * 300 * times) * 16_384).astype("<i2").tobytes()

    async def scene() -> None:
        async with call(server) as caller:
            form = {"input": {"format": {"type": "audio/pcm", "rate": rate}, "turn_detection": None}}
            await caller.updated(audio=form, metronome={"ticks": True})
            for at in range(0, len(pcm), rate // 25):  # 20 ms each
                await caller.say(wire.AudioAppend(audio=pcm[at : at + rate // 25]))
            await caller.say(wire.AudioCommit())
            heard: list[str] = []
            while sum(int(words.split(":")[0]) for words in heard) < 23_990:
                tick = await caller.until(wire.TickEvent)
                heard += [tick.heard] * bool(tick.heard)
            assert sum(int(words.split(":")[0]) for words in heard) == pytest.approx(24_000, abs=4)
            assert tick.audio_end_ms == pytest.approx(1000, abs=0.2)
            assert max(float(words.split(":")[1]) for words in heard) == pytest.approx(0.5, abs=0.02)

    asyncio.run(scene())


def test_turns_are_heard_in_24_khz_too(server: Server) -> None:
    clip = read_clips(locate("questions"))[0]
    spoken = np.concatenate([np.zeros(8_000, np.float32), clip.samples, np.zeros(16_000, np.float32)])
    pcm = (at_rate(spoken, 24_000).clip(-1, 1) * 32767).astype("<i2").tobytes()

    async def scene() -> None:
        async with call(server) as caller:
            for at in range(0, len(pcm), 4800):
                await caller.say(wire.AudioAppend(audio=pcm[at : at + 4800]))
            started = await caller.until(wire.SpeechStarted)
            stopped = await caller.until(wire.SpeechStopped)
            length_ms = stopped.audio_end_ms - started.audio_start_ms
            assert length_ms == pytest.approx(1000 * clip.seconds + 800, abs=600)
            done = await caller.until(wire.ResponseDone)
            assert done.response.output_modalities == ["audio"]
            assert done.response.output[0].content[0].transcript  # without a sound: this model has none

    asyncio.run(scene())
