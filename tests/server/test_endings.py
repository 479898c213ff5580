"""How calls end when the server goes down or its engine dies, and how a hasty caller is slowed down."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus

import metronome_cli
from metronome_cli import trace, wire

from .running import WHOLE, Server, answered, ask, call, text_of

SOURCE = Path(metronome_cli.__file__).parents[1]
Start = Callable[..., Server]

# ---- How fast a caller may be ----


def test_who_says_too_much_at_once_is_read_more_slowly_and_loses_nothing(start: Start) -> None:
    server = start(mode="turn", more="max_events_per_s = 100")

    async def scene() -> None:
        async with call(server) as caller:
            for number in range(150):
                await caller.say(wire.ItemCreate(item=wire.Item.message(f"{number}")))
            added = [(await caller.until(wire.ItemAdded)).item for _ in range(150)]
            assert [item.content[0].text for item in added] == [f"{number}" for number in range(150)]

    asyncio.run(scene())


# ---- A call that cannot go on ----

BREAKS = """
from metronome_cli.frame import Failed, Prefilled
from metronome_cli.models.null import NullModel

class Breaks(NullModel):
    def tick(self, frames):
        for event in super().tick(frames):
            yield event
            texts = [text for frame in frames if frame.session == event.session for text in frame.texts]
            if isinstance(event, Prefilled) and "break" in texts:
                yield Failed(event.session, "its ears gave NaN")
