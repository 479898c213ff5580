"""What every part of this eval measures at: the window, the pool's blocks, batches and a frame."""

from __future__ import annotations

from metronome_cli.window import Window

WINDOW = Window(1024, 20)
BLOCK, APPEND = 64, 64
BLOCKS = 19  # that a windowed call reserves: one of sinks, 17 of 1,023 + 64 tokens, and one more
BATCHES = {
    "qwen2.5-7b": (1, 32, 128, 256),
    "moshi-temporal": (1, 32, 64, 128),
    "qwen3-30b-a3b": (1, 32, 128, 256),
}
VLLM_MS = {  # 0.23.0 with CUDA graphs, the same card, context 1,044 (design, section 5)
    "qwen2.5-7b": (4.74, 5.61, 7.33, 12.02),
    "moshi-temporal": (4.64, 9.31, 13.40, 22.63),
    "qwen3-30b-a3b": (4.33, 16.37, 21.04, 26.13),
}
FRAME_S, TOKENS_IN, TOKENS_OUT = 2.0, 50, 25
CALLS = (32, 128, 256, 512)
FILLED = 21  # frames of 50 tokens that fill 1,024
AGES = (1_000, 10_000, 100_000, 1_000_000)
