"""Convert: from files as their packages hold them to files as the rest of the project reads them.

Knows:   GGUF through transformers, Whisper checkpoints, clips and their reference texts.
Ignores: where files come from and where the result is kept. A converter reads `source` and fills `target`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Converter = Callable[[Path, Path], None]

SAMPLE_RATE = 16_000
SCRIPT = "script.json"


def keep(source: Path, target: Path) -> None:
    """Copy every file as it is."""
    shutil.copytree(source, target, dirs_exist_ok=True)


def gguf_to_folder(source: Path, target: Path) -> None:
    """Save the one GGUF file as a Hugging Face folder: float32 safetensors, tokenizer, chat template."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (file,) = source.glob("*.gguf")
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=file.name, dtype=torch.float32)
    config = loaded.config
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file.name)
    # transformers 5.17 takes the token that begins a turn for the one that ends it; the config knows better.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(config.pad_token_id)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.save_pretrained(target)
    # The weights are floats by now, but a model whose config still says "quantized" cannot be saved.
    del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(target)
    # safetensors writes for the owner alone; a cache may be shared like any other folder.
    (target / "model.safetensors").chmod(0o644)


def ctranslate2_to_whisper(source: Path, target: Path) -> None:
    """Save `model.bin` as `tiny.en.pt`: plain float16 tensors that `whisper.load_model(path)` takes."""
    import torch

    from .ctranslate2 import read, whisper_dims, whisper_weights

    with (source / "model.bin").open("rb") as file:
        arrays = read(file)
    state = {name: torch.from_numpy(array.copy()) for name, array in whisper_weights(arrays)}
    torch.save({"dims": whisper_dims(arrays), "model_state_dict": state}, target / "tiny.en.pt")


def clips_to_flac(source: Path, target: Path) -> None:
    """Save each WAV as 16 kHz mono 16-bit FLAC; a text file of the same stem is what is spoken, else null."""
    import soundfile

    script: dict[str, str | None] = {}
    for file in sorted(source.glob("*.wav")):
        samples, rate = soundfile.read(file, dtype="float32", always_2d=True)
        name = f"{file.stem}.flac"
        soundfile.write(
            target / name, _to_sample_rate(samples.mean(axis=1), rate), SAMPLE_RATE, subtype="PCM_16"
        )
        text = file.with_suffix(".txt")
        script[name] = text.read_text(encoding="utf-8").strip() if text.exists() else None
    _write_script(target, script)


def sphinx_to_script(source: Path, target: Path) -> None:
    """Keep the WAVs, and turn `transcription` (`<s> words </s> (stem)` a line) into `script.json`."""
    script: dict[str, str | None] = {}
    for line in (source / "transcription").read_text(encoding="utf-8").splitlines():
        found = re.fullmatch(r"<s>\s*(.*?)\s*</s>\s*\((\S+)\)\s*", line)
        if found is None:
            raise ValueError(f"transcription holds a line that is no reference: {line!r}")
        name = f"{found[2]}.wav"
        shutil.copyfile(source / name, target / name)
        script[name] = found[1]
    _write_script(target, script)


def _write_script(target: Path, script: dict[str, str | None]) -> None:
    (target / SCRIPT).write_text(json.dumps(script, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _to_sample_rate(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    import soxr

    return samples if rate == SAMPLE_RATE else soxr.resample(samples, rate, SAMPLE_RATE)


CONVERTERS: dict[str, Converter] = {
    converter.__name__: converter
    for converter in (keep, gguf_to_folder, ctranslate2_to_whisper, clips_to_flac, sphinx_to_script)
}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    CONVERTERS[name](Path(source), Path(target))
