"""The decoder against transformers, full attention."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from metronome_cli.engine.engine import Engine
from metronome_cli.engine.weights import load_decoder
from metronome_cli.errors import AssetError
from metronome_cli.models.assets import locate
from metronome_cli.window import Unbounded

from .conftest import Tiny, save_tiny

LONG_TEXT = (
    "It is a truth seldom doubted that a call which lasts an hour must cost no more than its first minute. "
)


def logits_of(folder: Path, ids: torch.Tensor, piece: int = 32) -> torch.Tensor:
    engine = Engine(load_decoder(folder), blocks=64, block_size=16, max_append=piece)
    session = engine.open(Unbounded())
    assert session is not None
    hidden = [engine.step([session], [len(part)], part).hidden for part in ids.split(piece)]
    return engine.decoder.logits(torch.cat(hidden))


def largest_difference(folder: Path, model: torch.nn.Module, ids: torch.Tensor) -> float:
    with torch.inference_mode():
        want = model(ids[None]).logits[0]
    return float((logits_of(folder, ids) - want).abs().max())


def test_tiny_checkpoints_of_every_family_give_transformers_logits(tiny: Tiny) -> None:
    ids = torch.randint(0, 97, (200,), generator=torch.Generator().manual_seed(1))
    assert largest_difference(tiny.folder, tiny.model, ids) < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ],
    ids=["tied", "linear-rope", "llama3-rope"],
)
def test_variants_of_a_checkpoint_give_transformers_logits(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    variant = save_tiny(tmp_path, "llama", **changes)
    ids = torch.randint(0, 97, (150,), generator=torch.Generator().manual_seed(2))
    assert largest_difference(tmp_path, variant.model, ids) < 1e-3


@pytest.mark.assets("smollm2-135m-instruct")
def test_real_weights_give_transformers_logits_over_512_tokens() -> None:
    folder = locate("smollm2-135m-instruct")
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(LONG_TEXT * 40)["input_ids"][:512])
    assert len(ids) == 512
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert largest_difference(folder, model, ids) < 1e-3


def test_a_sharded_checkpoint_loads_like_a_whole_one(tiny: Tiny, tmp_path: Path) -> None:
    tiny.model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    ids = torch.arange(40)
    torch.testing.assert_close(logits_of(tmp_path, ids), logits_of(tiny.folder, ids), rtol=0, atol=0)


def damaged(llama: Tiny, folder: Path, change: str) -> Path:
    """A copy of the checkpoint with one fault."""
    llama.model.save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    key = "model.layers.1.mlp.down_proj.weight"
    if change == "missing":
        del weights[key]
    elif change == "misshaped":
        weights[key] = weights[key][:, :-1].contiguous()
    elif change == "extra":
        weights["model.layers.1.mlp.extra.weight"] = weights[key].clone()
    save_file(weights, file, metadata={"format": "pt"})
    if change == "cut":
        file.write_bytes(file.read_bytes()[:-100])
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "layers.1.mlp.down_proj.weight is missing"),
        ("misshaped", "down_proj.weight has shape"),
        ("extra", "no place for.*mlp.extra.weight"),
        ("cut", "cannot read its safetensors"),
    ],
)
def test_a_faulty_checkpoint_is_refused_by_name(
    llama: Tiny, tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(AssetError, match=message):
        load_decoder(damaged(llama, tmp_path, change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "'gpt2' is not supported"),
        ({"model_type": "never-heard-of"}, "no readable config.json"),
        ({"mlp_bias": True}, "SwiGLU without biases"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}}, "rope_type 'yarn'"),
    ],
)
def test_another_architecture_is_refused_by_name(
    llama: Tiny, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    llama.model.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(AssetError, match=message):
        load_decoder(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"no readable config\.json"):
        load_decoder(tmp_path)
