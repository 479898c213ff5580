"""Failures that users of other servers reported, played against ours: see docs/field-tests.md."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from starlette.websockets import WebSocket

from metronome_cli import wire
from metronome_cli.clock import SystemClock
from metronome_cli.models.assets import locate
from metronome_cli.models.null import REPLY
from metronome_cli.profile import parse_profile
from metronome_cli.server import messages
from metronome_cli.server.link import EngineLink
from metronome_cli.server.realtime import Call
from metronome_cli.speech import read_clips

from .running import PATIENCE_S, Server, call

Start = Callable[..., Server]
SECOND = bytes(32_000)  # of silence at 16 kHz
WINDOWS = 10


def test_a_call_many_windows_old_goes_on_in_the_same_blocks_and_nobody_notices(start: Start) -> None:
    server = start(frame_s=0.02, tau=20)

    async def scene() -> None:
        async with call(server) as old, call(server) as other:
            await old.ticking()
            await other.ticking()
            said = 0
            held = set()
            while said < WINDOWS * 64:  # running.PROFILE's window
                tick = await old.until(wire.TickEvent)
                said += tick.tokens_out
                held.add(tick.kv_blocks)
                assert not tick.stalled
                assert tick.tokens_out == 20
            bound = -(-3 // 4) + -(-(64 - 1 + 20) // 4) + 1  # ceil(S/b) + ceil((W-1+m)/b) + 1
            assert max(held) <= bound
            ticks = [await other.until(wire.TickEvent) for _ in range(WINDOWS)]
            assert [tick.frame - ticks[0].frame for tick in ticks] == list(range(WINDOWS))
            assert server.health()[0] == 200

    asyncio.run(scene())


def test_a_parked_call_is_told_of_its_end_though_nothing_else_happens(start: Start) -> None:
    server = start(mode="turn", idle_s=0.5, reaper_s=0.2)

    async def scene() -> None:
        async with call(server) as parked:
            assert (await parked.error()).code == "session_idle"
            assert await parked.hung_up() == wire.CLOSE_SESSION_IDLE
        assert server.health()[0] == 200

    asyncio.run(scene())


def test_after_a_minute_of_silence_speech_is_heard_and_answered_as_before(start: Start) -> None:
    server = start(mode="turn", max_pending_s=80)
    question = (read_clips(locate("questions"))[0].samples * 32767).astype("<i2").tobytes()

    async def scene() -> None:
        async with call(server) as caller:
            rate = {"format": {"type": "audio/pcm", "rate": 16_000}}
            await caller.updated(audio={"input": rate})
            for silence_s in (1, 60):
                for at in range(0, len(question), len(SECOND)):
                    await caller.say(wire.AudioAppend(audio=question[at : at + len(SECOND)]))
                await caller.say(wire.AudioAppend(audio=SECOND))
                done = await caller.until(wire.ResponseDone)
                assert done.response.status == "completed"
                assert done.response.output[0].content[0].text == "".join(REPLY)
                for _ in range(silence_s):
                    await caller.say(wire.AudioAppend(audio=SECOND))
            started = [seen for seen in caller.seen if isinstance(seen, wire.SpeechStarted)]
            assert len(started) == 2
            assert not [seen for seen in caller.seen if isinstance(seen, wire.ErrorEvent)]

    asyncio.run(scene())


def test_a_cancel_reaches_the_engine_though_nothing_can_be_sent_and_no_late_word_follows() -> None:
    async def scene() -> None:
        link = EngineLink(parse_profile("null", {"model": {"kind": "null", "mode": "turn"}}), SystemClock())
        cancelled = asyncio.Event()

        def asked(message: messages.ToEngine) -> None:
            if isinstance(message, messages.Cancel):
                cancelled.set()

        link.send = asked  # type: ignore[method-assign]
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        reads = asyncio.Event()
        told: list[dict[str, Any]] = []

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                await reads.wait()  # a network that takes nothing
                told.append(json.loads(message["text"]))

        scope = {"type": "websocket", "extensions": {"metronome.text": {"connection": SimpleNamespace()}}}
        caller = Call(link, link.metrics.profile, SystemClock())
        caller.opened(1)
        holding = asyncio.create_task(caller.hold(WebSocket(scope, incoming.get, send), []))
        await incoming.put({"type": "websocket.connect"})
        for kind in ("response.create", "response.cancel"):
            await incoming.put({"type": "websocket.receive", "text": json.dumps({"type": kind})})
        async with asyncio.timeout(PATIENCE_S):
            await cancelled.wait()
        assert told == []
        caller.heed(messages.Word(1, "late", True, False, False))
        caller.heed(messages.Cancelled(1))
        reads.set()
        await incoming.put({"type": "websocket.disconnect", "code": 1000})
        await holding
        kinds = [event["type"] for event in told]
        assert kinds == ["session.created", "response.created", "response.done"]
        assert told[-1]["response"]["status"] == "cancelled"

    asyncio.run(scene())


def test_no_event_is_taken_before_one_that_came_first_and_had_to_wait() -> None:
    """A frame that comes in pieces goes the longer way; what follows it must not overtake it."""

    async def scene() -> None:
        link = EngineLink(parse_profile("null", {"model": {"kind": "null"}}), SystemClock())
        caller = Call(link, link.metrics.profile, SystemClock())
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        told: list[dict[str, Any]] = []

        both = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "websocket.send":
                told.append(json.loads(message["text"]))
                if len(told) == 2:
                    both.set()

        def rubbish(name: str) -> str:
            return json.dumps({"type": "dance", "event_id": name})

        connection = SimpleNamespace()
        scope = {"type": "websocket", "extensions": {"metronome.text": {"connection": connection}}}
        holding = asyncio.create_task(caller.hold(WebSocket(scope, incoming.get, send), []))
        await incoming.put({"type": "websocket.connect"})
        await incoming.put({"type": "websocket.receive", "text": rubbish("first")})
        while not incoming.empty():  # noqa: ASYNC110  the moment right after it was taken out is the one
            await asyncio.sleep(0)
        if not connection.take(rubbish("second")):
            await incoming.put({"type": "websocket.receive", "text": rubbish("second")})
        async with asyncio.timeout(PATIENCE_S):
            await both.wait()
        await incoming.put({"type": "websocket.disconnect", "code": 1000})
        await holding
        assert [event["error"]["event_id"] for event in told] == ["first", "second"]

    asyncio.run(scene())
