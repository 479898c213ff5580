"""`metronome serve` with its thinker on a CUDA device: real weights, real sockets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from .running import Server, answered, ask, call, text_of

CAPITALS = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo"}


@pytest.mark.gpu
@pytest.mark.assets("smollm2-135m-instruct")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kv", ["model", "fp8"])
def test_calls_on_a_gpu_are_answered_like_calls_on_a_cpu(tmp_path: Path, kv: str) -> None:
    pool = f'"free"\nkv = "{kv}"'
    server = Server.start(
        tmp_path,
        kind="text",
        thinker="smollm2-135m-instruct",
        mode="turn",
        tau=8,
        blocks=pool,
        more='[run]\ndevice = "cuda"',
    )

    async def one(country: str) -> str:
        async with call(server) as caller:
            await ask(caller, f"What is the capital of {country}?")
            return text_of(await answered(caller))

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*map(one, CAPITALS))

    try:
        said = asyncio.run(all_at_once())
        assert all(capital in text for capital, text in zip(CAPITALS.values(), said, strict=True)), said
        assert server.stop()[0] == 0
    finally:
        server.kill()
