"""Many paced calls from one thread: 20 ms packets at their due times, and probes of the gateway's delay.

Knows:   WebSocket bytes (through `websockets`), due times, one thread, epoll.
Ignores: who serves, what the numbers are compared with.

Every packet is a whole `input_audio_buffer.append` event of 20 ms at 24 kHz, framed and masked beforehand, so
that sending one is one system call. Behind some packets, at seeded moments, goes an
`input_audio_buffer.clear`: the gateway takes events in order, so its answer cannot come before the packet was
taken. Lag is the time from the packet's sending to that answer: it holds the way back too.

`python -m evals.gateway.callers` reads a Task as JSON from standard input, says "ready" once all calls are
in, reads the Times, and writes an Outcome.
"""

from __future__ import annotations

import gc
import math
import random
import select
import socket
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec
import numpy as np
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from metronome_cli import wire
from metronome_cli.clock import Clock, SystemClock

PACKET_S = 0.02
RATE = 24_000
_KINDS = 64  # different packets, so that no cache knows them all by heart
_ANSWER_S = 10.0
_UPDATE: dict[str, object] = {
    "type": "realtime",
    "audio": {
        "input": {"format": {"type": "audio/pcm", "rate": RATE}, "turn_detection": {"type": "full_duplex"}}
    },
}


class Task(msgspec.Struct):
    """What one process of callers does."""

    url: str
    calls: int
    probes_per_s: float
    seed: int
    ticks: bool = False  # whether the first call asks for tick events
    packets: bool = True  # False: the calls send nothing, but for the probes


class Times(msgspec.Struct):
    """When it does it, in seconds on the machine's monotonic clock."""

    start: float  # of the first packets
    measure: float  # what is sent before this is not measured
    stop: float


class Outcome(msgspec.Struct):
    """What it saw between `measure` and `stop`; lags and lateness in seconds."""

    sent: int = 0  # packets
    late: list[float] = []  # packets behind their due time, one in a few
    lags: list[float] = []
    ticks: list[float] = []  # from a tick's due time to its end
    skipped: int = 0  # beats
    errors: list[str] = []  # error events, first few
    lost: int = 0  # calls that ended or whose socket was full
    unanswered: int = 0  # probes
    cpu_share: float = 0.0