"""


def test_a_call_that_the_model_cannot_go_on_with_ends_alone(start: Start, tmp_path: Path) -> None:
    (tmp_path / "breaks.py").write_text(BREAKS)
    server = start(kind="breaks:Breaks", mode="turn", env={"PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCE}"})

    async def scene() -> None:
        async with call(server) as other, call(server) as caller:
            await caller.ticking()
            await other.ticking()
            await ask(caller, "break")
            error = await caller.error()
            assert (error.code, error.type, error.message) == (
                "session_failed",
                "server_error",
                "its ears gave NaN",
            )
            assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD
            await ask(other)
            assert text_of(await answered(other)) == WHOLE
            tick = await other.until(wire.TickEvent)
            assert tick.kv_leased == tick.kv_blocks  # the other's blocks went back

    asyncio.run(scene())
    code, said = server.stop()
    assert code == 0
    assert "is closed: its ears gave NaN" in said
    frames = trace.read_records(server.folder / "frames.jsonl", trace.FrameRecord)
    assert [frame.failed for frame in frames if frame.failed] == ["its ears gave NaN"]


# ---- The end of the server, or of its engine ----


async def until_health(server: Server, status: str) -> None:
    while True:
        if server.health()[1]["status"] == status:
            return
        await asyncio.sleep(0.02)


async def refused(server: Server) -> tuple[int, str, str | None]:
    """Status, code and Retry-After with which a new call is refused."""
    with pytest.raises(InvalidStatus) as caught:
        async with call(server):
            pass
    answer = caught.value.response
    return (
        answer.status_code,
        json.loads(answer.body or b"")["error"]["code"],
        answer.headers.get("Retry-After"),
    )


def test_a_server_that_goes_down_lets_calls_end_and_takes_no_more(start: Start) -> None:
    server = start(mode="turn", more="drain_s = 15")

    async def scene() -> None:
        async with call(server) as caller:
            await ask(caller)
            server.process.send_signal(signal.SIGTERM)
            await until_health(server, "draining")
            assert await refused(server) == (503, "draining", "1")
            assert text_of(await answered(caller)) == WHOLE
            await ask(caller)
            assert text_of(await answered(caller)) == WHOLE
        assert server.process.wait(5) == 0

    asyncio.run(scene())


def test_a_call_that_does_not_end_in_time_is_told_why(start: Start) -> None:
    server = start(mode="turn", more="drain_s = 0.3")

    async def scene() -> None:
        async with call(server) as caller:
            server.process.send_signal(signal.SIGTERM)
            error = await caller.error()
            assert (error.type, error.code) == ("server_error", "server_draining")
            assert await caller.hung_up() == wire.CLOSE_DRAINED
        assert server.process.wait(5) == 0

    asyncio.run(scene())


def test_a_second_signal_waits_for_nobody(start: Start) -> None:
    server = start(mode="turn", more="drain_s = 600")

    async def scene() -> None:
        async with call(server) as caller:
            server.process.send_signal(signal.SIGTERM)
            await until_health(server, "draining")
            server.process.send_signal(signal.SIGTERM)
            assert await caller.hung_up() == wire.CLOSE_DRAINED
        assert server.process.wait(10) == 0

    asyncio.run(scene())


def test_an_engine_that_dies_comes_back_and_numbers_its_sessions_on(start: Start) -> None:
    server = start(mode="turn", frame_s=0.05)

    async def scene() -> None:
        async with call(server) as one, call(server) as two:
            await one.updated(metronome={"ticks": True, "resume": True})
            await one.until(wire.TickEvent)
            os.kill(server.engine, signal.SIGKILL)
            for caller in (one, two):
                assert (await caller.error()).code == "engine_dead"
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD
        assert await refused(server) == (503, "restarting", "1")
        await until_health(server, "ok")
        async with call(server) as three:
            await ask(three)
            assert text_of(await answered(three)) == WHOLE
            numbers = [caller.seen[0] for caller in (one, two, three)]
            assert [seen.session.id for seen in numbers if isinstance(seen, wire.SessionCreated)] == [
                "sess_1",
                "sess_2",
                "sess_3",
            ]

    asyncio.run(scene())
    code, said = server.stop()
    assert (code, said.count("the engine process ended with signal SIGKILL")) == (1, 1)
    assert sessions_in(server.folder) == {1, 2}
    assert sessions_in(server.folder / "restart-1") == {3}


def test_an_engine_that_stood_still_counts_the_beats_it_missed_and_its_calls_go_on(start: Start) -> None:
    server = start(frame_s=0.05)

    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking()
            before = await caller.until(wire.TickEvent)
            os.kill(server.engine, signal.SIGSTOP)
            for _ in range(25):
                await caller.say(wire.AudioAppend(audio=bytes(640)))
                await asyncio.sleep(0.02)
            os.kill(server.engine, signal.SIGCONT)
            skipped, heard = 0, 0.0
            while heard < 500:  # nothing of what came meanwhile is lost
                after = await caller.until(wire.TickEvent)
                skipped, heard = skipped + after.skipped, after.audio_end_ms
            assert skipped >= 5
            assert after.tick - before.tick == after.frame - before.frame + skipped

    asyncio.run(scene())
    assert server.stop()[0] == 0


def sessions_in(folder: Path) -> set[int]:
    return {frame.session for frame in trace.read_records(folder / "frames.jsonl", trace.FrameRecord)}


def no_folder_for_a_new_life(run: Path) -> None:
    (run / "restart-1").write_text("in its place")


def no_file_for_a_new_life(run: Path) -> None:
    (run / "restart-1" / "frames.jsonl").mkdir(parents=True)


@pytest.mark.parametrize("lacking", [no_folder_for_a_new_life, no_file_for_a_new_life])
def test_an_engine_comes_back_where_nothing_can_be_recorded_any_more(
    start: Start, lacking: Callable[[Path], None]
) -> None:
    """As on a full disk."""
    server = start(mode="turn", frame_s=0.05)
    lacking(server.folder)
    os.kill(server.engine, signal.SIGKILL)

    async def scene() -> None:
        await until_health(server, "restarting")
        await until_health(server, "ok")
        async with call(server) as caller:
            await ask(caller)
            assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())
    _, said = server.stop()
    assert "nothing is recorded" in said


def test_an_engine_for_which_the_system_has_no_room_is_tried_again(start: Start, tmp_path: Path) -> None:
    place = tmp_path / "cells"
    place.mkdir()
    server = start(mode="turn", env={"TMPDIR": str(place)})
    away = place.rename(tmp_path / "away")
    os.kill(server.engine, signal.SIGKILL)

    async def scene() -> None:
        await until_health(server, "restarting")
        await asyncio.to_thread(until_said, server, "could not be started again")
        away.rename(place)
        await until_health(server, "ok")

    asyncio.run(scene())
    server.stop()


def until_said(server: Server, text: str) -> None:
    assert server.process.stderr is not None
    while text not in server.process.stderr.readline():
        assert server.process.poll() is None
