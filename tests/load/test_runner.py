"""Whole load runs over real sockets: against the real server, and against servers that do less."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from metronome_cli import wire
from metronome_cli.cli.local_server import serving
from metronome_cli.clock import SystemClock
from metronome_cli.errors import ProfileError, TargetUnreachable
from metronome_cli.load import results
from metronome_cli.load.runner import Glance, Plan, Run, run_load
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.speech import PACKET_SAMPLES, Clip, Stream
from metronome_cli.trace import FrameRecord, TickRecord, read_records


def run(
    plan: Plan, clips: list[Clip], folder: Path | None = None, watch: Callable[[Glance], None] | None = None
) -> Run:
    clock = SystemClock()
    recorder = Recorder(folder, clock)
    try:
        return run_load(plan, clips, clock, recorder, watch)
    finally:
        recorder.close()


@contextmanager
def served(handler: Callable[[ServerConnection], Awaitable[None]]) -> Iterator[str]:
    """A small WebSocket server in a thread of its own."""
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    port = []

    async def main() -> None:
        async with serve(handler, "127.0.0.1", 0) as server:
            port.append(server.sockets[0].getsockname()[1])
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield f"ws://127.0.0.1:{port[0]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


def test_every_frame_of_every_call_is_met_and_written_down(
    server: str, clips: list[Clip], tmp_path: Path
) -> None:
    done = run(Plan(server, 3, 3.0, seed=1, spread_s=0.25), clips, tmp_path)
    found = results.summarise(done)
    assert found["frame_s"] == pytest.approx(0.25)
    assert found["calls"]["opened"] == found["calls"]["done"] == 3
    assert found["frames"]["stalled"] == found["frames"]["empty"] == 0
    assert found["frames"]["delivered"] == found["frames"]["closed"] > 9
    for session in range(3):
        counts = [frame.frame for frame in done.frames if frame.session == session]
        # The server's count of this call's frames, none missed; one may close before ticks are asked for.
        assert counts[0] <= 1
        assert counts == list(range(counts[0], counts[0] + len(counts)))
    assert list(read_records(tmp_path / "frames.jsonl", FrameRecord)) != []
    written = sorted(f.due for f in read_records(tmp_path / "frames.jsonl", FrameRecord))
    assert written == sorted(frame.due for frame in done.frames)
    assert [t.tick for t in read_records(tmp_path / "trace.jsonl", TickRecord)] == [
        t.tick for t in done.ticks
    ]


def test_no_token_is_older_than_the_sound_that_it_answers(server: str, clips: list[Clip]) -> None:
    done = run(Plan(server, 2, 2.0, spread_s=0.25), clips)
    spoken = [frame for frame in done.frames if frame.first is not None and frame.audio_end_ms > 0]
    assert spoken != []
    # The server took the samples only after we sent them, and we send none before it is due.
    assert all(frame.first is not None and frame.first > frame.due for frame in spoken)


def test_calls_beyond_the_cap_are_counted_as_refused_with_the_servers_reason(
    server: str, clips: list[Clip]
) -> None:
    found = results.summarise(run(Plan(server, 5, 2.0, spread_s=0.25), clips))
    assert found["calls"]["refused"] == {"max_sessions": 2}
    assert found["calls"]["opened"] == 3
    assert not results.held(found)


def test_an_unbounded_pool_falls_silent_and_the_moment_is_reported(profile: str, clips: list[Clip]) -> None:
    # So small a pool is full early in the run even where beats are skipped.
    with serving(["--profile", profile, "--no-record", "--policy", "unbounded", "--blocks", "12"]) as url:
        done = run(Plan(url, 3, 8.0, spread_s=0.25, arm="unbounded"), clips)
    found = results.summarise(done)
    assert found["silence_at_s"] is not None
    moment = done.start + found["silence_at_s"]
    assert any(frame.first is not None for frame in done.frames if frame.due < moment)
    after = [frame for frame in done.frames if frame.due >= moment]
    assert {frame.session for frame in after} == {0, 1, 2}
    assert all(frame.stalled and frame.first is None for frame in after)
    assert done.ticks[-1].kv_leased == done.ticks[-1].kv_total == 12
    assert {tick.arm for tick in done.ticks} == {frame.arm for frame in done.frames} == {"unbounded"}
    assert not results.held(found)


def test_a_server_that_dies_in_the_middle_costs_no_record(
    profile: str, clips: list[Clip], tmp_path: Path
) -> None:
    mine = str(shutil.copy(profile, tmp_path / "dies.toml"))
    with serving(["--profile", mine, "--no-record"]) as url:

        def kill_once_it_speaks(glance: Glance) -> None:
            if glance.fresh_p50_s is not None:
                for pid in processes_naming(mine):
                    os.kill(pid, signal.SIGKILL)

        done = run(Plan(url, 2, 60.0, spread_s=0.25), clips, tmp_path, kill_once_it_speaks)
    found = results.summarise(done)
    assert found["elapsed_s"] < 60
    assert found["calls"]["cut_off"] == 2
    assert all("closed by the server" in session["why"] for session in found["sessions"])
    assert found["frames"]["delivered"] > 0
    written = list(read_records(tmp_path / "frames.jsonl", FrameRecord))
    assert len(written) == len(done.frames) > 0
    assert "calls lost" in [limit["name"] for limit in found["limits"] if not limit["held"]]


def processes_naming(text: str) -> list[int]:
    """Processes of this machine whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_the_first_interrupt_ends_the_run_with_all_that_there_is(server: str, clips: list[Clip]) -> None:
    def interrupt_once_it_speaks(glance: Glance) -> None:
        if glance.fresh_p50_s is not None:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    done = run(Plan(server, 2, 60.0, spread_s=0.25), clips, watch=interrupt_once_it_speaks)
    found = results.summarise(done)
    assert done.stopped
    assert found["elapsed_s"] < 60
    assert found["calls"]["done"] == 2
    assert "ended early" in results.notes(found)[0]
    assert signal.getsignal(signal.SIGINT) == before


