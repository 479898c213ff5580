"""Moshi, tiny and random, over real sockets: it listens and speaks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from metronome_cli import wire
from tests.models.tiny_moshi import save_tiny_moshi

from .running import Caller, Server, call, outlasting

FRAME = 2 * 1920  # bytes of 80 ms


@pytest.fixture(scope="module")
def moshi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("moshi")
    save_tiny_moshi(folder / "weights")
    kind = 'moshi"\nrate = 24000\ndtype = "float32'
    values = {"mode": "free", "frame_s": 0.08, "tau": 1, "blocks": 600, "max_pending_s": 20}
    with outlasting(folder, kind=kind, thinker=folder / "weights", **values) as running:
        yield running


async def listen(caller: Caller, frames: int) -> None:
    """Speak noise of so many frames, and listen until all are answered."""
    sound = (np.random.default_rng(0).standard_normal(frames * FRAME // 2) * 6000).astype("<i2").tobytes()
    for at in range(0, len(sound), FRAME):
        await caller.say(wire.AudioAppend(audio=sound[at : at + FRAME]))
    tokens = 0
    while tokens < frames - 1:
        tokens += (await caller.until(wire.TickEvent)).tokens_out


def test_it_speaks_in_every_frame_and_says_what_it_speaks(moshi: Server) -> None:
    async def scene() -> None:
        async with call(moshi) as caller:
            session = (await caller.updated(metronome={"ticks": True})).session
            assert session.output_modalities == ["audio"]
            await listen(caller, 12)
            sounds = [event.delta for event in caller.seen if isinstance(event, wire.AudioDelta)]
            words = [event.delta for event in caller.seen if isinstance(event, wire.TranscriptDelta)]
            # Sound lags: the first positions have none. After them a pause is sound alone.
            assert len(sounds) >= 9
            assert {len(pcm) for pcm in sounds} == {FRAME}
            assert sum(not word for word in words) <= 2
            await caller.say(wire.ResponseCancel())
            done = (await caller.until(wire.ResponseDone)).response
            assert (done.status, done.output_modalities) == ("cancelled", ["audio"])
            assert done.output[0].content[0].transcript == "".join(words)

    asyncio.run(scene())


def test_who_asks_it_for_text_gets_its_thoughts_alone(moshi: Server) -> None:
    async def scene() -> None:
        async with call(moshi) as caller:
            await caller.updated(metronome={"ticks": True}, output_modalities=["text"])
            await listen(caller, 6)
            assert not [event for event in caller.seen if isinstance(event, wire.AudioDelta)]
            assert len([event for event in caller.seen if isinstance(event, wire.TextDelta)]) >= 5

    asyncio.run(scene())
