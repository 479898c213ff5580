"""The life of a call on a real server: replies asked for, cancelled, interrupted, lost; and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metronome_cli import wire
from metronome_cli.models.assets import locate
from metronome_cli.models.null import REPLY
from metronome_cli.speech import Clip, read_clips

from .running import WHOLE, Server, answered, ask, call, outlasting, text_of

Start = Callable[..., Server]
QUESTION: Clip = read_clips(locate("questions"))[0]
SPEECH = (QUESTION.samples * 32767).astype("<i2").tobytes()
SECOND = bytes(32_000)  # of silence
RATE = {"type": "audio/pcm", "rate": 16_000}


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers when it is asked to, one token a frame."""
    folder = tmp_path_factory.mktemp("turns")
    with outlasting(folder, mode="turn", tau=1, frame_s=0.05, max_pending_s=20) as running:
        yield running


def listening(detection: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    """Settings of a session that hears 16 kHz and says what it heard."""
    heard = {"format": RATE, "turn_detection": detection, "transcription": {"model": "any"}}
    return {"audio": {"input": heard}, **more}


def update(**session: Any) -> str:
    return json.dumps({"type": "session.update", "session": {"type": "realtime", **session}})


def reason_of(response: wire.Response) -> tuple[str, str | None]:
    assert response.status_details is not None
    assert response.status_details.type == response.status
    return response.status, response.status_details.reason


# ---- Turns ----


def test_a_typed_message_is_answered_when_a_reply_is_asked_for(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await ask(caller, response=wire.ResponseSettings(metadata={"mine": "1"}))
            response = await answered(caller)
            assert (response.status, text_of(response)) == ("completed", WHOLE)
            assert response.metadata == {"mine": "1"}
            assert response.usage == wire.Usage(input_tokens=3, output_tokens=8, total_tokens=11)

    asyncio.run(scene())


def test_a_typed_message_alone_is_not_answered(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(metronome={"ticks": True})
            await caller.say(wire.ItemCreate(item=wire.Item.message("no answer, please")))
            while not (await caller.until(wire.TickEvent)).tokens_in:
                pass
            assert not (await caller.until(wire.TickEvent)).speaking

    asyncio.run(scene())


def test_a_spoken_turn_is_found_heard_and_answered(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening({"type": "server_vad"}))
            await caller.say(wire.AudioAppend(audio=SECOND + SPEECH + SECOND))
            started, stopped = await caller.until(wire.SpeechStarted), await caller.until(wire.SpeechStopped)
            committed = await caller.until(wire.AudioCommitted)
            assert started.item_id == stopped.item_id == committed.item_id
            assert 600 <= started.audio_start_ms <= 1100
            assert stopped.audio_end_ms - started.audio_start_ms > 1000 * QUESTION.seconds - 500
            response = await answered(caller)
            assert text_of(response) == WHOLE
            (heard,) = [seen for seen in caller.seen if isinstance(seen, wire.HeardCompleted)]
            assert heard.item_id == committed.item_id

    asyncio.run(scene())


def test_without_turn_detection_a_caller_commits_and_asks(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening(None))
            await caller.say(wire.AudioAppend(audio=SPEECH + SECOND))
            await caller.say(wire.AudioCommit())
            committed = await caller.until(wire.AudioCommitted)
            heard = await caller.until(wire.HeardCompleted)
            assert heard.item_id == committed.item_id
            assert heard.usage.seconds == pytest.approx(QUESTION.seconds + 1, abs=0.01)
            assert not [seen for seen in caller.seen if isinstance(seen, wire.ResponseCreated)]
            await caller.say(wire.ResponseCreate())
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


def test_turns_may_be_found_without_being_answered(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening({"type": "server_vad", "create_response": False}))
            await caller.say(wire.AudioAppend(audio=SPEECH + SECOND))
            await caller.until(wire.HeardCompleted)
            await caller.updated()
            assert not [seen for seen in caller.seen if isinstance(seen, wire.ResponseCreated)]

    asyncio.run(scene())


def test_a_commit_of_nothing_is_an_error(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.say(wire.AudioCommit(event_id="mine"))
            error = await caller.error()
            assert (error.code, error.event_id) == ("input_audio_buffer_commit_empty", "mine")
            await caller.say(wire.AudioAppend(audio=bytes(960)))
            await caller.say(wire.AudioCommit())
            await caller.until(wire.AudioCommitted)
            await caller.say(wire.AudioCommit())
            assert (await caller.error()).code == "input_audio_buffer_commit_empty"

    asyncio.run(scene())


def test_every_commit_of_one_tick_gets_its_transcript(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening(None))
            for _ in range(5):
                await caller.say(wire.AudioAppend(audio=bytes(3_200)))
                await caller.say(wire.AudioCommit())
            heard = [(await caller.until(wire.HeardCompleted)).item_id for _ in range(5)]
            assert heard == [seen.item_id for seen in caller.seen if isinstance(seen, wire.AudioCommitted)]

    asyncio.run(scene())


def test_what_was_cleared_cannot_be_committed(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening({"type": "server_vad"}))
            await caller.say(wire.AudioAppend(audio=SPEECH))  # it goes on: no end of it was heard
            started = await caller.until(wire.SpeechStarted)
            await caller.say(wire.AudioClear())
            await caller.until(wire.AudioCleared)
            await caller.say(wire.AudioCommit())
            assert (await caller.error()).code == "input_audio_buffer_commit_empty"
            await caller.say(wire.AudioAppend(audio=SPEECH + SECOND))
            assert (await caller.until(wire.AudioCommitted)).item_id != started.item_id

    asyncio.run(scene())


# ---- The end of a reply ----


@pytest.mark.parametrize("limit", ["reply", "session"])
def test_a_reply_that_may_not_be_longer_is_incomplete(turns: Server, limit: str) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            if limit == "session":
                await caller.updated(max_output_tokens=2)
            two = wire.ResponseSettings(max_output_tokens=2)
            await ask(caller, response=two if limit == "reply" else None)
            response = await answered(caller)
            assert reason_of(response) == ("incomplete", "max_output_tokens")
            assert (text_of(response), response.max_output_tokens) == ("".join(REPLY[:2]), 2)
            await ask(caller, response=wire.ResponseSettings(max_output_tokens="inf"))
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


def test_a_cancelled_reply_is_over_at_once_and_the_cache_stays(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(metronome={"ticks": True})
            await ask(caller)
            await caller.until(wire.TextDelta)
            before = await caller.until(wire.TickEvent)
            await caller.say(wire.ResponseCancel())
            response = await answered(caller)
            assert reason_of(response) == ("cancelled", "client_cancelled")
            assert WHOLE.startswith(text_of(response))
            ticks = [await caller.until(wire.TickEvent) for _ in range(3)]
            assert [tick.speaking for tick in ticks[-2:]] == [False, False]
            assert ticks[-1].kv_blocks >= before.kv_blocks
            await ask(caller)
            again = await answered(caller)
            assert (text_of(again), again.id != response.id) == (WHOLE, True)

    asyncio.run(scene())


def test_a_reply_cancelled_before_its_first_word_never_has_one(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(metronome={"ticks": True})
            for _ in range(3):
                await ask(caller)
                await caller.say(wire.ResponseCancel())
                response = await answered(caller)
                assert (*reason_of(response), response.output) == ("cancelled", "client_cancelled", [])
            for _ in range(3):
                await caller.until(wire.TickEvent)
            assert not [seen for seen in caller.seen if isinstance(seen, wire.TextDelta)]
            await ask(caller)
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


def test_a_cancel_of_another_reply_leaves_this_one_alone(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await ask(caller)
            await caller.until(wire.ResponseCreated)
            await caller.say(wire.ResponseCancel(response_id="resp_0", event_id="mine"))
            error = await caller.error()
            assert (error.code, error.event_id) == ("response_cancel_not_active", "mine")
            response = await answered(caller)
            assert text_of(response) == WHOLE
            await caller.say(wire.ResponseCancel(response_id=response.id))
            assert (await caller.error()).code == "response_cancel_not_active"

    asyncio.run(scene())


def test_a_second_reply_is_refused_while_one_is_in_progress(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await ask(caller)
            await caller.say(wire.ResponseCreate(event_id="mine"))
            error = await caller.error()
            assert (error.code, error.event_id) == ("conversation_already_has_active_response", "mine")
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


@pytest.mark.parametrize("interrupts", [True, False])
def test_speech_during_a_reply_ends_it_if_the_caller_wishes_so(turns: Server, interrupts: bool) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening({"type": "server_vad", "interrupt_response": interrupts}))
            await ask(caller)
            await caller.until(wire.TextDelta)
            await caller.say(wire.AudioAppend(audio=SPEECH + SECOND))
            first, second = await answered(caller), await answered(caller)
            if interrupts:
                assert reason_of(first) == ("cancelled", "turn_detected")
            else:
                assert (first.status, text_of(first)) == ("completed", WHOLE)
            assert (second.status, text_of(second)) == ("completed", WHOLE)

    asyncio.run(scene())


def test_speech_interrupts_a_model_that_decides_by_itself_only_if_asked_to(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            await caller.updated(**listening({"type": "full_duplex", "interrupt_response": True}))
            await caller.say(wire.ItemCreate(item=wire.Item.message("speak")))
            await caller.until(wire.TextDelta)
            await caller.say(wire.AudioAppend(audio=SPEECH))
            assert reason_of(await answered(caller)) == ("cancelled", "turn_detected")

    asyncio.run(scene())


def test_a_reply_for_which_there_is_no_block_has_failed(start: Start) -> None:
    server = start(mode="turn", policy="unbounded", blocks=10, frame_s=0.3)

    async def scene() -> None:
        async with call(server) as caller:
            await caller.updated(metronome={"ticks": True})
            await caller.say(wire.ItemCreate(item=wire.Item.message("word " * 60)))
            while not (await caller.until(wire.TickEvent)).stalled:
                pass
            await ask(caller, "word " * 20)
            response = await answered(caller)
            assert response.status == "failed"
            assert response.status_details is not None
            assert response.status_details.error is not None
            assert response.status_details.error.code == "kv_pool_full"
            await caller.updated()

    asyncio.run(scene())


# ---- Terms of one's own ----


def test_a_session_may_have_terms_of_its_own(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            own = {"window": 32, "sinks": 2, "positions": "absolute"}
            updated = await caller.updated(instructions="be very brief", metronome=own)
            shown = updated.session.metronome
            assert (shown.window, shown.sinks, shown.positions) == (32, 2, "absolute")
            assert updated.session.instructions == "be very brief"
            await ask(caller)
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


def test_a_window_that_long_instructions_make_smaller_is_told(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            # 20 pinned words are 4 blocks of 4 more than the profile's 3: they go off its window of 64.
            assert (await caller.updated(instructions="word " * 20)).session.metronome.window == 48
            assert (await caller.updated(metronome={"ticks": True})).session.metronome.window == 48
            assert (await caller.updated(instructions="be brief")).session.metronome.window == 64

    asyncio.run(scene())


def test_instructions_that_are_too_long_are_named_with_what_to_cut(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            for words in (40, 400):  # more than half of the window would go, and more than all of it
                await caller.say(update(instructions="word " * words))
                error = await caller.error()
                assert (error.code, error.param) == ("invalid_value", "session.instructions")
                assert f"session.instructions = '{words} tokens': 32 tokens fit" in error.message
                assert f"cut {words - 32} of them" in error.message
            assert (await caller.updated(instructions="word " * 32)).session.metronome.window == 36

    asyncio.run(scene())


def test_terms_beyond_the_profile_are_refused_and_the_old_ones_stay(turns: Server) -> None:
    async def scene() -> None:
        async with call(turns) as caller:
            before = (await caller.updated()).session
            for ours, field in (
                ({"window": 500}, "session.metronome.window"),
                ({"policy": "unbounded"}, "session.metronome.policy"),
                ({"sinks": 65}, "session.metronome.sinks"),
            ):
                await caller.say(update(metronome={"ticks": True, **ours}))
                error = await caller.error()
                assert (error.code, error.param) == ("invalid_value", field)
            assert (await caller.updated()).session == before

    asyncio.run(scene())


def test_terms_that_only_the_model_can_judge_are_refused_by_it(turns: Server) -> None:
    """The header's length comes with the model: 70 words do not fit a window of 64 as sinks."""

    async def scene() -> None:
        async with call(turns) as caller:
            before = (await caller.updated()).session
            await caller.say(update(instructions="word " * 70, metronome={"sinks": "header"}))
            error = await caller.error()
            assert (error.code, error.param) == ("invalid_value", "session.metronome.sinks")
            assert (await caller.updated()).session == before
            await ask(caller)
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())


@pytest.mark.parametrize("begun", ["audio", "text", "reply"])
def test_terms_come_too_late_once_something_was_said(turns: Server, begun: str) -> None:
    first: dict[str, wire.ClientEvent] = {
        "audio": wire.AudioAppend(audio=bytes(960)),
        "text": wire.ItemCreate(item=wire.Item.message("hello")),
        "reply": wire.ResponseCreate(),
    }

    async def scene() -> None:
        async with call(turns) as caller:
            before = (await caller.updated()).session
            await caller.say(first[begun])
            await caller.say(update(metronome={"window": 32, "ticks": True}))
            error = await caller.error()
            assert (error.code, error.param) == ("session_started", "session.metronome")
            assert (await caller.updated()).session == before

    asyncio.run(scene())
