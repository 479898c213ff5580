"""Each kernel against its plain twin, over shapes, ages and policies drawn at random.

On a CUDA device, or in Triton's interpreter, which knows fewer kinds of numbers and is slow.
"""

from __future__ import annotations

import os
import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("triton", reason="no Triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no CUDA device, and not TRITON_INTERPRET=1", allow_module_level=True)

from metronome_cli.engine.attention import attend_plain, plan
from metronome_cli.engine.blocks import BlockPool
from metronome_cli.engine.decoder import Experts, swiglu
from metronome_cli.engine.kernels.attention import attend
from metronome_cli.engine.kernels.experts import choose as choose_experts
from metronome_cli.engine.kernels.experts import experts
from metronome_cli.engine.kernels.one_row import add_experts, product
from metronome_cli.engine.kernels.pointwise import add_norm, rotate_write, silu_mul
from metronome_cli.engine.kernels.sampling import sample
from metronome_cli.engine.kv_pool import FP8, KvPool, LayerMemory
from metronome_cli.engine.layout import lay_out
from metronome_cli.engine.rows import Row
from metronome_cli.engine.sampling import Chooser, Sampling, choose

from ..rows import row_of, some_rows
from .conftest import DEVICE, off

on_a_device = pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter rounds such numbers wrongly")


def ask(
    memory: LayerMemory, queries: tuple[Tensor, Tensor], rows: list[Row], tokens: int, splits: int
) -> Tensor:
    """The kernel's answer, among tasks of nobody, as in a graph that is larger than its step."""
    blocks, block_size = memory.keys.shape[1:3]
    laid = lay_out(rows, block_size, 1, tokens, blocks - 1 if memory.scales else None)
    padding = torch.zeros((3, laid.tasks.shape[1]), dtype=torch.int32)
    tasks = torch.cat((torch.from_numpy(laid.tasks), padding)).to(DEVICE)
    table = torch.from_numpy(laid.table).to(DEVICE)
    own, to_sinks = (query.to(DEVICE) for query in queries)
    arrived = torch.zeros(len(tasks) * memory.keys.shape[0], dtype=torch.int32, device=DEVICE)
    found = attend(own, to_sinks, memory, tasks, table, arrived, tokens=tokens, splits=splits)
    assert not arrived.any()
    return found


def plain_memory(keys: Tensor, values: Tensor) -> LayerMemory:
    """A layer without scales, whose sinks lie among the rest."""
    keys, values = keys.to(DEVICE), values.to(DEVICE)
    return LayerMemory(keys, values, keys, values, None)


def free_blocks(rows: list[Row], blocks: int) -> list[int]:
    held = {block for row in rows for block in row.session.lane.table.values()}
    return [block for block in range(blocks) if block not in held]


SHAPES = [  # group, head size, block size, (most tokens of a row, tokens of a task, splits)
    (group, head_size, block_size, cut)
    for group in (1, 3, 7, 8)
    for head_size in (64, 128)
    for block_size in (8, 16, 64)
    for cut in ((1, 1, 1), (1, 1, 5), (40, 1, 2), (40, 9, 1))
]


@pytest.mark.parametrize("shape", SHAPES if DEVICE == "cuda" else SHAPES[::13], ids=str)
def test_attention(shape: tuple[int, int, int, tuple[int, int, int]]) -> None:
    group, head_size, block_size, (most, tokens_a_task, splits) = shape
    torch.manual_seed(group)
    kv_heads, blocks = 2, 3000 // block_size + 200
    rows = some_rows(BlockPool(blocks, block_size), random.Random(str(shape)), 5, most)
    pool = KvPool(1, blocks, block_size, kv_heads, head_size, torch.float32)
    keys, values = (torch.randn(pool.keys[0].shape) for _ in range(2))
    free = free_blocks(rows, blocks + 1)
    keys[:, free] = values[:, free] = float("nan")
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(sum(lengths), kv_heads * group, head_size) for _ in range(2))
    want = attend_plain(own, to_sinks, keys, values, plan(lanes, lengths, pool, group))
    got = ask(plain_memory(keys, values), (own, to_sinks), rows, tokens_a_task, splits)
    assert off(got, want) < 1e-5


