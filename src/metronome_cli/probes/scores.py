"""Scores of a reply as text: does it state the answer, and does it turn in circles?

Knows:   words, sentences, numbers in words and in digits, n-grams.
Ignores: audio, models, sessions; what one reply's score means for a window.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# fmt: off
_SMALL = {word: value for value, word in enumerate([
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
])}
_TENS = {word: 10 * value for value, word in enumerate([
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
], start=2)}
# fmt: on
_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_UNDER_100 = (
    rf"(?:(?:{'|'.join(_TENS)})(?: (?:{'|'.join(list(_SMALL)[1:10])}))?|(?:{'|'.join(_SMALL)})|\d{{1,15}})"
)
_GROUP = rf"(?:(?:{_UNDER_100} )?hundred(?: (?:and )?{_UNDER_100})?|{_UNDER_100})"
_SCALE = rf"(?:{'|'.join(_SCALES)})"
_NUMBER = re.compile(
    rf"(?<!\S)(?:{_GROUP} )?{_SCALE}(?: (?:and )?{_GROUP}(?: {_SCALE})?)*(?!\S)|(?<!\S){_GROUP}(?!\S)"
)

_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|\w+")
_ARTICLES = ("a", "an", "the")

_BREAK = re.compile(r"[.!?]+[\"')\]]*\s+|\n+")
# A full stop after these ends no sentence: titles, initials, and the number of a list's first entry.
_ABBREVIATED = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Mt|Prof|Jr|Sr|vs|[A-Z])|^\W*\d{1,2})\.\s*$")


def strict(reply: str, answers: Sequence[str]) -> bool:
    """Whether the first sentence of `reply` states one of `answers`, word for word.

    Words are compared without case, accents and punctuation, numbers by value ("twenty-four" is "24").
    What is said around the answer does not count: "not Paris" states Paris.
    """
    return lenient(first_sentence(reply), answers)


def lenient(reply: str, answers: Sequence[str]) -> bool:
    """Whether `reply` states one of `answers` anywhere, word for word."""
    said = plain(reply)
    return any(_holds(said, _without_article(plain(answer))) for answer in answers)


def first_sentence(text: str) -> str:
    """Up to the first end mark or line end that has words before it; all of `text` when there is none."""
    for found in _BREAK.finditer(text):
        before = text[: found.end()]
        if _WORD.search(before) and ("\n" in found.group() or not _ABBREVIATED.search(before)):
            return before.strip()
    return text.strip()


def plain(text: str) -> list[str]:
    """The words of `text` as they are compared: lower case, no accents, no punctuation, numbers as digits."""
    letters = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    letters = re.sub(r"(?<=\d),(?=\d{3}\b)", "", letters.casefold().replace("\u2019", "'"))
    words = (word.removesuffix("'s") for word in _WORD.findall(letters))
    return _NUMBER.sub(lambda found: str(_value(found.group().split())), " ".join(words)).split()


@dataclass(frozen=True, slots=True)
class Loops:
    """How much a text turns in circles. A text too short for an n-gram has none repeated."""

    repeated_trigrams: (
        float  # share of trigrams that stood there before, 0..1; 0 of a text that never repeats
    )
    distinct_2: float  # distinct bigrams over bigrams, 0..1; 1 of a text that never repeats (Li et al. 2016)


def loops(text: str) -> Loops:
    """A fluent-looking rut shows here, and in no perplexity: to the model a repetition is likely."""
    words = _WORD.findall(text.casefold())
    return Loops(repeated_trigrams=1.0 - _distinct(words, 3), distinct_2=_distinct(words, 2))


def _distinct(words: list[str], n: int) -> float:
    grams = list(_grams(words, n))
    return len(set(grams)) / len(grams) if grams else 1.0


def _grams(words: list[str], n: int) -> Iterator[tuple[str, ...]]:
    return zip(*(words[start:] for start in range(n)), strict=False)


def _holds(words: list[str], span: list[str]) -> bool:
    return bool(span) and any(gram == tuple(span) for gram in _grams(words, len(span)))


def _without_article(words: list[str]) -> list[str]:
    return words[1:] if len(words) > 1 and words[0] in _ARTICLES else words


def _value(words: list[str]) -> int:
    """The value of a number in words; "hundred" alone is 100."""
    total = group = 0
    for word in words:
        if word == "hundred":
            group = 100 * max(1, group)
        elif word in _SCALES:
            total, group = total + _SCALES[word] * max(1, group), 0
        elif word != "and":
            group += _SMALL.get(word) or _TENS.get(word) or int(word if word.isdecimal() else 0)
    return total + group
