"""Events on their way to one caller: in order, bounded, and kept for one who comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.websockets import WebSocket

from metronome_cli import wire
from metronome_cli.clock import VirtualClock
from metronome_cli.profile import parse_profile
from metronome_cli.server import outbox as module
from metronome_cli.server.metrics import Metrics
from metronome_cli.server.outbox import MAX_OUTGOING, PATIENCE_S, Outbox


class Line:
    """The far end of a connection: what arrived, and the code it was closed with."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.closed: int | None = None
        self.reads = asyncio.Event()
        self.reads.set()
        self.socket = WebSocket({"type": "websocket"}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def _send(self, message: Any) -> None:
        await self.reads.wait()
        if message["type"] == "websocket.close":
            self.closed = message["code"]
        elif message["type"] == "websocket.send":
            self.came.append(json.loads(message["text"])["event_id"])


def outbox(keep: int = 0, clock: VirtualClock | None = None) -> Outbox:
    made = Outbox(Metrics(parse_profile("null", {"model": {"kind": "null"}})), clock or VirtualClock())
    made.keep(keep)
    return made


def event(number: int | str) -> wire.AudioCleared:
    return wire.AudioCleared(event_id=f"{number}")


def put(box: Outbox, count: int) -> bool:
    """Put the next `count` events; whether all were taken."""
    taken = [box.put(event(box.number + 1)) for _ in range(count)]
    return all(taken)


async def connect(box: Outbox, again: list[bytes] | None = None) -> tuple[Line, asyncio.Task[None]]:
    line = Line()
    box.begin(again or [])
    await line.socket.accept()
    return line, asyncio.create_task(box.run(line.socket))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def scene(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 5))


def numbers(events: list[bytes] | None) -> list[int]:
    return [int(json.loads(kept)["event_id"]) for kept in events or []]


def test_events_leave_in_the_order_in_which_they_are_put() -> None:
    async def play() -> None:
        box = outbox()
        put(box, 3)  # before anybody is there
        line, _ = await connect(box)
        await settle()
        put(box, 2)
        await settle()
        assert line.came == ["1", "2", "3", "4", "5"]

    scene(play)


def test_who_does_not_read_is_refused_more_than_may_wait() -> None:
    async def play() -> None:
        clock = VirtualClock()
        box = outbox(clock=clock)
        line, _ = await connect(box)
        line.reads.clear()
        assert put(box, MAX_OUTGOING)
        await settle()  # one is on the network now
        clock.advance(60.0)  # however long it waits, it may
        assert put(box, 2)  # from here on it is too much
        clock.advance(PATIENCE_S)
        assert put(box, 1)
        clock.advance(0.1)
        assert not put(box, 1)

    scene(play)


def test_what_comes_in_one_go_is_no_reason_to_call_its_reader_slow() -> None:
    async def play() -> None:
        clock = VirtualClock()
        box = outbox(clock=clock)
        line, _ = await connect(box)
        for _ in range(3):
            assert put(box, 3 * MAX_OUTGOING)
            await settle()  # it reads all of it
            clock.advance(2 * PATIENCE_S)
        assert len(line.came) == 9 * MAX_OUTGOING

    scene(play)


def test_nor_may_one_go_be_without_end() -> None:
    async def play() -> None:
        box = outbox()
        assert put(box, 4 * MAX_OUTGOING)
        assert not put(box, 1)

    scene(play)


def test_nor_more_bytes_than_may_wait_but_one_event_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OUTGOING_BYTES", 1000)

    def sound(number: int, size: int) -> wire.AudioDelta:
        return wire.AudioDelta(event_id=f"{number}", response_id="r", item_id="i", delta=bytes(size))

    async def play() -> None:
        clock = VirtualClock()
        box = outbox(clock=clock)
        line, _ = await connect(box)
        line.reads.clear()
        assert box.put(sound(1, 5000))
        await settle()  # it is on the network now
        assert box.put(sound(2, 5000))
        assert not box.put(sound(3, 10))  # and four times as much is no burst any more
        line.reads.set()
        await settle()
        assert box.put(sound(4, 450))
        await settle()
        assert line.came == ["1", "2", "4"]
        line.reads.clear()
        assert box.put(sound(5, 450))
        await settle()
        assert [box.put(sound(number, 450)) for number in (6, 7)] == [True, True]
        clock.advance(PATIENCE_S + 0.1)
        assert not box.put(sound(8, 450))

    scene(play)


