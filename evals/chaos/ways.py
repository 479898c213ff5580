"""The ways in which a caller leaves without a proper end.

Knows:   sockets and WebSocket frames, broken on purpose; seeded choices of when.
Ignores: how many callers there are, and what the server makes of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from .voice import voice

PACKET_S = 0.04
RATES = (24_000, 16_000, 8_000)
MODES = ("server_vad", "full_duplex", None)
PATIENCE_S = 20.0  # for the server to end a call that only waits
SPOKEN_S = (0.0, 1.5)  # how long a caller speaks before it vanishes
CODES = (1000, 1001, 1002, 1011, 3000, 4999)


@dataclass
class Vanisher:
    """One caller: where it calls, and its own randomness."""

    address: str
    draw: random.Random

    @property
    def place(self) -> tuple[str, int]:
        parts = urlsplit(self.address)
        return str(parts.hostname), int(parts.port or 0)

    @asynccontextmanager
    async def call(self) -> AsyncIterator[ClientConnection]:
        """A call that was let in; what the server says is read and forgotten."""
        async with connect(self.address, compression=None, proxy=None, close_timeout=1) as line:
            await line.recv()
            yield line

    async def speak(self, line: ClientConnection, seconds: float | None = None) -> None:
        """Settle on a format, then send speech in packets and read meanwhile, while the call lasts."""
        rate = self.draw.choice(RATES)
        detection = self.draw.choice(MODES)
        listening = {
            "format": {"type": "audio/pcm", "rate": rate},
            "turn_detection": detection and {"type": detection},
        }
        reading = asyncio.create_task(_read(line))
        with suppress(ConnectionClosed):
            await line.send(update({"audio": {"input": listening}}))
            left = self.draw.uniform(*SPOKEN_S) if seconds is None else seconds
            while left > 0 and not reading.done():
                await line.send(self.packet(rate))
                await asyncio.sleep(PACKET_S)
                left -= PACKET_S
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    def packet(self, rate: int) -> str:
        """Speech from anywhere in the recordings."""
        pcm, size = voice(rate), int(rate * PACKET_S) * 2
        at = self.draw.randrange(0, len(pcm) - size, 2)
        audio = base64.b64encode(pcm[at : at + size]).decode()
        return json.dumps({"type": "input_audio_buffer.append", "audio": audio})

    def upgrade(self) -> bytes:
        """The request of a WebSocket client."""
        key = base64.b64encode(self.draw.randbytes(16)).decode()
        host, port = self.place
        return (
            f"GET {urlsplit(self.address).path} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        ).encode()


async def _read(line: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        async for _ in line:
            pass


def update(session: dict[str, object]) -> str:
    """A session.update event."""
    return json.dumps({"type": "session.update", "session": {"type": "realtime", **session}})


async def resume_token(line: ClientConnection) -> str:
    """Ask for the token with which a lost call can be taken up again."""
    await line.send(update({"metronome": {"resume": True}}))
    while True:
        event = json.loads(await line.recv())
        if event["type"] == "session.updated":
            return str(event["session"]["metronome"]["resume_token"])


def reset(transport: asyncio.WriteTransport) -> None:
    """End a connection, if it is still there, with a TCP reset, whatever lies in its buffers."""
    if transport.is_closing():
        return
    raw = transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


# ---- The ways ----------------------------------------------------------------------------------


async def reset_after_speech(client: Vanisher) -> None:
    async with client.call() as line:
        await client.speak(line)
        reset(line.transport)


async def close_without_goodbye(client: Vanisher) -> None:
    async with client.call() as line:
        await client.speak(line)
        line.transport.close()


async def goodbye(client: Vanisher) -> None:
    async with client.call() as line:
        await client.speak(line)
        await line.close(client.draw.choice(CODES), client.draw.choice(("", "bye")))


async def stop_reading(client: Vanisher) -> None:
    """Speak on and never read again, until the server ends it."""
    async with client.call() as line:
        line.transport.pause_reading()
        with suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while not line.transport.is_closing():
                    await line.send(client.packet(24_000))
                    await asyncio.sleep(PACKET_S)
        reset(line.transport)


async def half_an_event(client: Vanisher) -> None:
    """A frame that breaks off in its middle; the connection then ends, or hangs for a while."""
    async with client.call() as line:
        await client.speak(line, client.draw.uniform(0, 0.5))
        whole = Frame(Opcode.TEXT, client.packet(24_000).encode()).serialize(mask=True)
        with suppress(RuntimeError):  # the server ended it first
            line.transport.write(whole[: client.draw.randrange(1, len(whole))])
        await asyncio.sleep(client.draw.choice((0.0, 0.1, 1.0)))
        client.draw.choice((reset, _finish))(line.transport)


async def in_the_upgrade(client: Vanisher) -> None:
    """Part of a request, or all of it, and never an ear for the answer."""
    _, writer = await asyncio.open_connection(*client.place)
    request = client.upgrade()
    writer.write(request[: client.draw.randint(1, len(request))])
    with suppress(ConnectionError):
        await writer.drain()
        await asyncio.sleep(client.draw.choice((0.0, 0.0, 0.01, 0.3)))
    client.draw.choice((reset, _finish))(writer.transport)


async def right_after_created(client: Vanisher) -> None:
    async with client.call() as line:
        client.draw.choice((reset, _finish))(line.transport)


async def during_a_reply(client: Vanisher) -> None:
    """After a few tokens of the answer."""
    async with client.call() as line:
        left = client.draw.randint(1, 12)
        while left:
            left -= json.loads(await line.recv())["type"] == "response.output_text.delta"
        client.draw.choice((reset, _finish))(line.transport)


async def never_comes_back(client: Vanisher) -> None:
    """Asks for a token with which to come back, loses the line, and never does."""
    async with client.call() as line:
        await resume_token(line)
        await client.speak(line)
        client.draw.choice((reset, _finish))(line.transport)


async def comes_back_and_vanishes(client: Vanisher) -> None:
    """Takes a lost call up again, and loses it again."""
    async with client.call() as line:
        token = await resume_token(line)
        reset(line.transport)
    await asyncio.sleep(client.draw.uniform(0, 1))
    again = f"{client.address}?resume={token}"
    async with connect(again, compression=None, proxy=None, close_timeout=1) as line:
        await client.speak(line, 0.3)
        reset(line.transport)


async def killed(client: Vanisher) -> None:
    """A process that is killed while it speaks."""
    command = (sys.executable, "-IS", str(Path(__file__).with_name("killed.py")), *map(str, client.place))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()  # it speaks
    await asyncio.sleep(client.draw.uniform(0, 0.5))
    process.kill()
    await process.wait()


async def idle(client: Vanisher) -> None:
    """Says nothing, and reads what it is told until the server ends it."""
    async with client.call() as line:
        with suppress(ConnectionClosed):
            async with asyncio.timeout(PATIENCE_S):
                await _read(line)
        assert line.close_code == 4408, f"an idle call was ended with {line.close_code}"


def _finish(transport: asyncio.WriteTransport) -> None:
    transport.close()


Way = Callable[[Vanisher], Awaitable[None]]

# How often each is drawn. Calls that wait for the server to end them hold a place for seconds.
WAYS: dict[Way, int] = {
    reset_after_speech: 16,
    close_without_goodbye: 14,
    goodbye: 12,
    half_an_event: 10,
    in_the_upgrade: 12,
    right_after_created: 8,
    during_a_reply: 10,
    never_comes_back: 6,
    comes_back_and_vanishes: 4,
    killed: 4,
    idle: 2,
    stop_reading: 2,
}
