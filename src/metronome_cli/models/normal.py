"""English text as word error rates compare it.

Knows:   Whisper's normaliser: case, punctuation, numbers, spellings.
Ignores: who said what.
"""

from __future__ import annotations

from whisper.normalizers import EnglishTextNormalizer

_normaliser = EnglishTextNormalizer()


def normal(text: str) -> str:
    """`text` in lower case, without punctuation, numbers as digits."""
    return str(_normaliser(text)).strip()
