"""How many Moshi calls fit an 80 ms frame, and where a frame's time goes.

Run:  python -m evals.models.moshi                       (real sizes, random weights, one GPU, some minutes)
      python -m evals.models.moshi --tiny --device cpu --calls 1 3 --frames 5        (a try of the script)

Everything is in the frame but sockets: codec, backbone, depth transformer, codec. Windows are full and calls
are old before anything is measured. For each number of calls:

- speech_s, silence_s: wall time of `Moshi.tick` when all callers speak, and when none does.
- parts: the same of speech, with a wait for the device after each of them, which costs a little more in all.
- memory: what a call takes, measured by what the pool and the slots were allocated, and as it was foretold.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import MoshiConfig

from metronome_cli.clock import SystemClock
from metronome_cli.engine.device import block_bytes
from metronome_cli.frame import Frame, Said
from metronome_cli.models.moshi import HEADER, Moshi
from metronome_cli.models.moshi_config import codec_bytes, sizes_of
from metronome_cli.models.moshi_weights import random_parts
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.stats import percentiles

from .. import aged
from ..settled import settled
from .omni import say, waits

RESULTS = Path(__file__).parent / "results"
BUDGET_S = 0.08
SAMPLES = 1920
PARTS = ("ears", "backbone", "depth", "mouth")
SOUNDS = 50  # different frames of noise that callers send


def tiny() -> MoshiConfig:
    """Small enough for a CPU, of the same parts."""
    codec = {
        "model_type": "mimi",
        "hidden_size": 32,
        "num_filters": 4,
        "num_quantizers": 8,
        "codebook_size": 32,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "upsample_groups": 32,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    depth = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32}
    return MoshiConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        ffn_dim=64,
        audio_encoder_config=codec,
        depth_decoder_config=depth,
    )


def real() -> MoshiConfig:
    """The sizes of the published checkpoints, which are transformers' defaults."""
    return MoshiConfig(audio_vocab_size=2048)


def age(model: Moshi, session: int, positions: int) -> None:
    """Make a call as old as if it had so many positions behind it. Its cache holds whatever lay there."""
    call = model._calls[session]
    aged.age(model.engine, call.number, positions)
    call.position = positions


def frames(calls: int, sound: NDArray[np.float32], number: int) -> list[Frame]:
    return [Frame(call, sound[(number + call) % len(sound)]) for call in range(calls)]


@contextmanager
def timed(model: Moshi, wait: Callable[[], None]) -> Iterator[dict[str, float]]:
    """Seconds of each part while this is open, with a wait for the device after each."""
    spent = dict.fromkeys(PARTS, 0.0)
    places = [
        (model.streams, "hear"),
        (model.engine, "step"),
        (model.streams, "think"),
        (model.streams, "speak"),
    ]

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            found = work(*args, **kwargs)
            wait()
            spent[name] += time.perf_counter() - begun
            return found

        return run

    for name, (owner, method) in zip(PARTS, places, strict=True):
        setattr(owner, method, watched(name, getattr(owner, method)))
    try:
        yield spent
    finally:
        for owner, method in places:
            delattr(owner, method)  # the class's own again


def ticks(model: Moshi, calls: int, sound: NDArray[np.float32], count: int) -> list[float]:
    """Seconds of each of `count` ticks in which every call says a position."""
    seconds = []
    for number in range(count):
        brought = frames(calls, sound, number)
        begun = time.perf_counter()
        said = sum(isinstance(event, Said) for event in model.tick(brought))
        seconds.append(time.perf_counter() - begun)
        assert said == calls, f"{said} of {calls} calls spoke"
    return seconds


def measure(model: Moshi, calls: int, count: int, wait: Callable[[], None]) -> dict[str, Any]:
    """A row of the answer."""
    window = model._policy.window  # type: ignore[union-attr]
    for call in range(calls):
        refused = model.open(call, seed=call)
        assert refused is None, refused
        age(model, call, 3 * window + call)
    random = np.random.default_rng(0)
    speech = random.standard_normal((SOUNDS, SAMPLES), np.float32) * 0.1
    silence = np.zeros_like(speech)
    ticks(model, calls, speech, 5)
    of_speech, of_silence = (ticks(model, calls, sound, count) for sound in (speech, silence))
    with timed(model, wait) as spent:
        ticks(model, calls, speech, count)
    for call in range(calls):
        model.close(call)
    whole = sum(spent.values())
    row = {
        "calls": calls,
        "speech_s": percentiles(of_speech),
        "silence_s": percentiles(of_silence),
        "parts_ms": {name: round(seconds / count * 1e3, 3) for name, seconds in spent.items()},
        "parts_share": {name: round(seconds / whole, 3) for name, seconds in spent.items()},
        "in_time": bool(max(np.percentile(of_speech, 99), np.percentile(of_silence, 99)) <= BUDGET_S),
    }
    return say(row)


def memory(model: Moshi, profile: Profile, config: MoshiConfig) -> dict[str, Any]:
    """Bytes of one call: of its blocks and its slot, as allocated and as foretold."""
    pool = model.engine.memory
    blocks = profile.session_blocks(HEADER) or 0
    allocated = (pool.keys.nbytes + pool.values.nbytes) / (model.engine.pool.total + 1) * blocks
    block = block_bytes(sizes_of(config), profile.pool.block_size, model._parts.decoder.dtype)
    row = {
        "blocks": blocks,
        "pool_bytes": int(allocated),
        "pool_bytes_foretold": blocks * block,
        "slot_bytes": model.streams.slot_bytes,
        "slot_bytes_foretold": codec_bytes(config),
    }
    return say(row)


def build(options: argparse.Namespace, config: MoshiConfig) -> tuple[Moshi, Profile]:
    most = max(options.calls)
    changes = {
        "run.device": options.device,
        "run.threads": 1,
        "model.dtype": "bfloat16" if options.device == "cuda" else "float32",
        "admission.max_sessions": most,
        "pool.block_size": 64,
        "window.window": 64 if options.tiny else 1024,
    }
    blocks = most * (load_profile("moshi", changes).session_blocks(HEADER) or 0)
    profile = load_profile("moshi", changes | {"pool.blocks": blocks})
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    return Moshi(profile, random_parts(config, dtype, torch.device(options.device), most)), profile


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 32, 64, 96, 128, 160, 192])
    parser.add_argument("--frames", type=int, default=200)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small random parts, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "moshi")
    options = parser.parse_args()
    wait = waits(options.device)
    config = tiny() if options.tiny else real()
    begun = time.perf_counter()
    model, profile = build(options, config)
    wait()
    started = {"start_s": round(time.perf_counter() - begun, 1)}
    say(started)
    with settled():
        rows = [measure(model, calls, options.frames, wait) for calls in options.calls]
    report = new_report("eval-models-moshi", profile, SystemClock(), 0)
    report.results = {"rows": rows, "memory": memory(model, profile, config)} | started
    options.out.mkdir(parents=True, exist_ok=True)
    report.save(options.out)


if __name__ == "__main__":
    main()
