"""Where attention lies, against transformers' own attentions and against the plain twin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from metronome_cli.engine.attention import attend_plain
from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.errors import AssetError, FieldError
from metronome_cli.models.attention_mass import FIRST, REPLY, AttentionMass, WatchedAttention, attention_mass
from metronome_cli.models.perplexity import opened
from metronome_cli.window import Unbounded

TOKENS = 400
TEXT = "It is a way I have of driving off the spleen. " * 40


@pytest.fixture(scope="module")
def found(tiny_chat: Path) -> AttentionMass:
    return attention_mass(tiny_chat, "Be brief.", "Why?", TEXT, TOKENS)


def test_the_mass_is_that_of_transformers_own_attentions(found: AttentionMass, tiny_chat: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_chat, attn_implementation="eager")
    with torch.inference_mode():
        attentions = model(torch.tensor([found.ids]), output_attentions=True).attentions
    want = torch.stack([layer[0, :, found.first_query :].mean(1) for layer in attentions])
    assert found.mass.shape == want.shape
    np.testing.assert_allclose(found.mass, want.numpy(), atol=1e-5)


def test_a_heads_shares_sum_to_one(found: AttentionMass) -> None:
    np.testing.assert_allclose(found.mass.sum(2), 1, atol=1e-5)


def test_the_watched_attention_computes_what_the_plain_twin_does(tiny_chat: Path) -> None:
    ids = torch.randint(0, 250, (40,), generator=torch.Generator().manual_seed(0))
    states = []
    for watched in (True, False):
        decoder = load_decoder(tiny_chat)
        decoder.attend = WatchedAttention(decoder.config, 40) if watched else attend_plain
        engine = Engine(decoder, 3, 16, 30)
        session = opened(engine, Unbounded())
        states.append(torch.cat([engine.step([session], [len(n)], n).hidden for n in ids.split(30)]))
    torch.testing.assert_close(*states, rtol=0, atol=1e-5)


def test_the_marks_stand_where_the_chats_parts_begin(found: AttentionMass, tiny_chat: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_chat / "tokenizer.json"))

    def text(start: int, end: int) -> str:
        return str(tokenizer.decode(found.ids[start:end], skip_special_tokens=False))

    marks = found.marks
    assert text(0, found.header) == "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert text(marks.content, marks.generated) == "Why?<|im_end|>\n<|im_start|>assistant\n"
    assert 0 < marks.text - marks.generated <= REPLY
    assert "<|im_start|>user\nIt is a way" in text(marks.text, marks.text + 60)
    assert found.first_query == max(FIRST, marks.text)
    assert len(found.ids) == len(found.spelled) == TOKENS


def test_the_generated_tokens_are_the_models_own(found: AttentionMass, tiny_chat: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_chat)
    begun, end = found.marks.generated, found.marks.text
    with torch.inference_mode():
        logits = model(torch.tensor([found.ids[:end]])).logits[0]
    assert logits[begun - 1 : end - 1].argmax(-1).tolist() == found.ids[begun:end]


def test_reading_is_told_of_as_it_goes_on(tiny_chat: Path) -> None:
    told: list[int] = []
    attention_mass(tiny_chat, "Be brief.", "Why?", TEXT, TOKENS, told.append)
    assert told == sorted(told)
    assert told[-1] == TOKENS


@pytest.mark.parametrize(
    ("text", "tokens", "message"), [("Too short.", TOKENS, "text"), (TEXT, 150, "tokens = 150")]
)
def test_a_short_text_and_a_short_chat_are_refused(
    tiny_chat: Path, text: str, tokens: int, message: str
) -> None:
    with pytest.raises(FieldError, match=message):
        attention_mass(tiny_chat, "Be brief.", "Why?", text, tokens)


def test_a_checkpoint_that_cannot_chat_is_refused(tiny_chat: Path, tmp_path: Path) -> None:
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / file).write_bytes((tiny_chat / file).read_bytes())
    with pytest.raises(AssetError, match="chat template"):
        attention_mass(tmp_path, "Be brief.", "Why?", TEXT, TOKENS)
