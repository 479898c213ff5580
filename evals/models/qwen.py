"""How many calls of Qwen2.5-Omni-7B or Qwen3-Omni-30B-A3B fit a 2 s frame, and where a frame's time goes.

Run:  python -m evals.models.qwen qwen2.5-omni-7b          (real size, random weights, one GPU, some minutes)
      python -m evals.models.qwen qwen3-omni-30b
      python -m evals.models.qwen qwen3-omni-30b --tiny --device cpu --calls 1 3 --frames 3   (to try it)

Everything is in the frame but sockets: ears, prefill, decode. omni.py says what a row holds.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from metronome_cli.engine.decoder import DecoderConfig
from metronome_cli.models.chat import Chat
from metronome_cli.models.omni import Omni
from metronome_cli.models.qwen_omni import random_omni
from metronome_cli.profile import Profile, load_profile

from .omni import DIFFERENT, answer, arguments
from .tokens import save_tokenizer

PROFILES = ("qwen2.5-omni-7b", "qwen3-omni-30b")
HEADER = "Hello."  # in the tokens of bytes that random weights get, as long as a real header
TOWER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16}


def tiny(name: str) -> tuple[DecoderConfig, dict[str, Any]]:
    """Small enough for a CPU, of the same parts."""
    experts = 8 if name == "qwen3-omni-30b" else 0
    size = DecoderConfig(32, 2, 4, 2, 16, 64, 400, 1e-6, qkv_bias=not experts, experts=experts, top=2)
    return size, TOWER | ({"downsample_hidden_size": 8} if experts else {})


def build(options: argparse.Namespace) -> tuple[Omni[Any], Profile]:
    """The model as its profile has it, in mode free, with random weights."""
    changes: dict[str, Any] = {
        "model.mode": "free",
        "run.device": options.device,
        "model.header": HEADER,
    } | DIFFERENT
    if options.device == "cpu":
        changes |= {"model.dtype": "float32", "pool.blocks": 24 * max(options.calls)}
    if options.kv:
        changes |= {"pool.kv": options.kv, "admission.max_sessions": max(options.calls)}
    profile = load_profile(options.profile, changes)
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(Path(folder), audio_bos_token="<|audio_bos|>", audio_eos_token="<|audio_eos|>")
        chat = Chat(Path(folder), profile.model.header)
    return random_omni(profile, chat, tiny(options.profile) if options.tiny else None), profile


def main() -> None:
    parser = arguments(__doc__, [1, 32, 64, 128, 256])
    parser.add_argument("profile", choices=PROFILES)
    answer("eval-models-qwen", parser.parse_args(), build)


if __name__ == "__main__":
    main()
