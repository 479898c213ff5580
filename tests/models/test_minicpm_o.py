"""MiniCPM-o-4.5 over the engine, on a small random checkpoint, beside transformers' own parts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from metronome_cli.engine.engine import StepOutput
from metronome_cli.errors import AssetError, ProfileError
from metronome_cli.frame import Failed, Frame, Prefilled, Refused, Said, TickEvent
from metronome_cli.models.minicpm_o import MiniCpmChat, MiniCpmO, read_sizes
from metronome_cli.profile import Profile, parse_profile

from .tiny_minicpm import RATE, Reference, save_shards, speech

NOTHING = np.zeros(0, np.float32)
TAU = 4


@pytest.fixture(scope="module")
def reference() -> Reference:
    found = Reference()
    found.talk_more()
    return found


@pytest.fixture(scope="module")
def folder(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reference.save(tmp_path_factory.mktemp("minicpm"))


def profile(folder: Path, **changes: Any) -> Profile:
    """A small set-up of one-second frames; `changes` map section_field to a value."""
    data: dict[str, Any] = {
        "model": {"kind": "minicpm-o", "thinker": str(folder), "mode": "free", "header": "Be brief."},
        "beat": {"frame_s": 1.0, "tau": TAU, "prefill_tokens": 40},
        "window": {"policy": "unbounded"},
        "pool": {"blocks": 400, "block_size": 16},
        "admission": {"max_sessions": 3},
        "run": {"threads": 1},
    }
    for key, value in changes.items():
        section, _, name = key.partition("_")
        data[section][name] = value
    return parse_profile("test", data)


class Watched:
    """A model, and what its engine computed and sampled for each of its sessions."""

    def __init__(self, profile: Profile) -> None:
        self.model = MiniCpmO(profile)
        self.hidden: dict[int, list[Tensor]] = {}
        self.ids: dict[int, list[int]] = {}
        self._step = self.model._engine.step
        self.model._engine.step = self._watch  # type: ignore[method-assign]

    def _watch(self, sessions: Any, *args: Any, **named: Any) -> StepOutput:
        output = self._step(sessions, *args, **named)
        for session, hidden, token in zip(
            sessions, output.hidden.split(output.appended), output.ids, strict=True
        ):
            self.hidden.setdefault(session, []).append(hidden)
            if token is not None:
                self.ids.setdefault(session, []).append(token)
        return output

    def tick(self, audio: dict[int, NDArray[np.float32]], **more: Any) -> list[TickEvent]:
        return list(self.model.tick([Frame(session, piece, **more) for session, piece in audio.items()]))

    def logits(self, session: int) -> Tensor:
        """Of everything appended, in order."""
        number = self.model._calls[session].talk.engine_session
        return self.model._engine.decoder.logits(torch.cat(self.hidden[number]))

    def said(self, session: int) -> list[int]:
        return self.ids[self.model._calls[session].talk.engine_session]


def marker(model: MiniCpmO, name: str) -> int:
    chat = model._chat
    assert isinstance(chat, MiniCpmChat)
    return chat.marker(name)


def by_hand(
    reference: Reference, model: MiniCpmO, audio: NDArray[np.float32], said: list[list[int]]
) -> Tensor:
    """The published full-duplex sequence, written out: embeddings of header, units and what was said."""
    embed = reference.llm.get_input_embeddings()
    rests = [marker(model, name) for name in ("<|listen|>", "<|chunk_eos|>", "<|chunk_tts_eos|>")]
    parts = [embed(torch.tensor(model._chat.header))]
    for number, heard in enumerate(reference.embed(audio).split(10)):
        closing = []
        if number:
            cut = [] if said[number - 1][-1] in rests else [marker(model, "<|chunk_eos|>")]
            closing = [*said[number - 1], *cut, marker(model, "</unit>")]
        parts += [embed(torch.tensor([*closing, marker(model, "<unit>")])), heard]
    return torch.cat([*parts, embed(torch.tensor(said[-1], dtype=torch.long))])


@torch.inference_mode()
def test_full_duplex_logits_equal_the_parts_of_transformers(reference: Reference, folder: Path) -> None:
    watched = Watched(profile(folder))
    starts = {1: 0, 2: 2, 3: 9}
    audio = {session: speech(54 - start, session) for session, start in starts.items()}
    said: dict[int, list[list[int]]] = {session: [] for session in starts}
    ended = 0
    for frame in range(54):
        for session, start in starts.items():
            if start == frame:
                assert watched.model.open(session, seed=0) is None
        live = {session: frame - start for session, start in starts.items() if start <= frame}
        before = {s: len(watched.ids.get(watched.model._calls[s].talk.engine_session, [])) for s in live}
        events = watched.tick({s: audio[s][at * RATE : (at + 1) * RATE] for s, at in live.items()})
        ended += sum(event.end for event in events if isinstance(event, Said))
        for session in live:
            said[session].append(watched.said(session)[before[session] :])
            assert 1 <= len(said[session][-1]) <= TAU
    lengths = [len(unit) for units in said.values() for unit in units]
    assert {1, TAU} <= set(lengths), "some units are listened to, some spoken in to the end"
    assert ended, "some replies end"
    for session in starts:
        inputs = by_hand(reference, watched.model, audio[session], said[session])
        want = reference.logits(inputs)
        found = watched.logits(session)
        assert len(want) - TAU <= len(found) <= len(want), "what was said last is not in the cache yet"
        torch.testing.assert_close(found, want[: len(found)], atol=1e-4, rtol=0)
