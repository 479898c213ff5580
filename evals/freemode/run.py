"""Free mode: how should heard words and forced tokens interleave, and does the unbounded control answer?

Spoken questions, one per segment and session, through the real ears and the real thinker, in virtual time.
Run:  python -m evals.freemode.run              (about 6 minutes on 2 cores)
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from metronome_cli.clock import SystemClock
from metronome_cli.frame import Frame, Prefilled, Said
from metronome_cli.models import cascade
from metronome_cli.models.assets import locate
from metronome_cli.profile import Profile, load_profile
from metronome_cli.report import new_report
from metronome_cli.speech import RATE

SEGMENT_S = 14  # question, pause and answer
WARM_UP = 1  # frames before the first question
TRAINED = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

VARIANTS: dict[
    str, tuple[int, dict[str, str]]
] = {  # words that make a turn at the latest; changes to the profile
    "each frame's words are a turn": (1, {}),
    "an utterance is a turn": (cascade.MOST_WORDS, {}),
    "an utterance is a turn, header as trained": (cascade.MOST_WORDS, {"model.header": TRAINED}),
}


def questions() -> list[dict[str, Any]]:
    folder = locate("questions")
    found = json.loads((folder / "questions.json").read_text("utf-8"))
    return [item | {"audio": soundfile.read(folder / item["file"], dtype="float32")[0]} for item in found]


def call_audio(asked: list[dict[str, Any]], draw: random.Random, frame: int) -> Iterator[NDArray[np.float32]]:
    """Frames of a call: each question at a seeded moment of its segment's first second, then silence."""
    length = SEGMENT_S * RATE
    audio = np.zeros(WARM_UP * frame + len(asked) * length, np.float32)
    for number, item in enumerate(asked):
        at = WARM_UP * frame + number * length + draw.randrange(RATE)
        audio[at : at + len(item["audio"])] = item["audio"]
    for at in range(0, len(audio), frame):
        yield audio[at : at + frame]


def is_answered(answer: str, item: dict[str, Any]) -> bool:
    """Lenient: a gold answer anywhere in what was said within the segment."""
    return any(gold.lower() in answer.lower() for gold in item["answers"])


def run(profile: Profile, most_words: int, sessions: int, per_call: int, seed: int) -> dict[str, Any]:
    cascade.MOST_WORDS = most_words
    model = cascade.Cascade(profile)
    draw, frame = random.Random(seed), round(profile.beat.frame_s * RATE)
    pool = questions()
    asked = {s: draw.sample(pool, per_call) for s in range(1, sessions + 1)}
    calls = {s: call_audio(items, draw, frame) for s, items in asked.items()}
    for session in asked:
        assert model.open(session, seed + session) is None
    said = {s: [""] * (per_call + 1) for s in asked}
    heard = {s: [""] * (per_call + 1) for s in asked}
    frames_per_segment = round(SEGMENT_S / profile.beat.frame_s)
    for number, audios in enumerate(zip(*calls.values(), strict=True)):
        segment = max(0, number - WARM_UP) // frames_per_segment
        for event in model.tick([Frame(s, a) for s, a in zip(asked, audios, strict=True)]):
            if isinstance(event, Said):
                said[event.session][segment] += event.text
            elif isinstance(event, Prefilled):
                heard[event.session][segment] += f" {event.heard}"
    rows = [
        {
            "asked": item["question"],
            "heard": heard[s][i].strip(),
            "said": said[s][i],
            "ok": is_answered(said[s][i], item),
        }
        for s, items in asked.items()
        for i, item in enumerate(items)
    ]
    return {"answered": sum(row["ok"] for row in rows), "asked": len(rows), "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--questions", type=int, default=4, help="per session")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    base = {
        "model.mode": "free",
        "window.policy": "unbounded",
        "pool.blocks": 1000,
        "run.threads": options.threads,
    }
    report = new_report("eval-freemode", load_profile("laptop", base), SystemClock())
    for name, (most_words, changes) in VARIANTS.items():
        profile = load_profile("laptop", base | changes)
        result = run(profile, most_words, options.sessions, options.questions, report.seed)
        report.results[name] = result
        print(f"{name}: {result['answered']} of {result['asked']}", flush=True)
    report.held = max(r["answered"] / r["asked"] for r in report.results.values()) >= 0.2
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    report.save(folder)


if __name__ == "__main__":
    main()