class Line:
    """One call's socket."""

    def __init__(self, url: str) -> None:
        host, port = urlsplit(url).hostname, urlsplit(url).port
        self.socket = socket.create_connection((host, port), timeout=_ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.protocol = ClientProtocol(parse_uri(url), max_size=None)
        self.probed: float | None = None  # when the probe that waits for its answer was sent

    def begin(self, settings: Mapping[str, object]) -> None:
        """Shake hands, set the session up, and wait until it is."""
        self.protocol.send_request(self.protocol.connect())
        self._flush()
        self._until(wire.SessionCreated)
        if self.protocol.handshake_exc:
            raise self.protocol.handshake_exc
        self.protocol.send_text(msgspec.json.encode({"type": "session.update", "session": settings}))
        self._flush()
        self._until(wire.SessionUpdated)
        self.socket.setblocking(False)

    def take(self) -> list[wire.ServerEvent]:
        """The events that have come. EOFError at the end of the connection."""
        data = self.socket.recv(65_536)
        if not data:
            raise EOFError
        self.protocol.receive_data(data)
        self._flush()  # pongs
        texts = [
            bytes(event.data)
            for event in self.protocol.events_received()
            if isinstance(event, Frame) and event.opcode is Opcode.TEXT
        ]
        events = [wire.decode_server_event(text) for text in texts]
        return [event for event in events if event]

    def _until(self, kind: type[wire.ServerEvent]) -> None:
        while not any(isinstance(event, kind) for event in self.take()):
            pass

    def _flush(self) -> None:
        for data in self.protocol.data_to_send():
            self.socket.sendall(data)


class Callers:
    """All calls of one process."""

    def __init__(self, task: Task, clock: Clock) -> None:
        self._task = task
        self._clock = clock
        self._draw = random.Random(task.seed)
        self._packets = _packets(task.seed)
        self._probe = _framed(wire.encode(wire.AudioClear()))
        self._lines = [Line(task.url) for _ in range(task.calls)]
        for number, line in enumerate(self._lines):
            line.begin(_UPDATE | {"metronome": {"ticks": task.ticks and number == 0}})
        self._poll = select.epoll()
        self._by_number = {line.socket.fileno(): line for line in self._lines}
        for number in self._by_number:
            self._poll.register(number, select.EPOLLIN)
        self._measure = math.inf
        self.outcome = Outcome()

    def wait(self) -> Times:
        """Keep the calls alive until somebody says when to begin."""
        self._poll.register(0, select.EPOLLIN)
        while 0 not in (ready := [number for number, _ in self._poll.poll()]):
            for number in ready:
                self._hear(self._by_number[number])
        self._poll.unregister(0)
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=Times)

    def run(self, times: Times) -> Outcome:
        """Send packets from `start` to `stop`, in turn: each call has its own phase within 20 ms."""
        task, turn = self._task, 0
        self._measure = times.measure
        gap = PACKET_S / len(self._lines)
        next_probe = times.measure
        self._listen_until(times.start)
        cpu = None
        while (due := times.start + turn * gap) < times.stop:
            if cpu is None and due >= times.measure:
                cpu = self._clock.cpu()
            self._listen_until(due)
            line = self._lines[turn % len(self._lines)]
            now = self._clock.now()
            if task.packets and line.socket.fileno() >= 0:
                self._send(line, self._packets[turn % _KINDS])
            if due >= times.measure:
                self.outcome.sent += task.packets
                if turn % 7 == 0:
                    self.outcome.late.append(now - due)
                if due >= next_probe and line.probed is None and line.socket.fileno() >= 0:
                    line.probed = now
                    self._send(line, self._probe)
                    next_probe = due + self._draw.expovariate(task.probes_per_s)
            turn += 1
        self.outcome.cpu_share = (self._clock.cpu() - (cpu or 0)) / (times.stop - times.measure)
        self._listen_until(times.stop + 1.0)
        self.outcome.unanswered = sum(line.probed is not None for line in self._lines)
        return self.outcome

    def _send(self, line: Line, data: bytes) -> None:
        try:
            whole = line.socket.send(data) == len(data)
        except OSError:
            whole = False
        if not whole:  # seconds of audio wait in the socket already: such a point is lost anyway
            self._lose(line)

    def _listen_until(self, due: float) -> None:
        """Read what comes until `due`; at least look once."""
        while True:
            left = due - self._clock.now()
            for number, _ in self._poll.poll(max(0.0, left), 64):
                self._hear(self._by_number[number])
            if self._clock.now() >= due:
                return

    def _hear(self, line: Line) -> None:
        try:
            events = line.take()
        except (EOFError, OSError):
            self._lose(line)
            return
        now = self._clock.now()
        for event in events:
            if isinstance(event, wire.AudioCleared) and line.probed is not None:
                self.outcome.lags.append(now - line.probed)
                line.probed = None
            elif isinstance(event, wire.TickEvent) and event.due >= self._measure:
                self.outcome.ticks.append(event.done - event.due)
                self.outcome.skipped += event.skipped
            elif isinstance(event, wire.ErrorEvent) and len(self.outcome.errors) < 3:
                self.outcome.errors.append(event.error.message)

    def _lose(self, line: Line) -> None:
        self.outcome.lost += 1
        self._poll.unregister(line.socket.fileno())
        line.socket.close()


def _packets(seed: int) -> list[bytes]:
    """Framed append events of seeded noise."""
    noise = np.random.default_rng(seed).normal(0, 3000, (_KINDS, int(RATE * PACKET_S)))
    pcm = noise.clip(-32768, 32767).astype("<i2")
    return [_framed(wire.encode(wire.AudioAppend(audio=packet.tobytes()))) for packet in pcm]


def _framed(text: bytes) -> bytes:
    return Frame(Opcode.TEXT, text).serialize(mask=True)


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.readline(), type=Task)
    callers = Callers(task, SystemClock())
    # From here on a pause of our own would look like one of the gateway.
    gc.freeze()
    gc.disable()
    sys.stdout.buffer.write(b"ready\n")
    sys.stdout.buffer.flush()
    sys.stdout.buffer.write(msgspec.json.encode(callers.run(callers.wait())))


if __name__ == "__main__":
    main()