def test_what_arrives_is_the_seeded_stream_at_16_khz_with_ticks_asked_for(clips: list[Clip]) -> None:
    heard: list[list[wire.ClientEvent]] = []

    async def listen(line: ServerConnection) -> None:
        mine: list[wire.ClientEvent] = []
        heard.append(mine)
        async for message in line:
            mine.append(wire.decode_client_event(message))

    with served(listen) as url:
        run(Plan(url, 3, 1.0, seed=9, spread_s=0.3), clips)
    streams = [Stream(clips, 9, caller) for caller in range(3)]
    expected = [b"".join(stream.packet() for _ in range(50)) for stream in streams]
    callers = set()
    for settings, *packets in heard:
        assert isinstance(settings, wire.SessionUpdate)
        audio, extension = settings.session.audio, settings.session.metronome
        assert audio is not None
        assert audio.input is not None
        assert audio.input.format == wire.AudioFormat(type="audio/pcm", rate=16_000)
        assert extension == wire.MetronomeSettings(ticks=True)
        sound = [event.audio for event in packets if isinstance(event, wire.AudioAppend)]
        assert {len(packet) for packet in sound} == {2 * PACKET_SAMPLES}
        callers |= {n for n, stream in enumerate(expected) if stream.startswith(b"".join(sound))}
    assert callers == {0, 1, 2}


async def speak_without_ticks(line: ServerConnection) -> None:
    """A server of somebody else's: it answers, knows no tick events, and objects to our extension."""
    objection = wire.ErrorDetail(type="invalid_request_error", code="unknown_parameter", message="metronome?")
    await line.send(wire.encode(wire.ErrorEvent(event_id="e", error=objection)), text=True)
    await line.send('{"type": "rate_limits.updated", "event_id": "r"}')
    async for _ in line:
        delta = wire.TextDelta(event_id="d", response_id="r", item_id="i", delta="yes")
        await line.send(wire.encode(delta), text=True)


def test_a_server_without_tick_events_is_measured_by_the_wait_after_speech(clips: list[Clip]) -> None:
    with served(speak_without_ticks) as url:
        found = results.summarise(run(Plan(url, 1, 4.0, spread_s=0.0), clips))
    assert found["freshness"] is None
    assert found["silence_at_s"] is None
    assert found["after_speech_s"] is not None
    assert found["calls"]["errors"] == {"unknown_parameter": 1}
    assert not results.held(found)


def test_nobody_at_the_address_ends_the_run_before_it_begins(clips: list[Clip]) -> None:
    with pytest.raises(TargetUnreachable):
        run(Plan("127.0.0.1:9", 2, 1.0, spread_s=0.1), clips)


@pytest.mark.parametrize(
    ("field", "plan"),
    [
        ("url", {"url": "gopher://x"}),
        ("sessions", {"sessions": 0}),
        ("duration", {"duration_s": 1.0}),
        ("duration", {"duration_s": float("nan")}),
        ("spread", {"spread_s": -1.0}),
    ],
)
def test_a_plan_that_cannot_be_carried_out_names_its_field(field: str, plan: dict[str, Any]) -> None:
    sound: dict[str, Any] = {"url": "127.0.0.1", "sessions": 1, "duration_s": 9.0}
    with pytest.raises(ProfileError, match=field):
        Plan(**sound | plan)


def test_calls_join_evenly_over_the_spread_in_a_seeded_order() -> None:
    joins = Plan("127.0.0.1", 8, 60.0, seed=3, spread_s=2.0).joins()
    assert sorted(joins) == pytest.approx([0.25 * n for n in range(8)])
    assert joins == Plan("127.0.0.1", 8, 60.0, seed=3, spread_s=2.0).joins()
    assert joins != Plan("127.0.0.1", 8, 60.0, seed=4, spread_s=2.0).joins()
