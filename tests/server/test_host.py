"""What the engine process says of its model to whoever runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from metronome_cli.clock import SystemClock
from metronome_cli.frame import Said
from metronome_cli.models.null import NullModel
from metronome_cli.profile import parse_profile
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.server.host import Host


@pytest.fixture
def socket() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        yield socket


@pytest.mark.parametrize(("model", "told"), [({}, 1), ({"output": "text"}, 0), ({"output": "audio"}, 0)])
def test_sound_that_no_caller_can_get_is_told_once(
    socket: zmq.Socket[bytes],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    model: dict[str, Any],
    told: int,
) -> None:
    profile = parse_profile("mine", {"model": {"kind": "null", **model}})
    monkeypatch.setattr(Host, "_tell", lambda *_: None)  # there is no caller
    recorder = Recorder(None, SystemClock())
    with caplog.at_level(logging.WARNING):
        host = Host(profile, NullModel(profile), socket, recorder, SystemClock())
        for _ in range(3):
            host.said(Said(1, "la", pcm=bytes(4)))
    assert [record.getMessage() for record in caplog.records if "model.output" in record.getMessage()] == [
        'its sound is not sent: give the profile model.output = "audio", or "text"'
    ] * told
