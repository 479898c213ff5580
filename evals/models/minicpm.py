"""How many calls of MiniCPM-o-4.5 fit a 1 s frame, and where a frame's time goes.

Run:  python -m evals.models.minicpm          (real size, random weights, one GPU, some minutes)
      python -m evals.models.minicpm --tiny --device cpu --calls 1 3 --frames 3   (to try it)

Everything is in the frame but sockets: ears, prefill, decode. omni.py says what a row holds. Every unit is
spoken in to the end, which is the most that a frame can cost, and calls are at all stages of the audio
encoder's cache.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import Qwen3Config, WhisperConfig

from metronome_cli.models.minicpm_encoder import POSITIONS, cache_bytes, most_kept
from metronome_cli.models.minicpm_o import MiniCpmChat, MiniCpmO, Sizes, random_minicpm
from metronome_cli.models.omni import Markers
from metronome_cli.profile import Profile, load_profile

from .omni import DIFFERENT, Bench, answer, arguments, say
from .tokens import save_tokenizer

PROFILE = "minicpm-o-4.5"
HEADER = "Hello."  # in the tokens of bytes that random weights get, as long as a real header
MARKERS = (
    "<unit>", "</unit>", "<|audio_start|>", "<|audio_end|>", "<|listen|>", "<|speak|>", "<|tts_bos|>",
    "<|tts_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>", "<|turn_eos|>",
)  # fmt: skip
TINY = Sizes(
    Qwen3Config(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    ),
    WhisperConfig(d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=64),
    pool=5,
)


class Talkative(MiniCpmChat):
    """No token ends a unit before its time."""

    def markers(self) -> Markers:
        return replace(super().markers(), rests=frozenset(), says=frozenset())


class MiniCpmBench(Bench):
    """A call's age is that of its ears too; without audio there is no unit to speak in."""

    model: MiniCpmO

    def _age(self, call: int, tokens: int) -> None:
        super()._age(call, tokens)
        ear = self.model._calls[call].ear
        stages = most_kept(self.model._places._encoder.config.max_source_positions) // POSITIONS
        ear.age, ear.past = tokens, POSITIONS * (call % stages)

    def _speaks(self, sound: NDArray[np.float32]) -> bool:
        return bool(sound.size)

    def memory(self, device: str) -> dict[str, Any]:
        encoder, calls = self.model._places._encoder, self.profile.admission.max_sessions
        held = encoder._keys_LPNHD.nbytes + encoder._values_LPNHD.nbytes
        foretold = cache_bytes(encoder.config, encoder.dtype)
        ears = {"ears_bytes": held // (calls + 1), "ears_bytes_foretold": foretold, "ears_calls": calls}
        return super().memory(device) | say(ears)


def build(options: argparse.Namespace) -> tuple[MiniCpmO, Profile]:
    """The model as its profile has it, with random weights."""
    changes: dict[str, Any] = {
        "run.device": options.device,
        "model.header": HEADER,
        **DIFFERENT,
        "admission.max_sessions": max(options.calls),
    }
    if options.device == "cpu":
        changes |= {"model.dtype": "float32", "pool.blocks": 24 * max(options.calls)}
    if options.kv:
        changes["pool.kv"] = options.kv
    profile = load_profile(PROFILE, changes)
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), **{f"marker_{n}": name for n, name in enumerate(MARKERS)})
        chat = Talkative(Path(folder), profile)
    return random_minicpm(profile, chat, TINY if options.tiny else None), profile


def main() -> None:
    answer("eval-models-minicpm", arguments(__doc__, [1, 32, 96, 192, 256]).parse_args(), build, MiniCpmBench)


if __name__ == "__main__":
    main()
