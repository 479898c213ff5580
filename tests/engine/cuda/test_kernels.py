"""Each kernel against its plain twin, over shapes, ages and policies drawn at random."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="no Triton")

from metronome_cli.engine.attention import attend_plain, plan
from metronome_cli.engine.blocks import BlockPool
from metronome_cli.engine.decoder import Experts, swiglu
from metronome_cli.engine.kernels.attention import attend
from metronome_cli.engine.kernels.experts import experts
from metronome_cli.engine.kernels.pointwise import add_norm, rotate_write, silu_mul
from metronome_cli.engine.kernels.sampling import sample
from metronome_cli.engine.kv_pool import KvPool
from metronome_cli.engine.layout import lay_out
from metronome_cli.engine.rows import Row, Session
from metronome_cli.engine.sampling import Chooser, Sampling, choose
from metronome_cli.window import Policy, Recycle, Unbounded, Window

from .conftest import off

POLICIES: list[Policy] = [
    Window(1),
    Window(5, 3),
    Window(64, 20),
    Window(100, 4),
    Window(300, 70),
    Window(17, 64),
    Unbounded(),
    Recycle(400),
]


def some_rows(pool: BlockPool, dice: random.Random, count: int, most: int) -> list[Row]:
    """Sessions of any age that have just been given some tokens."""
    rows = []
    for _ in range(count):
        lane = pool.open(dice.choice(POLICIES), most)
        assert lane is not None
        for _ in range(dice.randrange(12)):
            step = dice.randint(1, most)
            if isinstance(lane.policy, Recycle) and lane.length + step > 250:
                break
            assert lane.extend(step)
            lane.retire()
        tokens = dice.randint(1, most)
        assert lane.extend(tokens)
        session = Session(lane, "anchored", Chooser(Sampling()))
        rows.append(Row(session, [0] * tokens, None, None, 0, tokens, tokens, sample=False))
    return rows


@pytest.mark.parametrize("group", [1, 3, 7, 8])
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("block_size", [8, 16, 64])
@pytest.mark.parametrize("cut", [(1, 1, 1), (1, 1, 5), (40, 1, 2), (40, 9, 1)], ids=str)
def test_attention(group: int, head_size: int, block_size: int, cut: tuple[int, int, int]) -> None:
    most, tokens_a_task, splits = cut
    dice = random.Random(f"{group} {head_size} {block_size} {cut}")
    torch.manual_seed(group)
    kv_heads, blocks = 2, 3000 // block_size + 200
    accounts = BlockPool(blocks, block_size)
    rows = some_rows(accounts, dice, 5, most)
    pool = KvPool(1, blocks, block_size, kv_heads, head_size, torch.float32)
    keys, values = (torch.randn(pool.keys[0].shape) for _ in range(2))
    live = [block for row in rows for block in row.session.lane.table.values()]
    free = [block for block in range(blocks + 1) if block not in live]
    keys[:, free] = values[:, free] = float("nan")
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(sum(lengths), kv_heads * group, head_size) for _ in range(2))
    want = attend_plain(own, to_sinks, keys, values, plan(lanes, lengths, pool, group))
    laid = lay_out(rows, block_size, 1, tokens_a_task)
    # Tasks of nobody, as in a graph that is larger than its step.
    padding = torch.zeros((3, laid.tasks.shape[1]), dtype=torch.int32)
    tasks = torch.cat((torch.from_numpy(laid.tasks), padding)).cuda()
    table = torch.from_numpy(laid.table).cuda()
    own, to_sinks, keys, values = (tensor.cuda() for tensor in (own, to_sinks, keys, values))
    got = attend(own, to_sinks, keys, values, tasks, table, tokens=tokens_a_task, splits=splits)
    assert off(got, want) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_rounds_no_more_than_its_numbers(dtype: torch.dtype) -> None:
    accounts = BlockPool(200, 16)
    rows = some_rows(accounts, random.Random(1), 8, 1)
    pool = KvPool(1, 200, 16, 4, 128, torch.float32)
    keys, values = (torch.randn(pool.keys[0].shape).to(dtype) for _ in range(2))
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(sum(lengths), 28, 128).to(dtype) for _ in range(2))
    want = attend_plain(own.double(), to_sinks.double(), keys, values, plan(lanes, lengths, pool, 7))
    laid = lay_out(rows, 16, 1, 1)
    own, to_sinks, keys, values = (tensor.cuda() for tensor in (own, to_sinks, keys, values))
    tasks, table = torch.from_numpy(laid.tasks).cuda(), torch.from_numpy(laid.table).cuda()
    got = attend(own, to_sinks, keys, values, tasks, table, tokens=1, splits=1)
    assert off(got, want) < (1e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("size", [48, 2048, 3584])
@pytest.mark.parametrize("parts", [0, 1, 8])
def test_add_norm(size: int, parts: int) -> None:
    hidden, weight = torch.randn(5, size, device="cuda"), torch.randn(size, device="cuda")
    added = None if parts == 0 else torch.randn(5, parts, size, device="cuda").squeeze(1)
    summed = hidden if added is None else hidden + added.view(5, parts, size).sum(1)
    want = torch.nn.functional.rms_norm(summed, (size,), weight, 1e-6)
    assert off(add_norm(hidden, added, weight, 1e-6), want) < 1e-6
    assert off(hidden, summed) < 1e-6


def test_silu_mul() -> None:
    gate_up = torch.randn(3, 2 * 5000, device="cuda")
    assert off(silu_mul(gate_up), swiglu(gate_up)) < 1e-6


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("queries", "kv_heads", "size"), [(6, 2, 64), (32, 4, 128), (32, 32, 128), (9, 3, 64)]
)
def test_rotate_write(normed: bool, queries: int, kv_heads: int, size: int) -> None:
    tokens = 7
    qkv = torch.randn(tokens, (queries + 2 * kv_heads) * size, device="cuda")
    norms = (torch.rand(size, device="cuda"), torch.rand(size, device="cuda")) if normed else None
    cos, sin, sink_cos, sink_sin = (torch.randn(tokens, size // 2, device="cuda") for _ in range(4))
    place = torch.randperm(5 * 16, device="cuda")[:tokens]
    keys, values = (torch.zeros(kv_heads, 5, 16, size, device="cuda") for _ in range(2))
    own, to_sinks = rotate_write(
        qkv, norms, (cos, sin, sink_cos, sink_sin), place, keys, values, queries, 1e-6
    )

    q, k, v = qkv.view(tokens, -1, size).split((queries, kv_heads, kv_heads), dim=1)
    if norms:
        q, k = (torch.nn.functional.rms_norm(x, (size,), n, 1e-6) for x, n in zip((q, k), norms, strict=True))
    assert off(own, _turn(q, cos, sin)) < 1e-5
    assert off(to_sinks, _turn(q, sink_cos, sink_sin)) < 1e-5
    assert off(keys.flatten(1, 2)[:, place].transpose(0, 1), _turn(k, cos, sin)) < 1e-5
    assert torch.equal(values.flatten(1, 2)[:, place].transpose(0, 1), v)
    assert int((keys != 0).any(-1).sum()) == tokens * kv_heads


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("tokens", [1, 3, 33, 700])
@pytest.mark.parametrize("normed", [False, True])
def test_experts(tokens: int, normed: bool) -> None:
    torch.manual_seed(tokens)
    count, size, inner, top = 24, 128, 192, 5
    plain = Experts(
        torch.randn(count, size, device="cuda"),
        torch.randn(count, 2 * inner, size, device="cuda") / size**0.5,
        torch.randn(count, size, inner, device="cuda") / inner**0.5,
        top,
        normed,
    )
    x = torch.randn(tokens, size, device="cuda")
    got = experts(x, plain.router, plain.gate_up, plain.down, top, normed)
    assert off(got.sum(1), plain(x)) < 1e-5


def test_experts_that_nobody_and_everybody_chose() -> None:
    count, size, inner = 16, 64, 64
    router = torch.zeros(count, size, device="cuda")
    router[3], router[7] = 1.0, 0.5  # everybody's first and second choice
    plain = Experts(
        router,
        torch.randn(count, 2 * inner, size, device="cuda"),
        torch.randn(count, size, inner, device="cuda"),
        2,
        True,
    )
    x = torch.rand(300, size, device="cuda")
    got = experts(x, plain.router, plain.gate_up, plain.down, 2, True)
    assert off(got.sum(1), plain(x)) < 1e-5


def test_greedy_and_drawn_tokens() -> None:
    vocab = 9001
    settings = [
        Sampling(),
        Sampling(suppress=(5, 17)),
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_p=0.9, seed=2, suppress=(5, 17)),
        Sampling(temperature=1.5, top_p=0.3, seed=3),
    ]
    torch.manual_seed(0)
    banned = torch.zeros((2, vocab), dtype=torch.uint8, device="cuda")
    banned[1, [5, 17]] = 1
    ban = torch.tensor([int(bool(s.suppress)) for s in settings], dtype=torch.int32, device="cuda")
    choosers, again = ([Chooser(s) for s in settings] for _ in range(2))
    same = 0
    for _ in range(40):
        logits = 3 * torch.randn(len(settings), vocab)
        logits[0, 5] = logits[1, 5] = 100.0
        numbers = [
            (c.sampling.temperature, c.sampling.top_p, c.uniform() if c.sampling.temperature else 0.0)
            for c in choosers
        ]
        out = torch.zeros(len(settings), dtype=torch.int64, device="cuda")
        sample(logits.cuda(), banned, ban, torch.tensor(numbers).cuda(), out)
        want = choose(logits, again)
        assert out[0] == 5
        assert torch.equal(out[:2].cpu(), want[:2])
        same += int((out.cpu() == want).sum())
    assert same >= 40 * len(settings) - 3  # sums of shares may differ in the last bit where a draw falls
