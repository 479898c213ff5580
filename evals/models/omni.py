"""What a frame of a model that hears by itself costs, and of what parts: calls served in this process.

Knows:   `Omni`, in mode free: every call hears a frame and says tau tokens.
Ignores: which model it is, sockets, whether anybody understands a word.

Windows are full and calls are old before anything is measured. In a row, for so many calls:

- speech_s, silence_s: seconds of a tick whose frames hold noise, and zeros.
- skipped_s: the same where no audio came: what would be left if silence were not heard.
- parts_ms: ears, prefill and decode of speech, with a wait for the device after each, which costs a little.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metronome_cli.clock import SystemClock
from metronome_cli.engine.device import block_bytes
from metronome_cli.engine.kv_pool import FP8
from metronome_cli.frame import Frame, Said
from metronome_cli.models.omni import Omni
from metronome_cli.profile import Profile
from metronome_cli.report import new_report
from metronome_cli.stats import percentiles

from ..aged import age
from ..settled import settled

RESULTS = Path(__file__).parent / "results"
SOUNDS = 16  # different frames of noise that callers send
PARTS = ("ears", "prefill", "decode")
# Ears of random weights hear much the same in every call; greedily, all would then say the same few tokens,
# and a mixture of experts would read few of its experts.
DIFFERENT = {"model.temperature": 1.0}

_clock = SystemClock()


class Bench:
    """One model and what is measured of it. `device`: where it computes."""

    def __init__(self, model: Omni[Any], profile: Profile, device: str) -> None:
        self.model, self.profile = model, profile
        self._wait = waits(device)
        samples = round(profile.beat.frame_s * profile.model.rate)
        self._speech = np.random.default_rng(0).standard_normal((SOUNDS, samples), np.float32) * 0.1
        self._silence = np.zeros_like(self._speech)
        self._nothing = np.zeros((SOUNDS, 0), np.float32)

    def row(self, calls: int, frames: int) -> dict[str, Any]:
        """A row of the answer: so many calls, so many frames of each kind."""
        for call in range(calls):
            refused = self.model.open(call, seed=call)
            assert refused is None, f"{calls} calls do not fit: {refused}"
            self._age(call, 10_000 + call)
        self._ticks(calls, self._speech, 3)
        kinds = {"speech_s": self._speech, "silence_s": self._silence, "skipped_s": self._nothing}
        seconds = {name: self._ticks(calls, sound, frames) for name, sound in kinds.items()}
        with self._timed() as spent:
            self._ticks(calls, self._speech, frames)
        leased = self.model.usage().leased
        for call in range(calls):
            self.model.close(call)
        p99 = float(np.percentile([*seconds["speech_s"], *seconds["silence_s"]], 99))
        return say(
            {"calls": calls}
            | {name: percentiles(some) for name, some in seconds.items()}
            | {"parts_ms": {name: round(some / frames * 1e3, 3) for name, some in spent.items()}}
            | {"parts_share": {name: round(some / sum(spent.values()), 3) for name, some in spent.items()}}
            | {"blocks_a_call": leased / calls, "in_time": p99 <= self.profile.beat.frame_s}
        )

    def memory(self, device: str) -> dict[str, Any]:
        """Bytes of one call, as its blocks were allocated and as foretold."""
        engine, profile = self.model._engine, self.profile
        pool, blocks = engine.memory, profile.session_blocks(len(self.model._chat.header)) or 0
        kept = FP8 if profile.pool.kv == "fp8" else engine.decoder.dtype
        block = block_bytes(engine.decoder.config, profile.pool.block_size, kept)
        allocated = (pool.keys.nbytes + pool.values.nbytes) / (engine.pool.total + 1)
        return say(
            {
                "blocks_reserved": blocks,
                "pool_bytes": round(allocated * blocks),
                "pool_bytes_foretold": block * blocks,
                "calls_that_fit": engine.pool.total // blocks if blocks else None,
                "device_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
            }
        )

    def _age(self, call: int, tokens: int) -> None:
        """Make a call as old as if it had so many tokens behind it. Its cache holds whatever lay there."""
        talk = self.model._calls[call].talk
        talk.inbox.take(len(talk.inbox))
        talk.settled = "answer"
        age(self.model._engine, talk.engine_session, tokens)

    def _ticks(self, calls: int, sound: NDArray[np.float32], count: int) -> list[float]:
        """Seconds of each of `count` ticks in which every call says tau tokens."""
        seconds = []
        for number in range(count):
            frames = [Frame(call, sound[(number + call) % SOUNDS]) for call in range(calls)]
            begun = _clock.now()
            said = sum(isinstance(event, Said) for event in self.model.tick(frames))
            self._wait()
            seconds.append(_clock.now() - begun)
            wanted = calls * self.profile.beat.tau if self._speaks(sound) else 0
            assert said == wanted, f"{said} tokens of {calls} calls, not {wanted}"
        return seconds

    def _speaks(self, sound: NDArray[np.float32]) -> bool:
        """Whether the model says anything to such frames."""
        return True

    @contextmanager
    def _timed(self) -> Iterator[dict[str, float]]:
        """Seconds of each part while this is open."""
        spent = dict.fromkeys(PARTS, 0.0)
        ears, engine = self.model._ears, self.model._engine
        hear, step = ears.hear, engine.step

        def watched_ears(*args: Any) -> Any:
            begun = _clock.now()
            heard = hear(*args)
            self._wait()
            spent["ears"] += _clock.now() - begun
            return heard

        def watched_step(sessions: Sequence[int], lengths: Sequence[int], *rest: Any, **named: Any) -> Any:
            begun = _clock.now()
            output = step(sessions, lengths, *rest, **named)
            self._wait()
            spent["prefill" if any(lengths) else "decode"] += _clock.now() - begun
            return output

        ears.hear, engine.step = watched_ears, watched_step  # type: ignore[method-assign, assignment]
        try:
            yield spent
        finally:
            ears.hear, engine.step = hear, step  # type: ignore[method-assign]


def arguments(about: str | None, calls: Sequence[int]) -> argparse.ArgumentParser:
    """What every script here takes; `calls`: to be held where nothing else is said."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=calls)
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--kv", choices=["model", "fp8"])
    parser.add_argument("--tiny", action="store_true", help="small random parts, to try the script")
    parser.add_argument("--out", type=Path)
    return parser


def answer(
    command: str,
    options: argparse.Namespace,
    build: Callable[[argparse.Namespace], tuple[Any, Profile]],
    kind: type[Bench] = Bench,
) -> None:
    """Build the model, measure all rows, keep the report."""
    begun = _clock.now()
    model, profile = build(options)
    started = say({"start_s": round(_clock.now() - begun, 1)})
    bench = kind(model, profile, options.device)
    with settled():
        rows = [bench.row(calls, options.frames) for calls in options.calls]
    report = new_report(command, profile, _clock, 0)
    report.results = {"rows": rows, "memory": bench.memory(options.device)} | started
    out = options.out or RESULTS / profile.name
    out.mkdir(parents=True, exist_ok=True)
    report.save(out)


def waits(device: str) -> Callable[[], None]:
    """What waits until a device has done what it was told; a CPU has."""
    return torch.cuda.synchronize if device == "cuda" else _at_once


def say(row: dict[str, Any]) -> dict[str, Any]:
    """A row, shown as soon as it is known."""
    print(json.dumps(row), flush=True)
    return row


def _at_once() -> None:
    """A CPU has done what it was told."""
