"""How well, how late and how cheaply live speech becomes words: the LibriVox clips as streams of 2 s frames.

Run:  python -m evals.ears.run            (about 3 minutes on 2 cores)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import torch
import whisper
from numpy.typing import NDArray
from whisper.normalizers import EnglishTextNormalizer

from metronome_cli.clock import SystemClock
from metronome_cli.engine.linear import products_of
from metronome_cli.models.assets import locate
from metronome_cli.models.ears import PAUSE_S, RATE, SETTLED_S, Ears, Heard
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.speech import GAP_S, Clip, read_clips
from metronome_cli.stats import percentiles

WER_LIMIT = 0.10
normal = EnglishTextNormalizer()


@dataclass(frozen=True)
class Offline:
    """What Whisper makes of whole clips: normalised words, and their ends in s from the clip's start."""

    words: dict[str, list[tuple[str, float]]]
    wer: float


@dataclass(frozen=True)
class Call:
    """One stream: all clips in a seeded order, a gap of silence before each, one second after the last."""

    seed: int
    frames: list[NDArray[np.float32]]
    truth: str
    word_ends: list[tuple[str, float]]  # by Offline, seconds from the stream's start


def hear_offline(clips: Sequence[Clip], checkpoint: Path) -> Offline:
    model = whisper.load_model(str(checkpoint), device="cpu")
    words, texts = {}, []
    for clip in clips:
        told = model.transcribe(clip.samples, temperature=0, word_timestamps=True, fp16=False)
        texts.append(normal(told["text"]))
        words[clip.name] = [
            (part, float(word["end"]))
            for segment in told["segments"]
            for word in segment["words"]
            for part in normal(word["word"]).split()
        ]
    return Offline(words, jiwer.wer([normal(clip.text or "") for clip in clips], texts))


def make_call(clips: Sequence[Clip], offline: Offline, seed: int, frame_s: float) -> Call:
    random = np.random.default_rng(seed)
    parts, truth, word_ends = [], [], []
    for index in random.permutation(len(clips)):
        clip = clips[index]
        parts.append(np.zeros(round(random.uniform(*GAP_S) * RATE), np.float32))
        start_s = sum(map(len, parts)) / RATE
        parts.append(clip.samples)
        truth.append(clip.text or "")
        word_ends += [(word, start_s + end) for word, end in offline.words[clip.name]]
    audio = np.concatenate([*parts, np.zeros(RATE, np.float32)])
    step = round(frame_s * RATE)
    frames = [audio[start : start + step] for start in range(0, len(audio), step)]
    return Call(seed, frames, normal(" ".join(truth)), word_ends)


@dataclass
class Played:
    """What came of all calls, heard in one batch and one by one, and the seconds that each tick took."""

    together: list[list[Heard]]
    alone: list[list[Heard]]
    together_s: list[float]
    alone_s: list[float]  # all calls' turns of a tick, added up


def play(ears: Ears, calls: Sequence[Call]) -> Played:
    """Both ways tick by tick in turn, so that whatever else the machine does slows both alike."""
    clock = SystemClock()
    batch, single = ([ears.open() for _ in calls] for _ in range(2))
    played = Played([[] for _ in calls], [[] for _ in calls], [], [])
    nothing = np.zeros(0, np.float32)
    for tick in range(max(len(call.frames) for call in calls)):
        audio = [call.frames[tick] if tick < len(call.frames) else nothing for call in calls]
        last = [tick == len(call.frames) - 1 for call in calls]
        start = clock.now()
        for heard, one in zip(played.together, ears.hear(batch, audio, last), strict=True):
            heard.append(one)
        middle = clock.now()
        for heard, listening, frame, commit in zip(played.alone, single, audio, last, strict=True):
            heard.extend(ears.hear([listening], [frame], [commit]))
        played.together_s.append(middle - start)
        played.alone_s.append(clock.now() - middle)
    return played


def score(call: Call, heard: Sequence[Heard], frame_s: float) -> tuple[dict[str, Any], list[float]]:
    """Errors against the reference, and the delays of the words that offline Whisper heard too.

    A delay runs from the word's end to the tick at which its frame was full; the ears' own time comes on top.
    """
    said = [
        (word, (tick + 1) * frame_s) for tick, one in enumerate(heard) for word in normal(one.text).split()
    ]
    errors = jiwer.process_words(call.truth, " ".join(word for word, _ in said))
    row = {
        "seed": call.seed,
        "wer": round(errors.wer, 4),
        "substituted": errors.substitutions,
        "lost": errors.deletions,
        "added": errors.insertions,
    }
    same = jiwer.process_words(
        " ".join(word for word, _ in call.word_ends), " ".join(word for word, _ in said)
    )
    delays = [
        said[chunk.hyp_start_idx + i][1] - call.word_ends[chunk.ref_start_idx + i][1]
        for chunk in same.alignments[0]
        if chunk.type == "equal"
        for i in range(chunk.ref_end_idx - chunk.ref_start_idx)
    ]
    return row, delays


def measure(clips: Sequence[Clip], checkpoint: Path, seeds: int, profile: Profile) -> dict[str, Any]:
    frame_s = profile.beat.frame_s
    offline = hear_offline(clips, checkpoint)
    calls = [make_call(clips, offline, seed, frame_s) for seed in range(seeds)]
    products = products_of(profile.model.products)
    ears = Ears(checkpoint, token_cap=profile.model.heard_tokens, products=products)
    play(ears, calls[:1])  # the first inference also allocates
    played = play(ears, calls)
    rows, delays = zip(
        *(score(call, heard, frame_s) for call, heard in zip(calls, played.together, strict=True)),
        strict=True,
    )
    return {
        "frame_s": frame_s,
        "settled_s": SETTLED_S,
        "pause_s": PAUSE_S,
        "wer_offline": round(offline.wer, 4),
        "wer_mean": round(float(np.mean([row["wer"] for row in rows])), 4),
        "wer_max": max(row["wer"] for row in rows),
        "streams": list(rows),
        "word_delay_s": percentiles([*chain.from_iterable(delays)], (50, 90, 100)),
        "heard_otherwise_alone": sum(
            heard != told for heard, told in zip(played.together, played.alone, strict=True)
        ),
        "calls": seeds,
        "together_tick_s": percentiles(played.together_s, (0, 50, 90)),
        "one_by_one_tick_s": percentiles(played.alone_s, (0, 50, 90)),
        "together_over_one_by_one": round(sum(played.together_s) / sum(played.alone_s), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calls", type=int, default=8, help="streams, all heard in one batch")
    options = parser.parse_args()
    profile = load_profile("laptop")
    torch.set_num_threads(profile.run.threads)
    report = new_report("eval-ears", profile, SystemClock())
    (checkpoint,) = locate(profile.model.ears).glob("*.pt")
    clips = read_clips(locate("librivox"))
    report.results = measure(clips, checkpoint, options.calls, profile)
    report.held = report.results["wer_max"] <= WER_LIMIT
    print(report.results)
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    report.save(folder)


if __name__ == "__main__":
    main()
