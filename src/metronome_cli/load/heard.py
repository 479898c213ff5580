"""Word errors of what a server heard, where the clips' script is known.

Knows:   what each call's stream held, what its server says it understood, how words are aligned.
Ignores: sockets, and how words are normalised.

A call begins within its first clip and ends within its last one, and nobody knows at which word. So the words
of the first clip may be missing from its start on, and those spoken at the very end from their end on: of all
such cuts the one with the fewest errors counts. Everything between is compared as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jiwer

from ..speech import RATE, Stream

MOST_CALLS = 32  # compared in one run: the next thousand callers say the same clips
_SETTLES_S = 6.0  # words spoken this shortly before the end may not have been handed on yet


def heard_errors(
    calls: Sequence[tuple[Stream, str]], script: Mapping[str, str | None], normal: Callable[[str], str]
) -> dict[str, Any] | None:
    """Word errors over up to MOST_CALLS `calls`, each a stream and what was heard of it.

    `script` has each clip's text. None when no call has both: texts for all of its clips, and words heard.
    """
    outputs = []
    for stream, heard in calls[:MOST_CALLS]:
        words, head, tail = _spoken(stream, script, normal)
        if words and heard:
            outputs.append(compare(words, normal(heard).split(), head, tail))
    return added_up(outputs)


def added_up(outputs: Sequence[jiwer.WordOutput]) -> dict[str, Any] | None:
    """Word errors of several calls together; None of none."""
    if not outputs:
        return None
    lost, added, wrong, right = (
        sum(getattr(output, name) for output in outputs)
        for name in ("deletions", "insertions", "substitutions", "hits")
    )
    said = lost + wrong + right
    return {
        "wer": (lost + added + wrong) / said if said else None,
        "calls": len(outputs),
        "words": said,
        "substituted": wrong,
        "lost": lost,
        "added": added,
    }


def _spoken(
    stream: Stream, script: Mapping[str, str | None], normal: Callable[[str], str]
) -> tuple[list[str], int, int]:
    """The words of a stream; how many of the first and of the last ones may not have been heard.

    No words when a clip's text is unknown.
    """
    clips = [p for p in stream.passages if p.clip is not None and p.start < stream.sent]
    texts = [script.get(passage.clip or "") for passage in clips]
    if not texts or any(text is None for text in texts):
        return [], 0, 0
    parts = [normal(text or "").split() for text in texts]
    settled = stream.sent - _SETTLES_S * RATE
    tail = sum(len(part) for part, passage in zip(parts, clips, strict=True) if passage.stop > settled)
    return [word for part in parts for word in part], len(parts[0]), tail


def compare(said: list[str], heard: list[str], head: int, tail: int) -> jiwer.WordOutput:
    """The alignment with the fewest errors over all cuts of up to `head` and `tail` words."""
    starts = range(min(head, len(said) - 1) + 1)
    start = min(starts, key=lambda cut: _errors(_align(said[cut:], heard)))
    ends = range(min(tail, len(said) - start - 1) + 1)
    end = min(ends, key=lambda cut: _errors(_align(said[start : len(said) - cut], heard)))
    return _align(said[start : len(said) - end], heard)


def _align(said: Sequence[str], heard: Sequence[str]) -> jiwer.WordOutput:
    return jiwer.process_words(" ".join(said), " ".join(heard))


def _errors(output: jiwer.WordOutput) -> int:
    return output.substitutions + output.deletions + output.insertions
