"""Events and records that say only what a test is about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from metronome_cli import wire
from metronome_cli.cli.local_server import serving
from metronome_cli.speech import RATE, Clip
from metronome_cli.trace import FrameRecord


class Told:
    """Builds tick events and frame records with everything else at rest."""

    @staticmethod
    def tick(tick: int = 0, **fields: Any) -> wire.TickEvent:
        rest: dict[str, Any] = {
            "event_id": f"event_{tick}",
            "frame": tick,
            "audio_end_ms": 2000.0 * (tick + 1),
            "due": 2.0 * tick,
            "done": 2.0 * tick + 0.5,
            "stalled": False,
            "speaking": True,
            "tokens_in": 5,
            "tokens_out": 2,
            "kv_blocks": 3,
            "kv_leased": 10,
            "kv_total": 40,
            "skipped": 0,
            "heard": "",
        }
        return wire.TickEvent(tick=tick, **rest | fields)

    @staticmethod
    def frame(due: float, fresh: float | None = 0.5, session: int = 0, **fields: Any) -> FrameRecord:
        """A frame due at `due` whose first token came `fresh` seconds later, the last 0.1 s after it."""
        rest: dict[str, Any] = {
            "age_s": due,
            "frame": int(due),
            "tick": int(due),
            "audio_end_ms": 1000 * due,
            "first": None if fresh is None else due + fresh,
            "last": None if fresh is None else due + fresh + 0.1,
        }
        return FrameRecord(session=session, due=due, **rest | fields)


@pytest.fixture
def told() -> Told:
    return Told()


FRAME_S = 0.25
PROFILE = f"""
[model]
kind = "null"
mode = "free"
[beat]
frame_s = {FRAME_S}
prefill_tokens = 16
[window]
window = 64
sinks = 4
[pool]
blocks = 24
[admission]
max_sessions = 3
"""


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three calls of a null model. Unbounded, they fill its 384 token places in about five seconds."""
    path = tmp_path_factory.mktemp("load") / "null.toml"
    path.write_text(PROFILE)
    return str(path)


@pytest.fixture(scope="session")
def server(profile: str) -> Iterator[str]:
    """The URL of a windowed server that all tests may call."""
    with serving(["--profile", profile, "--no-record"]) as url:
        yield url


@pytest.fixture
def clips() -> list[Clip]:
    """Two clips that no other sound is mistaken for."""
    ramp = np.linspace(-1.0, 1.0, RATE, dtype=np.float32)
    return [Clip("up.wav", ramp), Clip("down.wav", -ramp[: RATE // 2])]
