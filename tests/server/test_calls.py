"""A call that loses its connection, and takes it up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from metronome_cli import wire
from metronome_cli.clock import SystemClock

from .running import PATIENCE_S, WHOLE, Caller, Server, call, outlasting

Start = Callable[..., Server]


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers when it is asked to, one token a frame, and waits a while for who was cut off."""
    with outlasting(
        tmp_path_factory.mktemp("calls"), mode="turn", tau=1, frame_s=0.05, more="grace_s = 0.8"
    ) as running:
        yield running


class Resumable:
    """A caller who reads events as they were sent, and whose line may break."""

    def __init__(self, server: Server, line: ClientConnection) -> None:
        self.server = server
        self.line = line
        self.token = ""
        self.raw: list[str] = []  # over all connections, each event once

    async def hear(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            text = str(await self.line.recv())
        event: dict[str, Any] = json.loads(text)
        if not event["type"].startswith("metronome.resumed"):
            self.raw.append(text)
        return event

    async def until(self, kind: str) -> dict[str, Any]:
        while (event := await self.hear())["type"] != kind:
            pass
        return event

    async def say(self, kind: str, **fields: Any) -> None:
        await self.line.send(json.dumps({"type": kind, **fields}))

    async def ask(self) -> None:
        await self.say("response.create")

    def address(self, after: str | None) -> str:
        return f"{self.server.address}?resume={self.token}" + (f"&after={after}" if after else "")

    async def again(self, after: str | None) -> dict[str, Any]:
        """Take the call up over a new line; what the server says first."""
        self.line = await connect(self.address(after), compression=None, proxy=None, close_timeout=0.5)
        hello = await self.hear()
        assert hello["type"] == "metronome.resumed"
        return hello

    def break_off(self) -> None:
        self.line.transport.abort()

    @property
    def last(self) -> str:
        """The id of the last event that came."""
        return str(json.loads(self.raw[-1])["event_id"])

    async def refused(self, after: str | None = None) -> tuple[int, str]:
        with pytest.raises(InvalidStatus) as caught:
            await connect(self.address(after), compression=None, proxy=None)
        answer = caught.value.response
        assert "Retry-After" not in answer.headers
        return answer.status_code, json.loads(answer.body or b"")["error"]["code"]


@asynccontextmanager
async def resumable(server: Server, **settings: Any) -> AsyncIterator[Resumable]:
    async with connect(server.address, compression=None, proxy=None, close_timeout=0.5) as line:
        caller = Resumable(server, line)
        ours = {"resume": True, **settings.pop("metronome", {})}
        await caller.say("session.update", session={"type": "realtime", "metronome": ours, **settings})
        updated = await caller.until("session.updated")
        caller.token = updated["session"]["metronome"]["resume_token"]
        assert updated["session"]["metronome"]["grace_s"] == pytest.approx(0.8)
        try:
            yield caller
        finally:
            await caller.line.close()


def assert_nothing_is_missing(caller: Resumable) -> None:
    """Events are numbered; over all lines each came once and in its order."""
    numbers = [int(json.loads(text)["event_id"].rpartition("_")[2]) for text in caller.raw]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_reply_goes_on_over_a_new_line_without_a_gap(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            await caller.ask()
            await caller.until("response.output_text.delta")
            caller.break_off()
            await caller.again(caller.last)
            done = await caller.until("response.done")
            assert done["response"]["output"][0]["content"][0]["text"] == WHOLE
            assert_nothing_is_missing(caller)

    asyncio.run(scene())


def test_events_are_sent_again_byte_for_byte(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            begin = caller.last
            await caller.ask()
            await caller.until("response.done")
            first = caller.raw[2:]  # after session.created and session.updated
            for _ in range(2):
                caller.break_off()
                hello = await caller.again(begin)
                caller.raw.clear()
                for _ in range(hello["replayed"]):
                    await caller.hear()
                assert caller.raw == first

    asyncio.run(scene())


def test_a_call_that_is_taken_up_keeps_its_settings(turns: Server) -> None:
    async def scene() -> None:
        audio = {"input": {"format": {"type": "audio/pcm", "rate": 8_000}, "turn_detection": None}}
        ours = {"ticks": True, "window": 32}
        async with resumable(turns, audio=audio, metronome=ours, max_output_tokens=5) as caller:
            before = json.loads(caller.raw[-1])["session"]
            caller.break_off()
            hello = await caller.again(caller.last)
            assert hello["session"] == before
            tick = await caller.until("metronome.tick")
            await caller.say("input_audio_buffer.append", audio="AAAA" * 4_000)  # 12,000 bytes: 0.75 s
            end_ms = tick["audio_end_ms"]
            while (tick := await caller.until("metronome.tick"))["audio_end_ms"] == end_ms:
                pass
            assert tick["audio_end_ms"] - end_ms == pytest.approx(750, abs=50)
            assert_nothing_is_missing(caller)

    asyncio.run(scene())


def test_a_call_may_be_taken_up_again_and_again(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns, metronome={"ticks": True}) as caller:
            await caller.ask()
            for number in range(8):
                for _ in range(number):
                    await caller.hear()
                caller.break_off()
                await caller.again(caller.last)
            await caller.until("metronome.tick")
            assert_nothing_is_missing(caller)

    asyncio.run(scene())


def test_a_line_that_broke_right_after_its_first_event_is_taken_up_from_there(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            caller.break_off()
            hello = await caller.again(caller.last)
            caller.break_off()
            hello = await caller.again(hello["event_id"])
            assert hello["replayed"] == 0
            await caller.ask()
            await caller.until("response.done")
            assert_nothing_is_missing(caller)

    asyncio.run(scene())


def test_who_does_not_say_after_what_is_sent_what_comes_from_now_on(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            caller.break_off()
            assert (await caller.again(None))["replayed"] == 0

    asyncio.run(scene())


def test_a_new_line_takes_the_place_of_one_that_is_still_up(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            old = caller.line
            await caller.again(caller.last)
            assert await how_it_ends(old) == wire.CLOSE_REPLACED
            await caller.ask()
            await caller.until("response.done")
            assert_nothing_is_missing(caller)

    asyncio.run(scene())


def test_of_lines_that_race_for_a_call_one_has_it_and_the_server_lives_on(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            address = caller.address(caller.last)
            caller.break_off()
            racing = [connect(address, compression=None, proxy=None, close_timeout=0.5) for _ in range(6)]
            lines = await asyncio.wait_for(asyncio.gather(*racing), PATIENCE_S)
            codes = await asyncio.gather(*map(how_it_ends, lines))
            assert sorted(codes, key=str) == [wire.CLOSE_REPLACED] * 5 + ["up"]
            caller.line = lines[codes.index("up")]
            await caller.ask()
            await caller.until("response.done")
            for line in lines:
                await line.close()

    asyncio.run(scene())


async def how_it_ends(line: ClientConnection) -> int | str | None:
    """The code that a line is closed with, or "up" when that does not happen."""
    try:
        async with asyncio.timeout(1.0):
            while True:
                await line.recv()
    except TimeoutError:
        return "up"
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


GOODBYES = {
    "1000": b"\x88\x82\0\0\0\0\x03\xe8",
    "1001": b"\x88\x82\0\0\0\0\x03\xe9",
    "none": b"\x88\x80\0\0\0\0",
}


@pytest.mark.parametrize("goodbye", GOODBYES.values(), ids=GOODBYES)
def test_who_says_goodbye_does_not_come_back(turns: Server, goodbye: bytes) -> None:
    """A close frame with code 1000, with 1001, and with none, as a browser's close() sends it."""

    async def scene() -> None:
        async with resumable(turns) as caller:
            caller.line.transport.write(goodbye)
            assert await how_it_ends(caller.line) != "up"
            assert await caller.refused(caller.last) == (410, "session_expired")

    asyncio.run(scene())


def test_a_token_that_nobody_was_given_is_refused(turns: Server) -> None:
    async def scene() -> None:
        async with resumable(turns) as caller:
            right, caller.token = caller.token, "wrong"
            assert await caller.refused() == (410, "session_expired")
            caller.token = right
            assert await caller.refused("event_99999_1") == (410, "session_expired")
            assert await caller.refused("nonsense") == (410, "session_expired")
            await caller.again(caller.last)  # none of that did any harm

    asyncio.run(scene())


def test_a_call_that_nobody_takes_up_ends_and_gives_its_blocks_back(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as stays:
            await stays.updated(metronome={"ticks": True})
            async with resumable(turns) as caller:
                await caller.ask()
                await caller.until("response.created")
                caller.break_off()
                now = SystemClock().now()
                while (tick := await stays.until(wire.TickEvent)).due < now:
                    pass
                assert tick.kv_leased > tick.kv_blocks  # it is waited for
                await alone(stays)
                assert await caller.refused(caller.last) == (410, "session_expired")

    asyncio.run(scene())


def test_a_caller_without_a_token_is_gone_when_the_line_is(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as stays:
            await stays.updated(metronome={"ticks": True})
            async with call(turns) as vanishes:
                shown = (await vanishes.updated(metronome={"resume": True})).session.metronome
                assert shown.resume_token
                gone = (await vanishes.updated(metronome={"resume": False})).session.metronome
                assert (gone.resume_token, gone.grace_s) == (None, None)
                vanishes.line.transport.abort()
                await alone(stays)

    asyncio.run(scene())


async def alone(caller: Caller) -> None:
    """Wait until the caller's blocks are all that is leased."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            tick = await caller.until(wire.TickEvent)
            if tick.kv_leased == tick.kv_blocks:
                return


def test_more_than_is_kept_cannot_be_sent_again(start: Start) -> None:
    server = start(mode="turn", frame_s=0.05, more="replay_bytes = 3000\ngrace_s = 0.8")

    async def scene() -> None:
        async with resumable(server, metronome={"ticks": True}) as caller:
            begin = caller.last
            for _ in range(20):
                await caller.until("metronome.tick")
            caller.break_off()
            assert await caller.refused(begin) == (410, "session_expired")
            await caller.again(caller.last)
            await caller.until("metronome.tick")
            assert_nothing_is_missing(caller)

    asyncio.run(scene())
