"""What is told of each kind of model without loading one, held against the models themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metronome_cli.frame import Frame, TickEvent
from metronome_cli.kinds import KINDS, kind_of
from metronome_cli.models.factory import build
from metronome_cli.profile import Profile, load_profile, parse_profile

from .models.tiny_minicpm import Reference
from .models.tiny_moshi import save_tiny_moshi
from .models.tiny_omni import save_tiny_omni

# Another value than the default of each field that some kind does not use.
OTHER: dict[str, object] = {
    "model.thinker": "nowhere",
    "model.ears": "nowhere",
    "model.heard_tokens": 5,
    "model.header": "Other words, and more of them.",
    "model.max_reply": 2,
    "model.dtype": "bfloat16",
    "model.products": "bfloat16",
    "model.temperature": 0.9,
    "model.top_p": 0.5,
    "model.rate": 24_000,
    "window.positions": "absolute",
    "pool.kv": "fp8",
    "run.device": "cuda",
    "run.threads": 2,
    "run.seed": 7,
}


def save(kind: str, folder: Path, tiny_chat: Path) -> Path | None:
    """A small checkpoint of that kind; None: it needs none."""
    match kind:
        case "text":
            return tiny_chat
        case "moshi":
            save_tiny_moshi(folder)
        case "minicpm-o":
            return Reference().save(folder)
        case "qwen2.5-omni" | "qwen3-omni":
            save_tiny_omni(kind, folder)
        case _:
            return None
    return folder


@pytest.fixture(scope="module")
def folders(tiny_chat: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path | None]:
    return {kind: save(kind, tmp_path_factory.mktemp("tiny"), tiny_chat) for kind in KINDS}


def profile(kind: str, folder: Path | None, changes: dict[str, object]) -> Profile:
    data: dict[str, dict[str, Any]] = {
        "model": {"kind": kind, "header": "Be brief.", "rate": KINDS[kind].rate or 16_000},
        "beat": {"frame_s": 1.0 if kind == "minicpm-o" else 0.32, "tau": 4, "prefill_tokens": 64},
        "window": {"window": 128, "sinks": 4},
        "pool": {"blocks": 400, "block_size": 8},
        "run": {"threads": 1},
    }
    if folder:
        data["model"]["thinker"] = str(folder)
    if kind == "moshi":
        data["model"]["mode"], data["beat"] = "free", {"frame_s": 0.08, "tau": 1, "prefill_tokens": 2}
    for field, value in changes.items():
        section, _, name = field.partition(".")
        data[section][name] = value
    return parse_profile("test", data)


def said(of: Profile) -> list[TickEvent]:
    """What the model says in three frames of noise and typed words, with a reply asked for."""
    model, random = build(of), np.random.default_rng(0)
    assert model.open(1, of.run.seed) is None
    length, events = round(of.beat.frame_s * (KINDS[of.model.kind].rate or 16_000)), []
    for number in range(3):
        audio = random.normal(0, 0.1, length).astype(np.float32)
        frame = Frame(1, audio, texts=("hello there",), commit=1, reply=0 if number == 0 else None)
        events += list(model.tick([frame]))
    return events


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cascade"])
def test_fields_that_are_not_used_change_nothing(folders: dict[str, Path | None], kind: str) -> None:
    usual = said(profile(kind, folders[kind], {}))
    assert any(getattr(event, "text", "") or getattr(event, "pcm", b"") for event in usual)
    assert said(profile(kind, folders[kind], {field: OTHER[field] for field in KINDS[kind].unused})) == usual


def test_fields_that_are_used_do_change_something(folders: dict[str, Path | None]) -> None:
    usual = said(profile("text", folders["text"], {}))
    for field in ("model.temperature", "model.header", "model.max_reply"):
        assert said(profile("text", folders["text"], {field: OTHER[field]})) != usual


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_weights_are_used_by_who_has_such_weights(kind: str) -> None:
    for weights in ("thinker", "ears"):
        assert (f"model.{weights}" in KINDS[kind].unused) == (weights not in KINDS[kind].weights)


def test_of_a_model_of_ones_own_any_field_may_be_used() -> None:
    assert kind_of("mine:Model").unused == ()


def test_every_field_that_some_kind_does_not_use_is_a_field_and_tried() -> None:
    dumped = load_profile("laptop").model_dump()
    for field in OTHER:
        section, name = field.split(".")
        assert name in dumped[section]
    assert {field for kind in KINDS.values() for field in kind.unused} == OTHER.keys()
