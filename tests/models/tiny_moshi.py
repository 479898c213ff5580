"""A tiny random Moshi as transformers saves it: every part, every kind of layer, weights far from trivial."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import MoshiConfig, MoshiForConditionalGeneration, PreTrainedTokenizerFast

TEXTS = 60  # ids; 0 to 3 are special
BOOKS = 4
CODES = 32
SEEN = 10  # steps of the codec's windows: five frames

CODEC = {
    "model_type": "mimi",
    "hidden_size": 32,
    "num_filters": 4,
    "num_quantizers": 6,
    "codebook_size": CODES,
    "codebook_dim": 16,
    "vector_quantization_hidden_dimension": 16,
    "upsample_groups": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "sliding_window": SEEN,
}
DEPTH = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 40}


def tiny_config() -> MoshiConfig:
    return MoshiConfig(
        vocab_size=TEXTS,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=96,
        num_codebooks=BOOKS,
        audio_encoder_config=dict(CODEC),
        depth_decoder_config=dict(DEPTH),
    )


def save_tiny_moshi(folder: Path) -> MoshiForConditionalGeneration:
    """Write it into `folder`, with a tokenizer of words of one letter."""
    torch.manual_seed(0)
    model: MoshiForConditionalGeneration = MoshiForConditionalGeneration(tiny_config()).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if (
                ".conv." in name
            ):  # as transformers draws them, but the last: sound that clips compares nothing
                weight.mul_(0.02 if len(weight) == 1 else 1)
                continue
            if name.endswith(("norm.weight", "norm.bias")):
                weight.uniform_(0.5, 1.5)
            elif name.endswith(".scale"):
                weight.uniform_(0.2, 0.6)
            else:
                weight.normal_(0, 1 if "embed" in name else weight.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if name.endswith("embed_sum"):
                buffer.normal_(0, 2)
            elif name.endswith("cluster_usage"):
                buffer.uniform_(0.5, 2)
    for module in model.modules():
        if hasattr(module, "embed_sum"):
            object.__setattr__(module, "_embed", None)  # made of what it was before
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    special = ["<epad>", "<s>", "</s>", "<pad>"]
    pieces = special + [f"▁{chr(ord('a') + number % 26)}{number}" for number in range(4, TEXTS)]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, "<epad>"))
    tokenizer.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<epad>", bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
