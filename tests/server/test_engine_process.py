"""The engine process alone, spoken to as a gateway would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pytest
import zmq

import metronome_cli
from metronome_cli import trace
from metronome_cli.profile import load_profile
from metronome_cli.server import messages

from .running import PATIENCE_S, write_profile

SOURCE = Path(metronome_cli.__file__).parents[1]
Message = TypeVar("Message", bound=msgspec.Struct)


class Gateway:
    """One gateway's socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)

    def say(self, message: messages.ToEngine) -> None:
        self.socket.send(messages.pack(message))

    def until(self, kind: type[Message]) -> Message:
        """The next message of that kind."""
        while self.socket.poll(int(PATIENCE_S * 1000)):
            message = messages.to_gateway(self.socket.recv())
            if isinstance(message, kind):
                return message
        raise AssertionError(f"no {kind.__name__} came")

    def greet(self) -> None:
        self.say(messages.Hello(messages.PROTOCOL))
        self.until(messages.Ready)

    def open(self) -> int:
        self.say(messages.Open(1))
        return self.until(messages.Opened).session

    def hear(self, session: int, seconds: float) -> None:
        samples = np.zeros(int(seconds * 16_000), np.float32).tobytes()
        self.say(messages.Audio(session, 1, samples, None))


class Engine:
    """An engine process, and gateways to it."""

    def __init__(self, folder: Path, address: str, **values: object) -> None:
        profile = load_profile(str(write_profile(folder, **values)))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "metronome_cli.server.engine_process"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        setup = messages.Setup(address, profile.model_dump(), str(folder))
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(setup) + b"\n")
        self.process.stdin.flush()
        self.folder = folder
        self._address = address
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gateways: list[Gateway] = []

    def gateway(self) -> Gateway:
        self._gateways.append(Gateway(self._context, self._address))
        return self._gateways[-1]

    def said(self) -> tuple[int, str]:
        """Exit code and standard error, once it has ended by itself."""
        _, text = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text.decode()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        for gateway in self._gateways:
            gateway.socket.close()
        self._context.term()


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Start an engine process of this test's own."""
    engines: list[Engine] = []

    def start(**values: object) -> Engine:
        engines.append(Engine(tmp_path, f"ipc://{tmp_path}/engine", **values))
        return engines[-1]

    yield start
    for engine in engines:
        engine.end()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that must outlive all that gateways say to it."""
    folder = tmp_path_factory.mktemp("engine")
    running = Engine(folder, f"ipc://{folder}/engine", frame_s=0.05, max_sessions=40, blocks=2000)
    yield running
    assert running.process.poll() is None
    running.end()


def test_another_protocol_is_told_so(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.say(messages.Hello(messages.PROTOCOL + 1))
    failed = gateway.until(messages.Failed)
    assert f"protocol {messages.PROTOCOL + 1}" in failed.message
    assert "install one version" in failed.message
    assert failed.exit_code == 1


def test_the_calls_of_a_silent_gateway_are_closed(begin: Callable[..., Engine]) -> None:
    engine = begin(reaper_s=0.4)
    silent, lively = engine.gateway(), engine.gateway()
    silent.greet()
    lost = silent.open()
    lively.greet()
    kept = lively.open()
    while True:
        lively.say(messages.Heartbeat())
        frame = lively.until(messages.FrameDone)
        if frame.event.kv_leased == frame.event.kv_blocks:
            break
    ended = silent.until(messages.Ended)
    assert (ended.session, ended.code) == (lost, "session_lost")
    assert frame.session == kept


def test_every_gateway_hears_of_every_tick_with_calls_or_without(begin: Callable[..., Engine]) -> None:
    engine = begin(max_sessions=3, frame_s=0.05)
    one, other = engine.gateway(), engine.gateway()
    one.greet()
    other.greet()
    empty = [gateway.until(messages.Beat) for gateway in (one, other)]
    assert [(beat.tick.sessions, beat.sessions, beat.tick.cap, beat.firsts) for beat in empty] == [
        (0, 0, 3, []),
        (0, 0, 3, []),
    ]
    one.open()
    while not (mine := one.until(messages.Beat)).tick.sessions:
        pass
    while (theirs := other.until(messages.Beat)).tick.tick < mine.tick.tick:
        pass
    assert theirs == mine
    assert (mine.sessions, mine.speaking, mine.tick.cap, len(mine.firsts)) == (1, 1, 3, 1)
    assert mine.room is not None
    assert empty[0].room is not None
    assert mine.room < empty[0].room
    assert 0 < mine.firsts[0] <= mine.lasts[0]


def test_a_tick_is_told_of_after_its_frames(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.greet()
    gateway.open()
    frame = gateway.until(messages.FrameDone)
    assert gateway.until(messages.Beat).tick.tick == frame.event.tick


def test_a_clear_is_confirmed_before_anything_is_told_of_what_came_after_it(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.greet()
    session = gateway.open()
    gateway.say(messages.Clear(session, 1))
    gateway.say(messages.Clear(session, 2))
    gateway.say(messages.Commit(session, 3))
    assert [gateway.until(messages.Cleared) for _ in range(2)] == [messages.Cleared(session)] * 2
    assert gateway.until(messages.Heard).over == 1


def test_nobody_touches_the_call_of_another_gateway(engine: Engine) -> None:
    owner, thief = engine.gateway(), engine.gateway()
    owner.greet()
    thief.greet()
    session = owner.open()
    thief.hear(session, 0.5)
    thief.say(messages.Close(session))
    thief.open()  # answered after the two before it
    first = owner.until(messages.FrameDone).event
    later = owner.until(messages.FrameDone).event
    assert later.audio_end_ms == 0
    assert later.frame == first.frame + 1


def test_rubbish_on_the_line_disturbs_nobody(engine: Engine) -> None:
    gateway, stranger = engine.gateway(), engine.gateway()
    gateway.greet()
    session = gateway.open()
    for rubbish in (b"", b"\xc1", b"\x93\x01\x02\x03", messages.pack(messages.Ready(0, 0, "", None, ""))):
        stranger.socket.send(rubbish)
    stranger.say(messages.Open(7))  # without a hello
    stranger.socket.send_multipart([b"one", b"two"])
    gateway.hear(session, 0.1)
    while gateway.until(messages.FrameDone).event.audio_end_ms < 100:
        pass
    assert stranger.socket.poll(0) == 0


def test_one_message_may_have_many_parts(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.greet()
    session = gateway.open()
    samples = np.zeros(1_600, np.float32).tobytes()
    said = [messages.pack(messages.Audio(session, mark, samples, None)) for mark in (1, 2, 3)]
    gateway.socket.send_multipart([*said[:2], b"rubbish", said[2]])
    while (frame := gateway.until(messages.FrameDone)).mark < 3:
        pass
    assert frame.event.audio_end_ms == 300


def test_half_a_sample_and_terms_that_are_none_are_left_out(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.greet()
    session = gateway.open()
    gateway.say(messages.Audio(session, 1, b"abc", None))
    gateway.say(messages.Settle(session, 2, {"window": -1}, None))
    gateway.say(messages.Settle(session, 3, {"no such": 1}, None))
    gateway.hear(session, 0.1)
    while gateway.until(messages.FrameDone).event.audio_end_ms < 100:
        pass


def test_a_frame_returns_how_far_the_calls_messages_were_taken(engine: Engine) -> None:
    gateway = engine.gateway()
    gateway.greet()
    session = gateway.open()
    gateway.say(messages.Text(session, 500, "hello", None))
    gateway.say(messages.Commit(session, 700))
    while (frame := gateway.until(messages.FrameDone)).mark in (0, 500):  # a tick may fall between the two
        pass
    assert frame.mark == 700


def test_a_call_opened_and_closed_between_two_tokens_leaves_nothing_behind(
    begin: Callable[..., Engine],
) -> None:
    gateway = begin(frame_s=0.02, tau=50).gateway()
    gateway.greet()
    stays = gateway.open()
    for _ in range(50):
        gateway.say(messages.Close(gateway.open()))
    frame = gateway.until(messages.FrameDone)
    while frame.event.kv_leased != frame.event.kv_blocks:
        frame = gateway.until(messages.FrameDone)
    assert frame.session == stays


def test_the_end_of_its_input_ends_the_process_with_its_files_whole(begin: Callable[..., Engine]) -> None:
    engine = begin()
    gateway = engine.gateway()
    gateway.greet()
    gateway.open()
    gateway.until(messages.FrameDone)
    assert engine.process.stdin is not None
    engine.process.stdin.close()
    engine.process.stdin = None
    assert engine.said() == (0, "")
    assert list(trace.read_records(engine.folder / "trace.jsonl", trace.TickRecord))
    assert list(trace.read_records(engine.folder / "frames.jsonl", trace.FrameRecord))


def test_a_model_that_cannot_start_says_why_with_its_exit_code(begin: Callable[..., Engine]) -> None:
    engine = begin(blocks=21)  # the profile alone needs so many; its header of three tokens one more
    gateway = engine.gateway()
    gateway.say(messages.Hello(messages.PROTOCOL))
    failed = gateway.until(messages.Failed)
    assert failed.exit_code == 2
    assert failed.message.startswith("pool.blocks = 21: ")
    assert engine.said() == (2, "")


# Reads something more until it may go on: so a checkpoint does, tensor by tensor.
READS = """
from pathlib import Path
from metronome_cli.engine.progress import watcher
from metronome_cli.errors import AssetError
from metronome_cli.models.null import NullModel

class Reads(NullModel):
    def __init__(self, profile):
        while not (go := Path(__file__).with_name("go")).exists():
            watcher()(1, 2)
        if go.read_text():
            raise AssetError(go.read_text())
        super().__init__(profile)
"""


@pytest.mark.parametrize("fails", ["", "half of it is missing"])
def test_a_model_that_is_read_gives_signs_and_who_heard_them_hears_how_it_ended(
    begin: Callable[..., Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    (tmp_path / "reads.py").write_text(READS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{SOURCE}")
    gateway = begin(kind="reads:Reads").gateway()
    gateway.say(messages.Hello(messages.PROTOCOL))
    gateway.until(messages.Loading)
    (tmp_path / "new").write_text(fails)
    (tmp_path / "new").rename(tmp_path / "go")
    if fails:
        assert gateway.until(messages.Failed).message == fails
    else:
        gateway.until(messages.Ready)
        assert gateway.open() == 1
