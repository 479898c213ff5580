"""`asr_wer`: what a listener hears of a spoken reply, with model, voice and ears told apart.

A model that only writes is given a voice; one that speaks has its own, and its text is what it meant to say.

Knows:   word and character error rates, and which text is held against which.
Ignores: how replies are spoken and heard (models/voice.py, models/listener.py), sessions, policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jiwer
import numpy as np
from numpy.typing import NDArray

from ..errors import AssetError, NotMeasured
from ..frame import SPEAKING_RATE
from ..models.listener import Listener
from ..models.normal import normal
from ..models.voice import Voice, find_voice
from ..speech import RATE, at_rate


@dataclass(frozen=True, slots=True)
class ErrorRates:
    """Errors over what was to be said, both by Whisper's English normaliser. Above 1 when much was added.

    `each`: the word error rate of every pair, in order; None where there was nothing to say.
    """

    wer: float | None  # None when there was nothing to say at all
    cer: float | None
    words: int  # that were to be said
    each: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class SpokenReply:
    """What was to be said, what the model wrote, and how that was spoken (mono float32, 16 kHz)."""

    meant: str
    text: str
    audio: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class AsrWer:
    """Three comparisons of the same replies. Only `model` and `spoken` can depend on a window."""

    spoken: ErrorRates  # heard against meant: model, voice and ears together
    model: ErrorRates  # text against meant: the model alone
    voice: ErrorRates  # heard against text: voice and ears alone
    heard: tuple[str, ...]


def asr_wer(replies: Sequence[SpokenReply], listener: Listener) -> AsrWer:
    """Let `listener` write down every reply, and compare."""
    heard = listener.write([reply.audio for reply in replies])
    meant = [reply.meant for reply in replies]
    texts = [reply.text for reply in replies]
    return AsrWer(
        spoken=error_rates(meant, heard),
        model=error_rates(meant, texts),
        voice=error_rates(texts, heard),
        heard=tuple(heard),
    )


def error_rates(meant: Sequence[str], said: Sequence[str]) -> ErrorRates:
    """Word and character error rates of `said`, place by place against `meant`.

    Pairs in which nothing was meant are left out: an error rate has no meaning there.
    """
    pairs = [(_words(before), _words(after)) for before, after in zip(meant, said, strict=True)]
    each = tuple(jiwer.wer(before, after) if before else None for before, after in pairs)
    kept = [pair for pair in pairs if pair[0]]
    if not kept:
        return ErrorRates(None, None, 0, each)
    references, hypotheses = [pair[0] for pair in kept], [pair[1] for pair in kept]
    return ErrorRates(
        wer=jiwer.wer(references, hypotheses),
        cer=jiwer.cer(references, hypotheses),
        words=sum(len(reference.split()) for reference in references),
        each=each,
    )


def _words(text: str) -> str:
    """Normalised words; the normaliser alone leaves marks such as "..." standing as one."""
    return " ".join(word for word in normal(text).split() if any(map(str.isalnum, word)))


def heard_back(spoken: Sequence[bytes], listener: Listener) -> list[str]:
    """What `listener` hears of a model's own speech (as frame.Said has it), reply by reply."""
    clips = [np.frombuffer(pcm, "<i2") * np.float32(1 / 32768) for pcm in spoken]
    return listener.write([at_rate(clip, RATE, SPEAKING_RATE) if len(clip) else clip for clip in clips])


def instruments(checkpoint: str = "whisper-tiny.en") -> tuple[Voice, Listener]:
    """The voice and the listener. NotMeasured says what is missing, and the command that brings it."""
    try:
        return find_voice(), Listener(checkpoint)
    except AssetError as error:
        raise NotMeasured(f"asr_wer: {error}") from error


def find_listener(checkpoint: str = "whisper-tiny.en") -> Listener:
    """Who hears a model that has a voice of its own. NotMeasured as of `instruments`."""
    try:
        return Listener(checkpoint)
    except AssetError as error:
        raise NotMeasured(f"asr_wer: {error}") from error
