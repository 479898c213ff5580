"""Perplexity through the rolling cache, against plain decoders that see the whole text at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from metronome_cli.errors import AssetError, FieldError, NotMeasured
from metronome_cli.models import perplexity
from metronome_cli.models.assets import locate
from metronome_cli.models.perplexity import BLOCK, PIECE, Scorer, load_judge, memory_needed
from metronome_cli.window import Policy, Positions, Recycle, Unbounded, Window, most_blocks, sees

from ..engine.reference import Reference
from .tiny import save_tiny_chat

pytestmark = pytest.mark.usefixtures("one_thread")
IDS = torch.randint(0, 250, (300,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module")
def scorer(tiny_chat: Path) -> Scorer:
    return Scorer(tiny_chat)


def by_hand(folder: Path, ids: list[int], policy: Policy, positions: Positions) -> np.ndarray:
    """The same figures by a masked forward over the whole text, in float64."""

    def stand(t: int, p: int) -> int:
        if positions == "absolute" or not isinstance(policy, Window) or p >= policy.sinks:
            return t
        return min(t, policy.sinks + policy.window - 1)

    reference = Reference(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    logits = reference.masked_logits(ids[:-1], lambda t, p: sees(policy, t, p), stand)
    losses = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    return losses.detach().numpy()


@pytest.mark.parametrize(
    ("policy", "positions"),
    [
        (Unbounded(), "anchored"),
        (Window(20, 4), "anchored"),
        (Window(20, 4), "absolute"),
        (Window(9), "absolute"),
    ],
)
def test_every_token_costs_what_a_masked_forward_over_the_whole_text_says(
    scorer: Scorer, tiny_chat: Path, policy: Policy, positions: Positions
) -> None:
    ids = IDS[:150]
    scored = scorer.nll(ids, policy, positions)
    assert scored.nll.dtype == np.float64
    np.testing.assert_allclose(scored.nll, by_hand(tiny_chat, ids, policy, positions), atol=1e-4)


def test_the_pool_is_the_bound_and_holds(scorer: Scorer) -> None:
    policy = Window(40, 4)
    scored = scorer.nll(IDS, policy)
    assert scored.blocks_bound == most_blocks(policy, BLOCK, PIECE)
    assert 0 < scored.blocks_peak <= scored.blocks_bound < -(-len(IDS) // BLOCK)


@pytest.mark.parametrize("shared_kv", [0, 2**20])
def test_company_changes_nothing_in_what_a_text_costs(tiny_chat: Path, shared_kv: int) -> None:
    scorer = Scorer(tiny_chat, shared_kv=shared_kv)  # 0: each text by itself
    texts = [IDS, IDS[40:57], IDS[100:102], IDS[7:200]]
    for policy in (Window(20, 4), Recycle(60), Unbounded()):
        together = scorer.nll_of_all(texts, policy)
        for text, scored in zip(texts, together, strict=True):
            np.testing.assert_allclose(scored.nll, scorer.nll(text, policy).nll, atol=1e-5)


def test_a_recycled_session_forgets_at_its_boundary_and_not_before(scorer: Scorer) -> None:
    recycled, full = scorer.nll(IDS, Recycle(60, 20)).nll, scorer.nll(IDS, Unbounded()).nll
    # It appends 40 tokens at a time, and the second append does not fit beside the first.
    np.testing.assert_allclose(recycled[:40], full[:40], atol=1e-5)
    assert np.abs(recycled[40:] - full[40:]).max() > 0.1


def test_a_judge_has_the_whole_context_and_judges_the_reply_alone(scorer: Scorer) -> None:
    judged = scorer.nll_of(IDS[:150], IDS[150:170])
    np.testing.assert_allclose(judged, scorer.nll(IDS[:170], Unbounded()).nll[149:], atol=1e-6)
    assert len(scorer.nll_of(IDS[:5], [])) == 0


def test_a_text_of_one_token_and_a_reply_to_nothing_are_refused(scorer: Scorer) -> None:
    with pytest.raises(FieldError, match="2 tokens or more"):
        scorer.nll(IDS[:1], Unbounded())
    with pytest.raises(FieldError, match="context"):
        scorer.nll_of([], IDS)


def test_a_text_becomes_its_own_tokens_and_nothing_around_them(scorer: Scorer) -> None:
    assert scorer.encode("Call me") + scorer.encode(" Ishmael") == scorer.encode("Call me Ishmael")
    assert scorer.encode("") == []


def test_a_checkpoint_without_a_tokenizer_is_refused_by_name(tiny_chat: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors"):
        (tmp_path / file).write_bytes((tiny_chat / file).read_bytes())
    with pytest.raises(AssetError, match=r"tokenizer\.json"):
        Scorer(tmp_path)


def test_a_judge_that_does_not_fit_is_refused_with_its_numbers_before_it_is_loaded(
    tiny_chat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = memory_needed(tiny_chat, "float32")
    monkeypatch.setattr(perplexity, "free_memory", lambda: needed - 1)
    monkeypatch.setattr(perplexity, "load_decoder", lambda *_: pytest.fail("it was loaded"))
    with pytest.raises(
        NotMeasured, match=r"needs [\d.]+ GiB as float32, and [\d.]+ GiB are free: .*--judge"
    ) as told:
        load_judge(str(tiny_chat))
    assert str(tiny_chat) in str(told.value)


def test_a_judge_that_fits_judges_as_its_own_scorer_does(tiny_chat: Path, scorer: Scorer) -> None:
    judge = load_judge(str(tiny_chat), free=memory_needed(tiny_chat, "float32"))
    np.testing.assert_array_equal(judge.nll_of(IDS[:9], IDS[9:20]), scorer.nll_of(IDS[:9], IDS[9:20]))


def test_memory_is_counted_from_the_weights_the_cache_and_the_logits(tiny_chat: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_chat)
    weights = sum(parameter.numel() for parameter in model.parameters())
    kv = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * 8
    logits = 2 * PIECE * model.config.vocab_size * 4
    assert memory_needed(tiny_chat, "float32", tokens=100) == 4 * weights + 4 * 100 * kv + logits
    assert memory_needed(tiny_chat, "bfloat16", tokens=100) == 2 * weights + 2 * 100 * kv + logits


@pytest.mark.assets("smollm2-135m-instruct", "moby-dick")
def test_real_weights_lose_their_footing_without_their_first_tokens() -> None:
    scorer = Scorer(locate("smollm2-135m-instruct"))
    ids = scorer.encode((locate("moby-dick") / "data.txt").read_text("utf-8")[:2000])[:160]
    full, pinned, dropped = (
        np.exp(scorer.nll(ids, policy).nll[32:].mean()) for policy in (Unbounded(), Window(28, 4), Window(32))
    )
    assert pinned < 1.3 * full
    assert dropped > 1.6 * full


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_card_gives_the_figures_of_the_cpu(tmp_path: Path) -> None:
    folder = save_tiny_chat(tmp_path, head_dim=16)  # the least that its kernels take
    texts = [IDS, IDS[:50]]
    policies: list[Policy] = [Window(20, 4), Recycle(60), Unbounded()]
    scorer = Scorer(folder)
    want = [scored for policy in policies for scored in scorer.nll_of_all(texts, policy)]
    torch.set_default_device("cuda")
    try:
        on_card = Scorer(folder)
        got = [scored for policy in policies for scored in on_card.nll_of_all(texts, policy)]
    finally:
        torch.set_default_device("cpu")
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one.nll, other.nll, atol=1e-3)
