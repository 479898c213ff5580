"""What callers say: the clips of a folder, of an asset, or of a data set.

Knows:   how the three are named, and which columns of a data set hold sound and script.
Ignores: streams and calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import FieldError
from ..models.assets import locate
from ..speech import Clip, decode_clip, read_clips

DATASET = "dataset:"
MOST_CLIPS = 64  # of a data set: some minutes of speech, a few tens of MB
_TEXTS = ("text", "sentence", "transcription", "transcript", "normalized_text")


def read_speech(name: str) -> list[Clip]:
    """Clips of a folder, an asset, or `dataset:PATH[:CONFIG[:SPLIT]]`, PATH being a hub id or a folder."""
    if not name.startswith(DATASET):
        return read_clips(locate(name))
    path, config, split = (*name.removeprefix(DATASET).split(":"), "", "")[:3]
    if not path:
        raise FieldError("speech", name, "name a hub id or a folder: dataset:PATH[:CONFIG[:SPLIT]]")
    return _read_dataset(name, path, config or None, split or None)


def _read_dataset(name: str, path: str, config: str | None, split: str | None) -> list[Clip]:
    from datasets import load_dataset

    try:
        splits = load_dataset(path, config, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        why = str(error).partition("\n")[0] or "no such thing"
        raise FieldError("speech", name, f"no data set that can be read ({why})") from None
    chosen = split or next(iter(splits))
    if chosen not in splits:
        raise FieldError("speech", name, f"it has no split {chosen!r}, but {', '.join(splits)}")
    return _clips(name, splits[chosen])


# Any: a data set streams rows whose columns only it knows.
def _clips(name: str, rows: Any) -> list[Clip]:
    from datasets import Audio

    features = rows.features or {}
    sound = next((column for column, kind in features.items() if isinstance(kind, Audio)), None)
    if sound is None:
        raise FieldError("speech", name, f"it has no column of audio, but {', '.join(features) or 'none'}")
    text = next((column for column in _TEXTS if column in features), None)
    # Undecoded: the data set's own decoder wants ffmpeg, and ours says what is wrong with a file.
    rows = islice(rows.cast_column(sound, Audio(decode=False)), MOST_CLIPS)
    try:
        clips = [_clip(row[sound], number, row.get(text)) for number, row in enumerate(rows)]
    except ImportError:  # datasets rewrites loose files before it hands them out
        raise FieldError("speech", name, "these are loose files: give their folder itself") from None
    if not clips:
        raise FieldError("speech", name, "it has no rows")
    return clips


def _clip(sound: Mapping[str, Any], number: int, text: str | None) -> Clip:
    path, contents = sound.get("path"), sound.get("bytes")
    name = Path(path).name if path else f"row-{number}"
    return decode_clip(name, bytes(contents) if contents else Path(path or "").read_bytes(), text)
