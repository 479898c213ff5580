"""When each word was heard, read off Whisper's attention.

Knows:   tokens and their texts, where the alignment heads looked for each, 20 ms positions.
Ignores: the model that looked, the call, and what is done with the words.

Shapes:  K alignment heads, T tokens, A audio positions (20 ms).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

POSITION_S = 0.02
ECHO_S = 1.0  # true words look back at most 0.3 s (punctuation aside), a loop at once 1.4 s or more
LOST, REPEATED = 6, 3  # tokens of an echo after which only echoes come, if so many tokens were there before
_PUNCTUATION = " .,;:!?\u2026'\"-\u2013\u2014"  # with ellipsis, en dash, em dash
_SMOOTH = 7  # positions of the median filter, as many as in openai-whisper's own alignment


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the punctuation after it. Times in seconds of the call; `end` is the spoken part's."""

    text: str
    tokens: tuple[int, ...]
    spoken: int  # how many of the tokens are no trailing punctuation
    start: float
    end: float

    def without_punctuation(self) -> Word:
        """The spoken part: at the edge of what was heard, the punctuation is only Whisper's guess."""
        return replace(self, text=self.text.rstrip(_PUNCTUATION), tokens=self.tokens[: self.spoken])


def timed_words(
    tokens: Sequence[int],
    known: int,
    attention_KTA: NDArray[np.float32],
    text_of: Callable[[Sequence[int]], str],
    origin_s: float = 0.0,
) -> list[Word]:
    """The words of tokens[known:] up to the first that is an echo; the first position lies at `origin_s`.

    Whisper that has run out of speech likes to say again what it said before. It then looks back at the audio
    of that time, which true words never do. `attention_KTA` may have one row more than tokens: the end token.
    """
    pieces = [text_of([token]) for token in tokens]
    stop = _first_echo(pieces, known, _focus(attention_KTA).argmax(-1))
    rows = attention_KTA.shape[1] if stop == len(tokens) else stop
    if stop <= known or rows > attention_KTA.shape[2]:
        return []
    times = origin_s + _bounds(_focus(attention_KTA[:, :rows])) * POSITION_S
    begins = [at for at in range(known, stop) if at == known or _begins_word(pieces[at])]
    words = []
    for at, to in zip(begins, [*begins[1:], stop], strict=True):
        spoken = _spoken(pieces[at:to])
        text = text_of(tokens[at:to]).strip()
        words.append(Word(text, tuple(tokens[at:to]), spoken, float(times[at]), float(times[at + spoken])))
    return words


def is_lost(
    tokens: Sequence[int],
    known: int,
    attention_KTA: NDArray[np.float32],
    text_of: Callable[[Sequence[int]], str],
) -> bool:
    """Whether a transcript that goes on will bring nothing but echoes. Arguments as for `timed_words`.

    One look back is not enough: a transcript that has only begun offers little to compare a look with.
    """
    tail = list(tokens[-REPEATED:])
    if not any(list(tokens[at : at + REPEATED]) == tail for at in range(len(tokens) - REPEATED)):
        return False
    pieces = [text_of([token]) for token in tokens]
    return len(tokens) - _first_echo(pieces, known, _focus(attention_KTA).argmax(-1)) >= LOST


def is_spoken(text: str) -> bool:
    """Whether there is more to it than punctuation."""
    return bool(text.strip(_PUNCTUATION))


def _begins_word(piece: str) -> bool:
    return piece.startswith(" ") and is_spoken(piece)


def _spoken(pieces: Sequence[str]) -> int:
    """How many of a word's pieces come before its trailing punctuation; at least one."""
    return max((at + 1 for at, piece in enumerate(pieces) if is_spoken(piece)), default=1)


def _first_echo(pieces: Sequence[str], known: int, looks_T: NDArray[np.intp]) -> int:
    """The first token of the first word from `known` on that looks back; len(pieces) when none does."""
    furthest = 0
    for at, piece in enumerate(pieces):
        if not is_spoken(piece):
            continue  # punctuation looks anywhere
        if at >= known and (furthest - looks_T[at]) * POSITION_S > ECHO_S:
            return max([known, *(start for start in range(at + 1) if _begins_word(pieces[start]))])
        furthest = max(furthest, int(looks_T[at]))
    return len(pieces)


def _focus(attention_KTA: NDArray[np.float32]) -> NDArray[np.float32]:
    """How much more than other tokens each one looks at each position [T, A], mean over the heads."""
    share_KTA = attention_KTA / attention_KTA.sum(-1, keepdims=True)
    spread_K1A = share_KTA.std(1, keepdims=True) + 1e-9
    focus_TA = ((share_KTA - share_KTA.mean(1, keepdims=True)) / spread_K1A).mean(0)
    smooth_TA: NDArray[np.float32] = median_filter(focus_TA, (1, _SMOOTH))
    return smooth_TA


def _bounds(focus_TA: NDArray[np.float32]) -> NDArray[np.intp]:
    """Positions where tokens begin, and the end of the last [T + 1]; every token gets one position or more.

    Of all ways to give every position to one token, in order, the one with the most focus. T <= A.
    """
    total_TA = focus_TA.astype(np.float64).cumsum(-1)
    positions = np.arange(focus_TA.shape[-1])
    best_A, entered = total_TA[0], []
    for total_A in total_TA[1:]:
        # Worth of beginning this token at each position, given the best way to get there.
        enter_A = np.concatenate([[-np.inf], best_A[:-1] - total_A[:-1]])
        best_so_far_A = np.maximum.accumulate(enter_A)
        entered.append(np.maximum.accumulate(np.where(enter_A == best_so_far_A, positions, 0)))
        best_A = total_A + best_so_far_A
    bounds = [len(positions)]
    for entered_A in reversed(entered):
        bounds.append(int(entered_A[bounds[-1] - 1]))
    return np.array([0, *reversed(bounds)])
