"""Repeat after me: a sentence to say again, at a known distance from the request.

Knows:   the sentences, how they are told and asked back for, how many questions lie between.
Ignores: models, audio, policies, error rates (spoken.py).

A call practises with another sentence, is told its own (which it repeats at once), is asked questions,
and is then asked for the sentence. Wording and practice were chosen by measurement (SmolLM2-135M-Instruct,
unbounded, two turns before and four questions between, 8 calls): with practice 7 sentences come back (WER
0.13), with two questions in its place 4 (0.56); told by "Repeat after me" 3 (0.50); asked for without its
first words, none. Spoken calls say the same texts.

Distance alone costs such a model its memory: with full context 9 of 10 come back over 165 tokens, 8 over 300,
6 over 390, 1 over 590. Always read a window's figure beside that of the unbounded control at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal

from ..errors import FieldError

Place = Literal["near", "edge", "beyond"]

TELL = 'Repeat the sentence that begins with "{key}": "{sentence}"'
ASK = 'Repeat the sentence that begins with "{key}".'
KEY_WORDS = 2  # they are given away, so that a call which has lost the sentence still gets these words right

# Turns of practice: another sentence told and asked for. They also keep the call's own sentence out of
# up to 64 sinks.
PRACTICE = 2

# Tokens as SmolLM2 counts them, chat format and reply included: a call's questions take 25 to 29 each in the
# mean, a sentence told and a request at most so many. Where a sentence really lay, `place_of` tells.
QUESTION_TOKENS = (25, 29)
SENTENCE_TOKENS, REQUEST_TOKENS = 45, 36

# Plain words that Whisper tiny.en hears without a mistake when Piper's voice says them.
SENTENCES = (
    "A small boat drifted slowly across the quiet lake.",
    "My sister baked a warm apple pie for dinner.",
    "He left his umbrella on the train last night.",
    "We walked along the beach and collected shells.",
    "They painted the fence green before the summer began.",
    "My brother fixed the broken chair with some glue.",
    "Her dog chased a red ball down the hill.",
    "We drank hot tea and listened to the rain.",
    "His doctor told him to rest for a week.",
    "A bright star appeared above the snowy mountain.",
    "He carried the heavy box up the narrow stairs.",
    "One river runs through the middle of our village.",
    "She reads a short story to her son at night.",
    "Some fishermen sold fresh fish at the market.",
    "My uncle drives a yellow bus to the school.",
    "That young girl learned to play the piano.",
    "A gray bird built its nest on our roof.",
    "This soup needs more salt and a little pepper.",
    "He put his muddy boots outside the front door.",
    "We planted tomatoes and beans behind the barn.",
    "She wears a blue scarf when the weather is cold.",
    "Our neighbor grows white roses beside the gate.",
    "My grandmother keeps old letters in a wooden box.",
    "Every morning the farmer feeds his chickens and his cows.",
    "She forgot the words to her own song.",
    "An old man sat alone on the park bench.",
    "His bicycle has a flat tire and no bell.",
    "Your coat is hanging behind the kitchen door.",
    "Both windows were open and the room was cold.",
    "My cousin bought a green sweater for the winter.",
    "Some children played in the park until it rained.",
    "Our teacher reads the news to us every day.",
    "They like to swim in the river.",
    "She grows lemons and oranges in her garden.",
    "Their train leaves from the last platform at noon.",
    "Nobody could find the key to the garden gate.",
    "Her father cooks rice and fish for the family.",
    "It snowed all night and the roads were white.",
    "I forgot to close the door behind me.",
    "Most birds fly to the south before winter.",
)


@dataclass(frozen=True, slots=True)
class Repetition:
    """One call: its turns in order, the sentence in the turn numbered `told`, the request in the last one."""

    sentence: str
    place: Place
    turns: tuple[str, ...]
    told: int = PRACTICE


def repetitions(
    place: Place, window: int, calls: int, seed: int, questions: Sequence[str]
) -> list[Repetition]:
    """Calls whose sentence lies `near`, at the `edge` of `window` tokens or `beyond` it when it is wanted.

    near: it was the last thing said. edge: as far back as it can be and be seen until the reply is over.
    beyond: gone when the request begins. The sentences and questions of a call depend on `seed` alone, so
    those of another place or window are the same, only more or fewer. `questions`: what is asked between.
    """
    if not questions:
        raise ValueError("there must be something to ask between")
    if calls > len(SENTENCES):
        raise FieldError(
            "sessions", calls, f"use at most {len(SENTENCES)}: each call is told a sentence of its own"
        )
    sentences = Random(f"sentences {seed}").sample(SENTENCES, len(SENTENCES))  # noqa: S311
    drawn = []
    for call in range(calls):
        practice, sentence = sentences[call - 1], sentences[call]
        fillers = _endless(questions, questions_between(place, window), Random(f"questions {seed} {call}"))  # noqa: S311
        turns = (_tell(practice), _ask(practice), _tell(sentence), *fillers, _ask(sentence))
        drawn.append(Repetition(sentence, place, turns))
    return drawn


def questions_between(place: Place, window: int) -> int:
    """How many questions lie between a sentence and its request, by the usual length of each."""
    fewest, most = QUESTION_TOKENS
    if place == "near":
        return 0
    if place == "edge":
        return max(0, (window - SENTENCE_TOKENS - REQUEST_TOKENS) // most)
    return window // fewest + 1


def place_of(told: int, repeated: int, asked: int, window: int) -> Place | None:
    """Where a sentence really lay; None when it was leaving the window during the request or the reply.

    Ages of the call in tokens: when the sentence was told, when its repetition was over, when it was asked
    back for.
    """
    if asked == repeated:
        return "near"
    if asked - repeated >= window:
        return "beyond"
    return "edge" if asked + REQUEST_TOKENS - told <= window else None


def _tell(sentence: str) -> str:
    return TELL.format(key=_key(sentence), sentence=sentence)


def _ask(sentence: str) -> str:
    return ASK.format(key=_key(sentence))


def _key(sentence: str) -> str:
    return " ".join(sentence.split()[:KEY_WORDS])


def _endless(questions: Sequence[str], count: int, draw: Random) -> list[str]:
    """`count` questions, each as rarely as can be; the first ones do not depend on `count`."""
    found: list[str] = []
    while len(found) < count:
        found += draw.sample(list(questions), len(questions))
    return found[:count]
