"""A gateway that speaks nonsense to the engine process, over its own line.

Knows:   the engine's messages, how they can be broken, where the line lies.
Ignores: callers. Stop is never said: whoever greets the engine may end it.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
import zmq

from metronome_cli.server import messages

from .watched import Watched

CHECK_EVERY = 100
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 1.5, float("nan"), "", "x", "a" * 70_000, b"", b"abc", b"\xff" * 8,
    [], [[]], {}, {"window": 7}, {"policy": "unbounded"}, {"window": -1}, {"sinks": "x"}, {"unknown": 1},
)  # fmt: skip
_PATIENCE_MS = 5000


def speak(server: Watched, seed: int, count: int) -> dict[str, Any]:
    """`count` messages of a gateway that greeted the engine and holds a call, and of one that did neither."""
    (line,) = server.folder.glob("metronome-*/engine")
    draw = random.Random(f"rogue {seed}")
    faults = []
    with (
        zmq.Context() as context,
        context.socket(zmq.DEALER) as known,
        context.socket(zmq.DEALER) as stranger,
    ):
        for socket in (known, stranger):
            socket.linger = 0
            socket.sndtimeo = _PATIENCE_MS  # an engine that died takes nothing
            socket.connect(f"ipc://{line}")
        known.send(messages.pack(messages.Hello(messages.PROTOCOL)))
        session = _open(known)
        for number in range(count):
            socket = stranger if draw.random() < 0.2 else known
            sent = _broken(draw, session, number)
            socket.send_multipart(sent)
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                known.send(messages.pack(messages.Close(session)))
                session = _open(known)
            if not session:
                faults.append(
                    f"nobody is let in any more after message {number}: {sent!r:.200} or one before"
                )
                break
        known.send(messages.pack(messages.Close(session)))
    return {"count": count, "faults": faults}


def _open(socket: zmq.Socket[bytes]) -> int:
    """The number of a new session; 0 when none is to be had."""
    socket.send(messages.pack(messages.Open(7)))
    while socket.poll(_PATIENCE_MS):
        try:
            message = messages.to_gateway(socket.recv())
        except msgspec.DecodeError:
            continue
        if isinstance(message, messages.Opened) and message.request == 7:
            return message.session
        if isinstance(message, messages.TurnedAway):
            return 0
    return 0


def _broken(draw: random.Random, session: int, number: int) -> list[bytes]:
    """One message in parts: good, or with a field, a bit or its end changed, or nothing like it."""
    good = draw.choice(
        (
            messages.Audio(session, number, bytes(4 * draw.randint(0, 400)), None),
            messages.Text(session, number, "hello there", "mine"),
            messages.Commit(session, number),
            messages.Cancel(session, number),
            messages.Clear(session, number),
            messages.Turns(session, number, draw.random() < 0.5, 3),
            messages.Reply(session, number, 5),
            messages.Settle(session, number, {"window": 32}, None),
            messages.Heartbeat(),
            messages.Hello(messages.PROTOCOL),
        )
    )
    kind = draw.random()
    if kind < 0.3:
        data = messages.pack(good)
    elif kind < 0.6:
        fields = msgspec.to_builtins(good, builtin_types=(bytes,))
        fields[draw.randrange(len(fields))] = draw.choice(VALUES)
        data = msgspec.msgpack.encode(fields)
    elif kind < 0.8:
        flipped = bytearray(messages.pack(good))
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        data = bytes(flipped)
    else:
        whole = messages.pack(good)
        data = draw.choice(
            (whole[: draw.randrange(len(whole) + 1)], draw.randbytes(draw.randint(0, 99)), b"")
        )
    cut = draw.randrange(len(data) + 1)
    return [data[:cut], data[cut:]] if draw.random() < 0.1 else [data]
