"""A checkpoint's chat format, cut into the pieces that a live call needs one at a time.

Knows:   the tokenizer, its chat template, its end tokens.
Ignores: sessions, the engine, when anybody speaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from transformers import AutoTokenizer

from ..engine.config_file import read_json, readable
from ..errors import AssetError

# What a turn follows: nothing, an open answer, an end token; "turn": it goes on, for it is open already.
After = Literal["header", "answer", "end", "turn"]

_TOLD, _ASKED, _ANSWERED, _ASKED_AGAIN = (
    "qqZEROqq",
    "qqONEqq",
    "qqTWOqq",
    "qqTHREEqq",
)  # stand-ins that no template alters


def load_tokenizer(folder: Path) -> Any:
    """transformers' tokenizer of a checkpoint folder, by the class that the folder names."""
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


class Chat:
    """Token ids of a call's header, of each user turn, and text of what the model says.

    A call is `header`, then `turn(...)` and the model's own tokens in alternation.
    """

    def __init__(self, folder: Path, header: str, load: Callable[[Path], Any] = load_tokenizer) -> None:
        self._folder = folder
        with readable(folder, "tokenizer with a chat template"):
            tokenizer = load(folder)
            if tokenizer.chat_template is None:
                tokenizer.chat_template = _template_beside(folder)
            system = [{"role": "system", "content": header}]
            asked = [*system, {"role": "user", "content": _ASKED}]
            again = [
                *asked,
                {"role": "assistant", "content": _ANSWERED},
                {"role": "user", "content": _ASKED_AGAIN},
            ]
            blank = [{"role": "system", "content": _TOLD}]
            head, around, prompted, whole = (
                str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt))
                for messages, prompt in ((system, False), (blank, False), (system, True), (again, True))
            )
        self._tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self._plain = Tokenizer.from_str(self._tokenizer.to_str())
        self._plain.encode_special_tokens = True  # typed text must not be able to end a turn
        self._end_text = str(tokenizer.eos_token)
        self.header = self._encode(head)
        self._head_around = around.split(_TOLD)
        self.opening = self._encode(prompted.removeprefix(head))  # from the header straight to an answer
        rest = whole.removeprefix(head)
        with readable(folder, "chat template"):
            self._first_turn, rest = rest.split(_ASKED)
            answer, rest = rest.split(_ANSWERED)
            self._next_turn, _ = rest.split(_ASKED_AGAIN)
        self.asks = self._encode(answer)  # from the end of a user's words to where the model answers
        self._named = partial(getattr, tokenizer)
        self.special = tuple(tokenizer.all_special_ids)
        self.ends = frozenset(_end_ids(folder, tokenizer.eos_token_id))

    def check_known(self, tokens: int) -> None:
        """AssetError when a text could become an id that a model of so many `tokens` has no embedding for.

        Special ones that no text becomes may be beyond: one that fills batches up often is.
        """
        plain = self._plain.get_vocab(with_added_tokens=False)
        added = self._plain.get_added_tokens_decoder()
        known = {number for number, token in added.items() if not token.special} | set(plain.values())
        around = [self.header, self.opening, self.asks, self.opens("header"), self.opens("answer")]
        if (most := max(known.union(*around))) >= tokens:
            text = self._plain.id_to_token(most)
            cure = f"its tokenizer writes {text!r} as {most}, and the model knows {tokens} tokens"
            raise AssetError(f"{self._folder}: {cure}: its embeddings have to be resized for that")

    def token(self, name: str) -> int:
        """The id of the special token that tokenizer_config.json calls `name`, as `audio_bos_token`."""
        token = self._named(name, None)
        number = None if token is None else self._tokenizer.token_to_id(str(token))
        if number is None:
            raise AssetError(f"{self._folder}: its tokenizer has no {name}: download the model's files again")
        return number

    def instruct(self, text: str) -> list[int]:
        """The header of a session that brings instructions of its own; they cannot end it."""
        before, after = self._head_around
        return self._encode(before) + self.inside(text) + self._encode(after)

    def turn(self, text: str, after: After) -> list[int]:
        """Ids of a user's turn up to where the model answers, closing the answer that it interrupts."""
        return self.opens(after) + self.inside(text) + self.asks

    def opens(self, after: After) -> list[int]:
        """Ids that begin a user's turn, closing the answer that it interrupts."""
        if after == "turn":
            return []
        before = self._first_turn if after == "header" else self._next_turn
        return self._encode(before.removeprefix(self._end_text) if after == "end" else before)

    def stream(self) -> Stream:
        """A new decoder of what one session says."""
        return Stream(self._tokenizer)

    def inside(self, text: str) -> list[int]:
        """Ids of what somebody typed; none of them is special."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class Stream:
    """Tokens to text, one at a time; a character that is not complete yet waits for the next token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)

    def text(self, token: int) -> str:
        return self._decoder.step(self._tokenizer, token) or ""


def _template_beside(folder: Path) -> str | None:
    """The template that a model with a processor keeps in a file of its own; None where there is none."""
    file = folder / "chat_template.json"
    return str(json.loads(file.read_text("utf-8"))["chat_template"]) if file.exists() else None


def _end_ids(folder: Path, eos: int) -> Iterable[int]:
    """The tokenizer's end token and those of generation_config.json, which may list several."""
    yield eos
    if (folder / "generation_config.json").exists():
        found = read_json(folder, "generation_config.json").get("eos_token_id") or []
        more = found if isinstance(found, list) else [found]
        if not all(isinstance(number, int) for number in more):
            cure = "use the number of a token, or a list of such"
            raise AssetError(f"{folder}: generation_config.json says eos_token_id = {found!r}: {cure}")
        yield from more