@pytest.mark.parametrize("most", [1, 40])
@pytest.mark.parametrize("block_size", [16, 64])
def test_attention_over_narrow_windows_and_wide_sinks(most: int, block_size: int) -> None:
    """The plain twin reads numbers that were widened again, and sinks in their own places."""
    torch.manual_seed(most)
    blocks = 3000 // block_size + 200
    accounts = BlockPool(blocks, block_size, pinned=60)
    rows = some_rows(accounts, random.Random(most), 5, most)
    pool = KvPool(1, blocks, block_size, 2, 64, torch.float32)
    wide = [torch.randn(pool.keys[0].shape) for _ in range(2)]
    scales = [tensor.abs().amax(-1) / 448 for tensor in wide]
    narrow = [(tensor / scale.unsqueeze(-1)).to(FP8) for tensor, scale in zip(wide, scales, strict=True)]
    sinks = [torch.randn(2, 61, block_size, 64) for _ in range(2)]
    plain = [tensor.float() * scale.unsqueeze(-1) for tensor, scale in zip(narrow, scales, strict=True)]
    for lane in (row.session.lane for row in rows):
        for p in range(min(lane.reach[1], lane.length)):
            at, within = p // block_size, p % block_size
            for tensor, apart in zip(plain, sinks, strict=True):
                tensor[:, lane.table[at], within] = apart[:, lane.pinned[at], within]
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(sum(lengths), 6, 64) for _ in range(2))
    want = attend_plain(own, to_sinks, plain[0], plain[1], plan(lanes, lengths, pool, 3))
    keys, values, sink_keys, sink_values = (tensor.to(DEVICE) for tensor in (*narrow, *sinks))
    there = scales[0].to(DEVICE), scales[1].to(DEVICE)
    memory = LayerMemory(keys, values, sink_keys, sink_values, there)
    for tokens, splits in ((1, 3), (1, 1)) if most == 1 else ((9, 1),):
        assert off(ask(memory, (own, to_sinks), rows, tokens, splits), want) < 1e-5


@on_a_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_rounds_no_more_than_its_numbers(dtype: torch.dtype) -> None:
    rows = some_rows(BlockPool(200, 16), random.Random(1), 8, 1)
    pool = KvPool(1, 200, 16, 4, 128, torch.float32)
    keys, values = (torch.randn(pool.keys[0].shape).to(dtype) for _ in range(2))
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(sum(lengths), 28, 128).to(dtype) for _ in range(2))
    want = attend_plain(own.double(), to_sinks.double(), keys, values, plan(lanes, lengths, pool, 7))
    got = ask(plain_memory(keys, values), (own, to_sinks), rows, 1, 1)
    assert off(got, want) < (1e-2 if dtype == torch.bfloat16 else 2e-3)


