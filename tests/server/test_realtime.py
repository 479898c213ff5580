from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from metronome_cli import wire

from .running import Caller, Server, answered, ask, call

SECOND = bytes(32_000)  # of silence at 16 kHz
Start = Callable[..., Server]


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, "event_id": "mine", **fields})


def update(**session: Any) -> str:
    return event("session.update", session=session)


def form(**fields: Any) -> str:
    return update(audio={"input": {"format": {"type": "audio/pcm", **fields}}})


def item(**fields: Any) -> str:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    return event("conversation.item.create", item={**message, **fields})


BAD: dict[str, tuple[str | bytes, str, str]] = {
    "nothing": ("", "invalid_json", "event"),
    "not JSON": ("{", "invalid_json", "event"),
    "not an object": ("[1, 2]", "invalid_json", "event"),
    "no type": ('{"event_id": "mine"}', "missing_parameter", "type"),
    "unknown event": (event("response.dance"), "unknown_event", "type"),
    "missing field": (event("input_audio_buffer.append"), "missing_parameter", "audio"),
    "base64 rubbish": (event("input_audio_buffer.append", audio="%%%"), "invalid_base64", "audio"),
    "odd byte count": (event("input_audio_buffer.append", audio="AAAA"), "odd_byte_count", "audio"),
    "audio is no text": (event("input_audio_buffer.append", audio=7), "invalid_value", "audio"),
    "wrong rate": (form(rate=44_100), "unsupported_rate", "session.audio.input.format.rate"),
    "rate is no number": (form(rate="fast"), "invalid_value", "session.audio.input.format.rate"),
    "wrong format": (form(type="audio/pcmu"), "unsupported_format", "session.audio.input.format.type"),
    "wrong modality": (
        update(output_modalities=["audio"]),
        "unsupported_modality",
        "session.output_modalities",
    ),
    "wrong session": (update(type="transcription"), "unsupported_session", "session.type"),
    "unknown key of ours": (update(metronome={"tick": True}), "unknown_parameter", "session.metronome.tick"),
    "wrong value of ours": (update(metronome={"ticks": 3}), "invalid_value", "session.metronome.ticks"),
    "wrong item": (item(type="function_call"), "unsupported_item", "item.type"),
    "wrong role": (item(role="assistant"), "unsupported_item", "item.role"),
    "wrong content": (
        item(content=[{"type": "input_audio", "audio": ""}]),
        "unsupported_content",
        "item.content[0].type",
    ),
    "binary frame": (b"\x00\x01", "binary_frame", "frame"),
    "too large": (event("input_audio_buffer.append", audio="A" * 300_000), "event_too_large", "event"),
    "too much text": (
        item(content=[{"type": "input_text", "text": "word " * 20_000}]),
        "buffer_full",
        "text",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_an_error_event_and_the_call_goes_on(server: Server, name: str) -> None:
    sent, code, param = BAD[name]

    async def scene() -> None:
        async with call(server) as caller:
            await caller.say(sent)
            error = await caller.error()
            assert (error.code, error.param) == (code, param)
            assert error.type == "invalid_request_error"
            assert error.event_id == ("mine" if '"mine"' in str(sent) else None)
            assert len(error.message) < 500
            await caller.updated()

    asyncio.run(scene())


def test_a_session_speaks_of_what_it_is_set_to(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            created = caller.seen[0]
            assert isinstance(created, wire.SessionCreated)
            assert created.session.audio.input is not None
            assert created.session.audio.input.format == wire.AudioFormat(rate=24_000)
            assert created.session.metronome.ticks is False
            assert created.session.model == "null"
            updated = await caller.updated(
                audio={"input": {"format": {"type": "audio/pcm", "rate": 8_000}}},
                metronome={"ticks": True},
                speed=1.5,  # keys of OpenAI's that we do not use are no error
            )
            assert updated.session.audio.input is not None
            assert updated.session.audio.input.format == wire.AudioFormat(rate=8_000)
            assert updated.session.metronome.ticks is True
            assert updated.session.id == created.session.id

    asyncio.run(scene())


def test_a_refused_update_changes_nothing(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            await caller.say(update(output_modalities=["audio"], metronome={"ticks": True}))
            await caller.error()
            assert (await caller.updated()).session.metronome.ticks is False

    asyncio.run(scene())


def test_tick_events_come_only_to_those_who_asked(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as standard, call(server) as ours:
            await ours.ticking()
            for _ in range(3):
                await ours.until(wire.TickEvent)
            await standard.updated()
            assert not [seen for seen in standard.seen if isinstance(seen, wire.TickEvent)]

    asyncio.run(scene())


def test_a_tick_event_closes_the_frame_of_its_deltas(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking()
            last = await caller.until(wire.TickEvent)
            for _ in range(4):
                before = len(caller.seen)
                tick = await caller.until(wire.TickEvent)
                said = caller.seen[before:-1]
                assert [type(word) for word in said] == [wire.TextDelta] * tick.tokens_out
                assert tick.tokens_out == 2
                assert tick.frame == last.frame + 1
                assert tick.tick == last.tick + 1 + tick.skipped
                assert tick.done >= tick.due
                assert tick.kv_blocks == tick.kv_leased > 0
                last = tick

    asyncio.run(scene())


@pytest.mark.parametrize("rate", wire.RATES)
def test_audio_of_every_rate_is_consumed_at_the_pace_of_its_caller(server: Server, rate: int) -> None:
    """One second as 20 ms packets and a commit, which brings what the filter holds back."""

    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking(rate)
            for _ in range(50):
                await caller.say(wire.AudioAppend(audio=bytes(rate // 50 * 2)))
            await caller.say(wire.AudioCommit())
            while (await caller.until(wire.TickEvent)).audio_end_ms < 1000:
                pass
            last = await caller.until(wire.TickEvent)
            assert last.audio_end_ms == pytest.approx(1000, abs=0.2)

    asyncio.run(scene())


@pytest.fixture(scope="module")
def leisurely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with frames long enough for a slow machine to say several events in one."""
    running = Server.start(tmp_path_factory.mktemp("leisurely"), frame_s=1.2, max_pending_s=1.0)
    yield running
    running.kill()


def test_audio_that_the_gateway_holds_is_in_the_frame_in_which_it_came(leisurely: Server) -> None:
    async def scene() -> None:
        async with call(leisurely) as caller:
            await caller.duplex()
            await caller.ticking()
            await caller.until(wire.TickEvent)
            for _ in range(3):  # too little to be handed on at once
                await caller.say(wire.AudioAppend(audio=bytes(640)))
            assert (await caller.until(wire.TickEvent)).audio_end_ms == 60

    asyncio.run(scene())


def test_what_follows_held_audio_does_not_overtake_it(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            await caller.duplex()
            await caller.ticking()
            await caller.say(wire.AudioAppend(audio=bytes(640)))
            await caller.say(wire.AudioClear())  # consumes what was said before it, and no more
            await caller.until(wire.AudioCleared)
            while not (tick := await caller.until(wire.TickEvent)).audio_end_ms:
                pass
            assert tick.audio_end_ms == 20

    asyncio.run(scene())


def test_a_changed_rate_loses_nothing_of_what_came_before(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking(24_000)
            await caller.say(wire.AudioAppend(audio=bytes(24_000)))
            await caller.ticking(16_000)
            await caller.say(wire.AudioAppend(audio=bytes(16_000)))
            while (await caller.until(wire.TickEvent)).audio_end_ms < 999.8:
                pass
            assert (await caller.until(wire.TickEvent)).audio_end_ms == pytest.approx(1000, abs=0.2)

    asyncio.run(scene())


def test_audio_beyond_the_limit_is_refused_whole_and_the_rest_is_kept(leisurely: Server) -> None:
    async def scene() -> None:
        async with call(leisurely) as caller:
            await caller.ticking()
            await caller.until(wire.TickEvent)
            for number in range(6):
                append = wire.AudioAppend(audio=bytes(8_000), event_id=f"piece {number}")
                await caller.say(append)  # a quarter of a second each
            refused = [await caller.error() for _ in range(2)]
            assert [error.code for error in refused] == ["buffer_full"] * 2
            assert [error.event_id for error in refused] == ["piece 4", "piece 5"]
            tick = await caller.until(wire.TickEvent)
            assert tick.audio_end_ms == 1000

    asyncio.run(scene())


def test_a_recording_sent_at_once_by_one_who_does_not_read_meanwhile_ends_no_call(start: Start) -> None:
    """Four minutes of it: what may wait is heard, of the rest is told once a tick, and the call goes on."""
    server = start(frame_s=1.2, max_pending_s=1.0, more="max_events_per_s = 1e6")

    async def scene() -> None:
        async with call(server, max_queue=1) as caller:
            await caller.ticking()
            caller.line.transport.pause_reading()
            for _ in range(5000):
                await caller.say(wire.AudioAppend(audio=bytes(1600)))
            caller.line.transport.resume_reading()
            await caller.updated()  # in its turn: all before it is answered
            ticks = [seen for seen in caller.seen if isinstance(seen, wire.TickEvent)]
            errors = [seen.error for seen in caller.seen if isinstance(seen, wire.ErrorEvent)]
            assert {error.code for error in errors} == {"buffer_full"}
            assert "at most 1 s (server.max_pending_s) may wait for a tick" in errors[0].message
            assert len(errors) <= len(ticks) + 2
            assert (await caller.until(wire.TickEvent)).audio_end_ms >= 900

    asyncio.run(scene())


def test_a_flood_stops_at_the_gateway_while_the_engine_is_busy(start: Start) -> None:
    server = start(max_pending_s=0.5)

    async def scene() -> None:
        async with call(server) as flood, call(server) as other:
            await other.ticking()
            os.kill(server.engine, signal.SIGSTOP)
            for _ in range(600):  # 64 kB may wait on the line; a clear costs 128 bytes there
                await flood.say(wire.AudioClear())
            error = await flood.error()
            assert (error.code, error.param) == ("buffer_full", "event")
            await other.say(wire.AudioAppend(audio=bytes(320)))
            os.kill(server.engine, signal.SIGCONT)
            while (await other.until(wire.TickEvent)).audio_end_ms < 10:
                pass
            assert not [seen for seen in other.seen if isinstance(seen, wire.ErrorEvent)]
            await flood.until(wire.TextDelta)
            await flood.updated()

    asyncio.run(scene())


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that speaks when spoken to, one token a frame."""
    running = Server.start(tmp_path_factory.mktemp("turns"), mode="turn", tau=1, frame_s=0.05)
    yield running
    running.kill()


def test_a_model_without_ears_says_once_that_it_hears_nothing(start: Start, tiny_chat: Path) -> None:
    async def talk() -> None:
        # It babbles to the end of what a reply may be: at 20 tokens a frame that comes soon.
        async with call(start(kind="text", thinker=tiny_chat, mode="turn", tau=20)) as caller:
            await caller.ticking()
            for number in range(50):
                audio = wire.AudioAppend(audio=SECOND[:640], event_id=f"packet-{number}")
                await caller.say(audio)
            told = await caller.error()
            assert (told.code, told.param, told.event_id) == ("unsupported_audio", "audio", "packet-0")
            assert "conversation.item.create" in told.message
            while (await caller.until(wire.TickEvent)).audio_end_ms < 1000:
                pass  # the call goes on, and its time with it
            await ask(caller)
            assert (await answered(caller)).status in ("completed", "incomplete")
            assert sum(isinstance(event, wire.ErrorEvent) for event in caller.seen) == 1

    asyncio.run(talk())


def test_a_typed_message_gets_a_reply_that_ends(turns: Server) -> None:

    async def scene() -> None:
        async with call(turns) as caller:
            await caller.duplex()
            for turn in (1, 2):
                await caller.say(wire.ItemCreate(item=wire.Item.message("what do you hear")))
                done = await caller.until(wire.TextDone)
                deltas = [seen for seen in caller.seen if isinstance(seen, wire.TextDelta)]
                mine = [delta for delta in deltas if delta.response_id == done.response_id]
                assert "".join(delta.delta for delta in mine) == done.text
                assert done.text == "I hear nothing, but I keep the beat."
                assert len({delta.response_id for delta in deltas}) == turn

    asyncio.run(scene())


def test_a_cancelled_reply_says_no_more_and_the_call_goes_on(turns: Server) -> None:

    async def scene() -> None:
        async with call(turns) as caller:
            await caller.duplex()
            await caller.ticking()
            await caller.say(wire.ItemCreate(item=wire.Item.message("hello")))
            first = await caller.until(wire.TextDelta)
            await caller.say(wire.ResponseCancel())
            done = await caller.until(wire.TextDone)
            assert done.response_id == first.response_id
            assert len(done.text) < len("I hear nothing, but I keep the beat.")
            quiet = await caller.until(wire.TickEvent)
            while quiet.speaking or quiet.tokens_out:
                quiet = await caller.until(wire.TickEvent)
            since = caller.seen[caller.seen.index(done) :]
            assert not [seen for seen in since if isinstance(seen, wire.TextDelta)]
            await caller.say(wire.ItemCreate(item=wire.Item.message("again")))
            assert (await caller.until(wire.TextDelta)).response_id != first.response_id

    asyncio.run(scene())


def test_a_cancel_with_nothing_to_cancel_is_no_reason_to_hang_up(turns: Server) -> None:

    async def scene() -> None:
        async with call(turns) as caller:
            await caller.duplex()
            await caller.say(wire.ResponseCancel(event_id="mine"))
            error = await caller.error()
            assert (error.code, error.event_id) == ("response_cancel_not_active", "mine")
            await caller.say(wire.ItemCreate(item=wire.Item.message("hello")))
            await caller.until(wire.TextDone)

    asyncio.run(scene())


def test_a_reply_broken_off_for_another_is_done_first(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as caller:
            first = await caller.until(wire.TextDelta)
            await caller.say(wire.ItemCreate(item=wire.Item.message("stop")))
            done = await caller.until(wire.TextDone)
            assert done.response_id == first.response_id
            second = await caller.until(wire.TextDelta)
            assert second.response_id != first.response_id
            assert second.delta == "I "

    asyncio.run(scene())


def test_a_caller_who_does_not_read_is_cut_off_and_the_others_are_served(start: Start) -> None:
    server = start(tau=200, frame_s=0.2)

    async def scene() -> None:
        async with call(server) as reader:
            await reader.ticking()
            async with call(server, max_queue=1) as slow:
                await _until_alone(reader, slow.line.transport.pause_reading)
                slow.line.transport.resume_reading()
                assert await slow.hung_up() in (wire.CLOSE_TOO_SLOW, None)
            await reader.until(wire.TickEvent)

    asyncio.run(scene())


async def _until_alone(caller: Caller, meanwhile: Callable[[], None]) -> None:
    """Wait until the caller's blocks are all that is leased. The client library may read on by itself."""
    while True:
        meanwhile()
        tick = await caller.until(wire.TickEvent)
        if tick.kv_leased == tick.kv_blocks:
            return