def test_a_hang_up_overtakes_what_waits_and_closes() -> None:
    async def play() -> None:
        box = outbox()
        put(box, 3)
        error = wire.ErrorEvent(event_id="last", error=wire.ErrorDetail(type="t", code="c", message="m"))
        box.hang_up(error, 4408)
        box.hang_up(None, 1011)  # the first reason counts
        assert put(box, 1)  # nobody hears it, and it is no mistake
        line, task = await connect(box)
        await task
        assert (line.came, line.closed) == (["last"], 4408)

    scene(play)


def test_a_caller_who_does_not_read_does_not_delay_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HANG_UP_S", 0.0)

    async def play() -> None:
        box = outbox()
        line, task = await connect(box)
        line.reads.clear()
        put(box, 2)
        await settle()
        box.hang_up(None, 4429)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert line.came == []

    scene(play)


def test_what_is_put_while_nobody_is_there_is_sent_again_byte_for_byte() -> None:
    async def play() -> None:
        box = outbox(keep=10_000)
        first, task = await connect(box)
        put(box, 4)
        await settle()
        task.cancel()
        box.end()
        put(box, 3)
        again = box.since(2)
        assert numbers(again) == [3, 4, 5, 6, 7]
        second, _ = await connect(box, again)
        put(box, 1)
        await settle()
        assert first.came == ["1", "2", "3", "4"]
        assert second.came == ["3", "4", "5", "6", "7", "8"]

    scene(play)


def test_what_is_put_while_a_connection_is_being_accepted_is_not_lost() -> None:
    async def play() -> None:
        box = outbox(keep=10_000)
        put(box, 2)
        box.end()
        line = Line()
        line.reads.clear()
        box.begin(box.since(0) or [])
        accepting = asyncio.create_task(line.socket.accept())
        await settle()
        put(box, 2)
        line.reads.set()
        await accepting
        running = asyncio.create_task(box.run(line.socket))
        await settle()
        running.cancel()
        assert line.came == ["1", "2", "3", "4"]

    scene(play)


def test_a_long_replay_does_not_count_as_reading_too_slowly() -> None:
    async def play() -> None:
        box = outbox(keep=1_000_000)
        box.end()
        put(box, 3 * MAX_OUTGOING)
        line = Line()
        box.begin(box.since(0) or [])
        assert put(box, 10)
        await line.socket.accept()
        task = asyncio.create_task(box.run(line.socket))
        await settle()
        task.cancel()
        assert len(line.came) == 3 * MAX_OUTGOING + 10

    scene(play)


def test_only_so_many_bytes_are_kept() -> None:
    box = outbox(keep=10 * len(wire.encode(event(10))))
    put(box, 40)
    assert numbers(box.since(30)) == list(range(31, 41))
    assert box.since(29) is None
    assert box.since(40) == []
    assert box.since(41) is None
    assert box.since(-1) is None


def test_nothing_is_kept_for_who_did_not_ask() -> None:
    box = outbox()
    put(box, 3)
    assert box.since(2) is None
    box.keep(10_000)
    put(box, 2)
    assert numbers(box.since(3)) == [4, 5]
    assert box.since(2) is None
    box.keep(0)
    assert box.since(4) is None


def test_a_connection_that_was_told_to_close_makes_room_for_another() -> None:
    async def play() -> None:
        box = outbox(keep=10_000)
        first, task = await connect(box)
        put(box, 2)
        await settle()
        box.let_go(4409)
        await task
        box.end()
        assert first.closed == 4409
        second, _ = await connect(box, box.since(2))
        put(box, 1)
        await settle()
        assert (second.came, second.closed) == (["3"], None)

    scene(play)
