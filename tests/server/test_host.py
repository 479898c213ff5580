"""What the engine process says of its model to whoever runs it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from metronome_cli.clock import SystemClock, VirtualClock
from metronome_cli.frame import Said
from metronome_cli.models.null import NullModel
from metronome_cli.profile import parse_profile
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.server import messages
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
    profile = parse_profile("mine", {"model": {"kind": "speaker:Speaker", **model}})
    monkeypatch.setattr(Host, "_tell", lambda *_: None)  # there is no caller
    recorder = Recorder(None, SystemClock())
    with caplog.at_level(logging.WARNING):
        host = Host(profile, NullModel(profile), socket, recorder, SystemClock())
        for _ in range(3):
            host.said(Said(1, "la", pcm=bytes(4)))
    assert [record.getMessage() for record in caplog.records if "model.output" in record.getMessage()] == [
        'its sound is not sent: give the profile model.output = "audio", or "text"'
    ] * told


def test_who_spoke_while_the_engine_was_long_in_a_tick_was_not_idle(
    socket: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What he said waits on the line: he must not be closed for silence before it is taken."""
    profile = parse_profile("mine", {"model": {"kind": "null"}})  # idle after 60 s, looked for every 2
    ended: list[messages.Ended] = []

    def tell(_: Host, __: int, message: messages.ToCaller) -> None:
        if isinstance(message, messages.Ended):
            ended.append(message)

    monkeypatch.setattr(Host, "_tell", tell)
    monkeypatch.setattr(Host, "_send", lambda *_: None)
    clock = VirtualClock(100.0)
    host = Host(profile, NullModel(profile), socket, Recorder(None, clock), clock)
    host._take(b"gateway", messages.Hello(messages.PROTOCOL))
    for request in (1, 2):
        host._take(b"gateway", messages.Open(request))
    clock.advance(70.0)  # in one tick
    host._reap()
    assert ended == []
    host._take(b"gateway", messages.Audio(1, 128, bytes(640), None))
    clock.advance(2.0)
    host._reap()
    assert [(end.session, end.code) for end in ended] == [(2, "session_idle")]
    clock.advance(70.0)
    host._reap()
    clock.advance(10.0)  # and again: a beat that is always late must not keep the dead for ever
    host._reap()
    assert [end.session for end in ended] == [2, 1]
