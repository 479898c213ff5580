"""A tokenizer of a few hundred tokens for models with random weights, written into a folder.

Knows:   a chat format like Qwen's, and tokens around audio.
Ignores: what anybody says.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tokenizer(folder: Path, **named: str) -> None:
    """Bytes, the words of the chat format, and special tokens called as in `named`."""
    special = ["<|im_start|>", "<|im_end|>", *named.values()]
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "user", "assistant", "system"]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=special[0], eos_token=special[1], extra_special_tokens=named
    )
    wrapped.add_tokens(["user", "assistant", "system"])  # one token each, as Qwen has them
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
