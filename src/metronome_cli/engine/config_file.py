"""A checkpoint's config.json and the files beside it: others wrote them, and they may hold anything.

Knows:   that every library fails in ways of its own over them, and which numbers no model has.
Ignores: which fields a model has, but for those that it is told to look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from ..errors import AssetError, MetronomeError

_MOST = 2**31  # of any whole number
_MOST_LAYERS = 4096  # libraries make a list of them before anybody can ask


@contextmanager
def readable(folder: Path, what: str, cure: str = "") -> Iterator[None]:
    """AssetError for whatever is raised over `what` of a folder, with its `cure`; errors of ours stay."""
    try:
        yield
    except MetronomeError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise AssetError(f"{folder}: no readable {what} ({why[:400]}){cure and f'; {cure}'}") from None


def read_json(folder: Path, name: str = "config.json", cure: str = "") -> dict[str, Any]:
    """The fields of a JSON file. AssetError when there are none, or an absurd number is among them."""
    with readable(folder, name, cure):
        found = json.loads((folder / name).read_text("utf-8"))
        if not isinstance(found, dict):
            raise TypeError(f"it holds {type(found).__name__}, not fields")
    for field, value in _whole_numbers(found):
        most = _MOST_LAYERS if "layers" in field.rpartition(".")[2] else _MOST
        if abs(value) > most:
            raise AssetError(f"{folder}: {name} says {field} = {value}: no model has more than {most}")
    return found


def read_config(folder: Path) -> PreTrainedConfig:
    """transformers' config of a checkpoint. AssetError as of `read_json`, or when none knows it."""
    read_json(folder)
    with readable(folder, "config.json of a known model"):
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    return config


def check_counts(folder: Path, config: PreTrainedConfig, fields: Iterable[str], part: str = "") -> None:
    """AssetError where a field that counts something (or a list that does) is no whole number of 1 or more.

    `part`: of config.json, as it is to be called.
    """
    for field in fields:
        value = getattr(config, field)
        for number in value if isinstance(value, list | tuple) and value else [value]:
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                name = f"{part}.{field}" if part else field
                raise AssetError(f"{folder}: config.json says {name} = {value!r}; use 1 or more")


def check_divides(folder: Path, config: PreTrainedConfig, field: str, shares: str, part: str = "") -> None:
    """AssetError where `shares`, a field like `field` that was looked at, do not divide it evenly."""
    size, count = getattr(config, field), getattr(config, shares)
    if size % count:
        name = f"{part}.{field}" if part else field
        raise AssetError(f"{folder}: config.json says {name} = {size}, which {shares} = {count} do not share")


def _whole_numbers(found: object, name: str = "") -> Iterator[tuple[str, int]]:
    """(field, value) of all within, nested ones joined by dots."""
    if isinstance(found, Mapping):
        for key, value in found.items():
            yield from _whole_numbers(value, f"{name}.{key}" if name else str(key))
    elif isinstance(found, int):
        yield name, found
