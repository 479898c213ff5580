"""Other ways to the same step: torch's own attention, transformers eager, and its continuous batching.

Knows:   how each is asked for a decode step at the same sizes and contexts, and what ours is timed against.
Ignores: our engine, but for its attention kernel.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from metronome_cli.engine.blocks import BlockPool
from metronome_cli.engine.kernels.attention import MOST_SPLIT, attend, splits_for
from metronome_cli.engine.kv_pool import LayerMemory
from metronome_cli.engine.layout import lay_out
from metronome_cli.engine.random_weights import SIZES
from metronome_cli.engine.rows import Row, Session
from metronome_cli.engine.sampling import Chooser, Sampling

from .card import Card, milliseconds, say
from .sizes import APPEND, BLOCKS, WINDOW

_CONTEXT = 1044


def attention(card: Card) -> list[dict[str, Any]]:
    """One layer over full windows: our kernel on its pool, torch's on contiguous caches of the same keys."""
    found = []
    for batch, queries, kv_heads in ((32, 28, 4), (128, 28, 4), (256, 28, 4), (256, 32, 4), (128, 32, 32)):
        for block in (64, 16):
            accounts = BlockPool(batch * (BLOCKS if block == 64 else 72), block)
            rows = []
            for call in range(batch):
                lane = accounts.open(WINDOW, APPEND)
                assert lane is not None
                for _ in range(47):
                    lane.extend(APPEND)
                    lane.retire()
                lane.extend(1 + call % APPEND)
                lane.retire()
                lane.extend(1)
                rows.append(
                    Row(Session(lane, "anchored", Chooser(Sampling())), [0], None, None, 0, 1, 1, True)
                )
            laid = lay_out(rows, block, 1, 1)
            tasks, table = torch.from_numpy(laid.tasks).cuda(), torch.from_numpy(laid.table).cuda()
            shape = (3, kv_heads, accounts.total + 1, block, 128)  # three layers: more than the cache holds
            keys, values = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            query = torch.randn(batch, queries, 128, dtype=torch.bfloat16, device="cuda")
            splits = splits_for(batch, kv_heads, narrow=False)
            arrived = torch.zeros(MOST_SPLIT, dtype=torch.int32, device="cuda")

            layers = [LayerMemory(k, v, k, v, None) for k, v in zip(keys, values, strict=True)]

            def ours(q: Tensor = query, of: Sequence[LayerMemory] = layers, s: int = splits) -> None:
                for layer in of:
                    attend(q, q, layer, tasks, table, arrived, tokens=1, splits=s)  # noqa: B023

            moved = 2 * 2 * batch * kv_heads * 1044 * 128
            ours_ms = milliseconds(ours) / 3
            share = round(moved / ours_ms * 1e3 / card.copy, 3)
            name = f"attention B={batch} heads={queries}/{kv_heads} block={block}"
            found.append(say(name, us=round(ours_ms * 1e3, 1), of_copy=share))
        whole = (3, batch, kv_heads, 1044, 128)
        keys, values = (torch.randn(whole, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        query = query.unsqueeze(2)

        def torchs(q: Tensor = query, k: Tensor = keys, v: Tensor = values) -> None:
            for layer in range(3):
                F.scaled_dot_product_attention(q, k[layer], v[layer], enable_gqa=True)

        torch_ms = milliseconds(torchs) / 3
        share = round(moved / torch_ms * 1e3 / card.copy, 3)
        found.append(
            say(
                f"torch attention B={batch} heads={queries}/{kv_heads}",
                us=round(torch_ms * 1e3, 1),
                of_copy=share,
            )
        )
    return found


def transformers_steps() -> list[dict[str, Any]]:
    """Decode steps of Qwen2.5-7B's size in transformers, as they come out of the box."""
    model = _qwen()
    rows = [
        say(f"transformers eager qwen2.5-7b B={batch}", ms=round(_eager(model, batch), 1))
        for batch in (1, 32, 128)
    ]
    for batch in (1, 32, 128):
        name = f"transformers continuous batching qwen2.5-7b B={batch}"
        try:
            rows.append(say(name, ms=round(_continuous(model, batch), 1)))
        except Exception as error:  # its own: it is what a reader of the table wants to know
            rows.append(say(name, failed=repr(error)[:300]))
    del model
    gc.collect()
    torch.cuda.empty_cache()
    return rows


def _qwen() -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = SIZES["qwen2.5-7b"]
    config = Qwen2Config(
        vocab_size=size.vocab, hidden_size=size.hidden, intermediate_size=size.intermediate,
        num_hidden_layers=size.layers, num_attention_heads=size.heads, num_key_value_heads=size.kv_heads,
        tie_word_embeddings=False, dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Qwen2ForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    return model


def _eager(model: Any, batch: int) -> float:
    """Milliseconds of a step on a cache of 1,043 tokens."""
    from transformers import DynamicCache

    size, cache, spans = SIZES["qwen2.5-7b"], DynamicCache(), []
    for layer in range(size.layers):
        shape = (batch, size.kv_heads, _CONTEXT - 1, size.head_dim)
        some = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        cache.update(some, some.clone(), layer)
    ids = torch.zeros((batch, 1), dtype=torch.long, device="cuda")
    with torch.inference_mode():
        for _ in range(8):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            model(ids, past_key_values=cache, use_cache=True).logits.argmax(-1)
            torch.cuda.synchronize()
            spans.append(time.perf_counter() - begun)
    return 1e3 * float(np.median(spans[2:]))


def _continuous(model: Any, batch: int) -> float:
    """Milliseconds between the last tokens of requests that all decode, by its own stamps."""
    from transformers import GenerationConfig

    tokens = 24
    random = np.random.default_rng(0)
    prompts = [random.integers(10, 150_000, _CONTEXT - tokens).tolist() for _ in range(batch)]
    settings = GenerationConfig(max_new_tokens=tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    told = model.generate_batch(prompts, generation_config=settings, record_timestamps=True)
    stamps = np.array([one.timestamps for one in told.values()])
    if stamps.shape != (batch, tokens):
        raise ValueError(f"{stamps.shape} stamps of {batch} requests of {tokens} tokens")
    return 1e3 * float(np.median(np.diff(stamps[:, -8:], axis=1)))
