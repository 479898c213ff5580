"""Every dtype of the pool goes with every policy: none silently forgets the sinks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.window import Policy, Recycle, Unbounded, Window

from .conftest import Tiny

IDS = torch.randint(0, 97, (60,), generator=torch.Generator().manual_seed(0))
PIECE = 6


def rolled(llama: Tiny, policy: Policy, dtype: torch.dtype) -> Tensor:
    """Hidden states of IDS in one session, its window long since full."""
    engine = Engine(load_decoder(llama.folder), 40, 4, PIECE, kv_dtype=dtype)
    session = engine.open(policy)
    assert session is not None
    return torch.cat(
        [engine.step([session], [PIECE], IDS[at : at + PIECE]).hidden for at in range(0, 60, PIECE)]
    )


def apart(one: Tensor, two: Tensor) -> float:
    """Relative difference over the last pieces, in which sinks lie far behind the window."""
    return float((one[-30:] - two[-30:]).norm() / two[-30:].norm())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("policy", [Window(8, 4), Window(12, 0), Recycle(16, 6), Unbounded()], ids=str)
def test_a_pool_of_half_precision_sees_what_a_whole_one_sees(
    llama: Tiny, policy: Policy, dtype: torch.dtype
) -> None:
    assert 0 < apart(rolled(llama, policy, dtype), rolled(llama, policy, torch.float32)) < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sinks_count_in_a_pool_of_half_precision(llama: Tiny, dtype: torch.dtype) -> None:
    assert apart(rolled(llama, Window(8, 4), dtype), rolled(llama, Window(8, 0), dtype)) > 0.3
