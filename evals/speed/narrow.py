"""What a long text costs a real model when its windows are kept in 8 bits.

Knows:   SmolLM2-135M-Instruct, Moby-Dick, the scorer that reads a text as a call would.
Ignores: time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from metronome_cli.models.assets import ASSETS, condition, locate
from metronome_cli.models.perplexity import Scorer
from metronome_cli.window import Window

from .card import say

TOKENS = 16_384
WINDOWS = (Window(508, 4), Window(1020, 4))


def perplexity() -> list[dict[str, Any]]:
    """Perplexity of a text's first tokens under a window in bfloat16 and in 8 bits, sinks in bfloat16."""
    needed = ("smollm2-135m-instruct", "moby-dick")
    if missing := [name for name in needed if condition(ASSETS[name]).state != "have"]:
        return [say("perplexity of 8-bit windows", not_measured=f"missing: {', '.join(missing)}")]
    rows = []
    text = (locate("moby-dick") / "data.txt").read_text("utf-8")[:200_000]
    torch.set_default_device("cuda")
    try:
        scorers = {
            kind: Scorer(locate("smollm2-135m-instruct"), "bfloat16", narrow=kind == "fp8")
            for kind in ("bf16", "fp8")
        }
        ids = scorers["bf16"].encode(text)[:TOKENS]
        for window in WINDOWS:
            found = {kind: float(np.exp(one.nll(ids, window).nll.mean())) for kind, one in scorers.items()}
            found = {kind: round(value, 3) for kind, value in found.items()}
            more = round(100 * (found["fp8"] / found["bf16"] - 1), 2)
            what = f"perplexity W={window.window} S={window.sinks} tokens={len(ids)}"
            rows.append(say(what, **found, more_percent=more))
    finally:
        torch.set_default_device("cpu")
    return rows