@pytest.mark.parametrize("count", [70, 140, 200] if DEVICE == "cuda" else [70])
@pytest.mark.parametrize("block_size", [16, 64])
def test_attention_of_many_rows(count: int, block_size: int) -> None:
    """Each number of rows gets tiles of its own: for one wave of programs, for one that is held to fewer
    registers, for several."""
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # which the interpreter rounds well
    blocks = count * (2000 // block_size + 3)
    rows = some_rows(BlockPool(blocks, block_size), random.Random(count), count, 100)
    rows = [row_of(row.session.lane, 1) for row in rows]
    pool = KvPool(1, blocks, block_size, 4, 128, torch.float32)
    torch.manual_seed(count)
    keys, values = (torch.randn(pool.keys[0].shape).to(dtype) for _ in range(2))
    free = free_blocks(rows, blocks + 1)
    keys[:, free] = values[:, free] = float("nan")
    lanes, lengths = [row.session.lane for row in rows], [row.tokens for row in rows]
    own, to_sinks = (torch.randn(count, 28, 128).to(dtype) for _ in range(2))
    want = attend_plain(own.double(), to_sinks.double(), keys, values, plan(lanes, lengths, pool, 7))
    got = ask(plain_memory(keys, values), (own, to_sinks), rows, 1, 1)
    assert off(got, want) < (1e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("size", [48, 2048, 3584])
@pytest.mark.parametrize("parts", [0, 1, 8])
def test_add_norm(size: int, parts: int) -> None:
    hidden, weight = torch.randn(5, size, device=DEVICE), torch.randn(size, device=DEVICE)
    added = None if parts == 0 else torch.randn(5, parts, size, device=DEVICE).squeeze(1)
    summed = hidden if added is None else hidden + added.view(5, parts, size).sum(1)
    want = torch.nn.functional.rms_norm(summed, (size,), weight, 1e-6)
    assert off(add_norm(hidden, added, weight, 1e-6), want) < 1e-6
    assert off(hidden, summed) < 1e-6


def test_silu_mul() -> None:
    gate_up = torch.randn(3, 2 * 5000, device=DEVICE)
    assert off(silu_mul(gate_up), swiglu(gate_up)) < 1e-6


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    ("queries", "kv_heads", "size"), [(6, 2, 64), (32, 4, 128), (32, 32, 128), (9, 3, 64)]
)
def test_rotate_write(normed: bool, queries: int, kv_heads: int, size: int) -> None:
    tokens = 7
    qkv = torch.randn(tokens, (queries + 2 * kv_heads) * size, device=DEVICE)
    norms = (torch.rand(size, device=DEVICE), torch.rand(size, device=DEVICE)) if normed else None
    cos, sin, sink_cos, sink_sin = (torch.randn(tokens, size // 2, device=DEVICE) for _ in range(4))
    place = torch.randperm(5 * 16, device=DEVICE)[:tokens]
    keys, values = (torch.zeros(kv_heads, 5, 16, size, device=DEVICE) for _ in range(2))
    memory = LayerMemory(keys, values, keys, values, None)
    turns = (cos, sin, sink_cos, sink_sin)
    own, to_sinks = rotate_write(qkv, norms, turns, (place, None), memory, queries, 1e-6)

    q, k, v = qkv.view(tokens, -1, size).split((queries, kv_heads, kv_heads), dim=1)
    if norms:
        q, k = (torch.nn.functional.rms_norm(x, (size,), n, 1e-6) for x, n in zip((q, k), norms, strict=True))
    assert off(own, _turn(q, cos, sin)) < 1e-5
    assert off(to_sinks, _turn(q, sink_cos, sink_sin)) < 1e-5
    assert off(keys.flatten(1, 2)[:, place].transpose(0, 1), _turn(k, cos, sin)) < 1e-5
    assert torch.equal(values.flatten(1, 2)[:, place].transpose(0, 1), v)
    assert int((keys != 0).any(-1).sum()) == tokens * kv_heads


def test_sinks_are_written_wide_and_apart_others_narrow() -> None:
    tokens, size = 4, 64
    qkv = torch.randn(tokens, 4 * size, device=DEVICE)
    cos, sin, sink_cos, sink_sin = (torch.randn(tokens, size // 2, device=DEVICE) for _ in range(4))
    place = torch.tensor([40, 40, 3, 7], device=DEVICE)  # sinks go to scratch, the last of five blocks
    sink_place = torch.tensor([9, 2, -1, -1], device=DEVICE)
    keys, values = (torch.zeros(1, 5, 10, size, device=DEVICE).to(FP8) for _ in range(2))
    sink_keys, sink_values = (torch.zeros(1, 2, 10, size, device=DEVICE) for _ in range(2))
    scales = (torch.zeros(1, 5, 10, device=DEVICE), torch.zeros(1, 5, 10, device=DEVICE))
    memory = LayerMemory(keys, values, sink_keys, sink_values, scales)
    turns = (cos, sin, sink_cos, sink_sin)
    rotate_write(qkv, None, turns, (place, sink_place), memory, 2, 1e-6)

    _, k, v = qkv.view(tokens, -1, size).split((2, 1, 1), dim=1)
    turned = _turn(k, cos, sin)[:, 0]
    assert off(sink_keys.flatten(0, 2)[[9, 2]], turned[:2]) < 1e-6
    assert torch.equal(sink_values.flatten(0, 2)[[9, 2]], v[:2, 0])
    for memory_of, scale_of, wide in ((keys, scales[0], turned[2:]), (values, scales[1], v[2:, 0])):
        scale = scale_of.flatten()
        tightest = wide.abs().amax(-1) / 448  # under which the largest number is the largest of FP8
        assert ((tightest * (1 - 1e-6) <= scale[[3, 7]]) & (scale[[3, 7]] < 2 * tightest)).all()
        assert int((scale != 0).sum()) == 2
        assert int((memory_of.float() != 0).any(-1).sum()) == 2
        if DEVICE == "cuda":
            read = memory_of.float().flatten(0, 2)[[3, 7]] * scale[[3, 7]].unsqueeze(-1)
            plain = (wide / tightest[:, None]).to(FP8).float() * tightest[:, None]
            assert off(read, wide) < off(plain, wide) < 0.04  # three bits after the first


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
        torch.randn(count, size, device=DEVICE),
        torch.randn(count, 2 * inner, size, device=DEVICE) / size**0.5,
        torch.randn(count, size, inner, device=DEVICE) / inner**0.5,
        top,
        normed,
    )
    x = torch.randn(tokens, size, device=DEVICE)
    got = experts(x, plain)
    assert off(got.sum(1), plain(x)) < 1e-5


def test_experts_that_nobody_and_everybody_chose() -> None:
    count, size, inner = 16, 64, 64
    router = torch.zeros(count, size, device=DEVICE)
    router[3], router[7] = 1.0, 0.5  # everybody's first and second choice
    plain = Experts(
        router,
        torch.randn(count, 2 * inner, size, device=DEVICE),
        torch.randn(count, size, inner, device=DEVICE),
        2,
        True,
    )
    x = torch.rand(300, size, device=DEVICE)
    got = experts(x, plain)
    assert off(got.sum(1), plain(x)) < 1e-5


def test_no_expert_is_read_for_padding() -> None:
    count, size, inner, real = 16, 64, 64, torch.tensor([5], dtype=torch.int32, device=DEVICE)
    torch.manual_seed(0)
    plain = Experts(
        torch.randn(count, size, device=DEVICE),
        torch.randn(count, 2 * inner, size, device=DEVICE),
        torch.randn(count, size, inner, device=DEVICE),
        2,
        True,
    )
    x = torch.randn(8, size, device=DEVICE)
    x[5:] = float("nan")
    chosen, _ = choose_experts(F.linear(x, plain.router), 2, True, real)
    assert (chosen[:10] < count).all()
    assert (chosen[10:] == count).all()
    assert off(experts(x, plain, real)[:5].sum(1), plain(x[:5])) < 1e-5


@pytest.mark.parametrize("count", [16, 24])
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_token_that_is_no_number_chooses_experts_that_are_there(count: int, broken: float) -> None:
    """What it chooses is where weights are read; each once, so that no other token's place is taken."""
    torch.manual_seed(0)
    size, inner, top = 64, 64, 3
    plain = Experts(
        torch.randn(count, size, device=DEVICE),
        torch.randn(count, 2 * inner, size, device=DEVICE),
        torch.randn(count, size, inner, device=DEVICE),
        top,
        True,
    )
    x = torch.randn(4, size, device=DEVICE)
    x[1, 5] = broken
    chosen, _ = choose_experts(F.linear(x, plain.router), top, True)
    assert chosen.view(4, top)[1].tolist() == list(range(top))
    got = experts(x, plain).sum(1)
    assert got[1].isnan().all()
    assert off(got[[0, 2, 3]], plain(x[[0, 2, 3]])) < 1e-5


@pytest.mark.parametrize(("size", "columns"), [(96, 70), (2048, 8), (3000, 300), (9000, 6)])
def test_products_of_one_row(size: int, columns: int) -> None:
    torch.manual_seed(size)
    x = torch.randn(1, size, device=DEVICE)
    weight = torch.randn(2 * columns, size, device=DEVICE) / size**0.5
    bias, norm = torch.randn(2 * columns, device=DEVICE), torch.randn(size, device=DEVICE)
    normed = F.rms_norm(x, (size,), norm, 1e-5)
    assert off(product(x, weight), F.linear(x, weight)) < 1e-5
    assert off(product(x, weight, bias=bias, norm=(norm, 1e-5)), F.linear(normed, weight, bias)) < 1e-5
    assert off(product(x, weight, norm=(norm, 1e-5), gated=True), swiglu(F.linear(normed, weight))) < 1e-5
    residual = torch.randn(1, 2 * columns, device=DEVICE)
    want = residual + F.linear(x, weight)
    assert product(x, weight, to=residual) is residual
    assert off(residual, want) < 1e-5


@pytest.mark.parametrize("normed", [False, True])
def test_experts_of_one_row(normed: bool) -> None:
    torch.manual_seed(0)
    count, size, inner = 24, 200, 300
    mlp = Experts(
        torch.randn(count, size, device=DEVICE),
        torch.randn(count, 2 * inner, size, device=DEVICE) / size**0.5,
        torch.randn(count, size, inner, device=DEVICE) / inner**0.5,
        5,
        normed,
    )
    x, norm = torch.randn(1, size, device=DEVICE), torch.randn(size, device=DEVICE)
    want = x + mlp(F.rms_norm(x, (size,), norm, 1e-5))
    add_experts(x, (norm, 1e-5), mlp)
    assert off(x, want) < 1e-5


@pytest.mark.parametrize("vocab", [9001, 151_936] if DEVICE == "cuda" else [9001])
def test_greedy_and_drawn_tokens(vocab: int) -> None:
    spread = 3 if vocab < 10_000 else 10  # of many like tokens rounding decides which one is drawn
    settings = [
        Sampling(),
        Sampling(suppress=(5, 17)),
        Sampling(temperature=1.0, seed=1),
        Sampling(temperature=0.7, top_p=0.9, seed=2, suppress=(5, 17)),
        Sampling(temperature=1.5, top_p=0.3, seed=3),
    ]
    torch.manual_seed(0)
    banned = torch.zeros((2, vocab), dtype=torch.uint8, device=DEVICE)
    banned[1, [5, 17]] = 1
    ban = torch.tensor([int(bool(s.suppress)) for s in settings], dtype=torch.int32, device=DEVICE)
    choosers, again = ([Chooser(s) for s in settings] for _ in range(2))
    same = 0
    for _ in range(40):
        logits = spread * torch.randn(len(settings), vocab)
        logits[0, 5] = logits[1, 5] = 100.0
        numbers = [
            (c.sampling.temperature, c.sampling.top_p, c.uniform() if c.sampling.temperature else 0.0)
            for c in choosers
        ]
        out = torch.zeros(len(settings), dtype=torch.int64, device=DEVICE)
        sample(logits.to(DEVICE), banned, ban, torch.tensor(numbers).to(DEVICE), out)
        want = choose(logits, again)
        assert out[0] == 5
        assert torch.equal(out[:2].cpu(), want[:2])
        same += int((out.cpu() == want).sum())
    assert same >= 40 * len(settings) - 3  # sums of shares may differ in the last bit where a draw falls


@pytest.mark.parametrize("vocab", [1, 2, 8191, 8192, 8193])
def test_tokens_at_the_edges(vocab: int) -> None:
    """Ties, one id alone, infinities: the plain twin says the same."""
    torch.manual_seed(vocab)
    last, alike = vocab - 1, (torch.randn(vocab) * 2).round()
    peak = torch.where(torch.arange(vocab) == vocab // 2, 1e30, alike)
    endless = torch.where(torch.arange(vocab) == vocab // 2, torch.inf, alike)
    banned = torch.zeros((2, vocab), dtype=torch.uint8)
    banned[1, :last] = 1
    cases = [  # logits, temperature, top-p, uniform number, whether all but the last id are banned
        (logits, temperature, top_p, uniform, ban)
        for logits in (alike, torch.zeros(vocab), peak, endless, torch.full((vocab,), -torch.inf))
        for temperature, top_p, uniform in (
            (0.0, 1.0, 0.0),
            (0.05, 1.0, 0.49),
            (1.0, 0.7, 0.0),
            (10.0, 0.2, 0.49),
        )
        for ban in (False, True)
    ]
    choosers = []
    for _, temperature, top_p, uniform, ban in cases:
        choosers.append(Chooser(Sampling(temperature, top_p, suppress=tuple(range(last)) if ban else ())))
        choosers[-1]._returned = uniform
    logits = torch.stack([case[0] for case in cases])
    sets = torch.tensor([case[4] for case in cases], dtype=torch.int32, device=DEVICE)
    settings = torch.tensor([case[1:4] for case in cases], device=DEVICE)
    out = torch.full((len(cases),), -1, device=DEVICE)
    sample(logits.to(DEVICE), banned.to(DEVICE), sets, settings, out)
    want = choose(logits, choosers)
    wrong = [case[1:] for case, one, other in zip(cases, out.tolist(), want, strict=True) if one != other]
    assert not wrong
