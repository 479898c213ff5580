"""Whole load runs over real sockets: against the real server, and against servers that do less."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from metronome_cli import wire
from metronome_cli.cli.local_server import serving
from metronome_cli.clock import SystemClock
from metronome_cli.errors import TargetUnreachable
from metronome_cli.load import arrivals, caller, limits, results
from metronome_cli.load.lengths import Length
from metronome_cli.load.runner import Glance, Plan, Run, run_load
from metronome_cli.load.saturation import doomed
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.speech import PACKET_SAMPLES, RATE, Clip, Stream
from metronome_cli.trace import FrameRecord, TickRecord, read_records

from .fakes import served

_CREATED = wire.SessionCreated(
    event_id="e",
    session=wire.SessionInfo(
        id="sess_1", model="m", audio=wire.AudioSettings(), metronome=wire.MetronomeInfo(frame_s=0.1)
    ),
)


def run(
    plan: Plan, clips: list[Clip], folder: Path | None = None, watch: Callable[[Glance], None] | None = None
) -> Run:
    clock = SystemClock()
    recorder = Recorder(folder, clock)
    try:
        return run_load(plan, clips, clock, recorder, watch)
    finally:
        recorder.close()


@pytest.fixture(scope="module")
def met(server: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A healthy run of three calls, and the folder with its records."""
    folder = tmp_path_factory.mktemp("met")
    tone = np.sin(np.arange(3 * RATE, dtype=np.float32) / 6)
    return run(Plan(server, 3, 2.0, seed=1), [Clip("tone.wav", tone)], folder), folder


def test_every_frame_of_every_call_is_met_and_written_down(met: tuple[Run, Path]) -> None:
    done, folder = met
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
    assert list(read_records(folder / "frames.jsonl", FrameRecord)) != []
    written = sorted(f.due for f in read_records(folder / "frames.jsonl", FrameRecord))
    assert written == sorted(frame.due for frame in done.frames)
    assert [t.tick for t in read_records(folder / "trace.jsonl", TickRecord)] == [t.tick for t in done.ticks]


def test_no_token_is_older_than_the_sound_that_it_answers(met: tuple[Run, Path]) -> None:
    done, _ = met
    spoken = [frame for frame in done.frames if frame.first is not None and frame.audio_end_ms > 0]
    assert spoken != []
    # The server took the samples only after we sent them, and we send none before it is due.
    assert all(frame.first is not None and frame.first > frame.due for frame in spoken)


def test_calls_beyond_the_cap_are_counted_as_refused_with_the_servers_reason(
    server: str, clips: list[Clip]
) -> None:
    found = results.summarise(run(Plan(server, 5, 1.0, spread_s=0.25), clips))
    assert found["calls"]["refused"] == {"max_sessions": 2}
    assert found["calls"]["opened"] == 3
    assert not limits.held(found)


def test_an_unbounded_pool_falls_silent_and_the_moment_is_reported(profile: str, clips: list[Clip]) -> None:
    # So small a pool is full early in the run even where beats are skipped.
    with serving(["--profile", profile, "--no-record", "--policy", "unbounded", "--blocks", "6"]) as url:
        done = run(Plan(url, 3, 3.5, spread_s=0.25, arm="unbounded"), clips)
    found = results.summarise(done)
    assert found["silence_at_s"] is not None
    moment = done.start + found["silence_at_s"]
    assert any(frame.first is not None for frame in done.frames if frame.due < moment)
    after = [frame for frame in done.frames if frame.due >= moment]
    assert {frame.session for frame in after} == {0, 1, 2}
    assert all(frame.stalled and frame.first is None for frame in after)
    assert done.ticks[-1].kv_leased == done.ticks[-1].kv_total == 6
    assert {tick.arm for tick in done.ticks} == {frame.arm for frame in done.frames} == {"unbounded"}
    assert not limits.held(found)


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
    assert {session["why"] for session in found["sessions"]} == {"the line broke without a goodbye"}
    [said] = [note for note in results.notes(found) if "cut off" in note]
    assert re.fullmatch(
        r"the server went away after [\d.]+ s: all 2 calls were cut off \(2 the line .*\)", said
    )
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_ends_the_run_with_all_that_there_is(
    number: signal.Signals, server: str, clips: list[Clip]
) -> None:
    def interrupt_once_it_speaks(glance: Glance) -> None:
        if glance.fresh_p50_s is not None:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    done = run(Plan(server, 2, 60.0, spread_s=0.25), clips, watch=interrupt_once_it_speaks)
    found = results.summarise(done)
    assert done.stopped
    assert found["elapsed_s"] < 60
    assert found["calls"]["done"] == 2
    assert "ended early" in results.notes(found)[0]
    assert signal.getsignal(number) == before


def test_a_terminal_that_closes_is_nothing_to_a_run_under_nohup(server: str, clips: list[Clip]) -> None:
    def hang_up(_: Glance) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = run(Plan(server, 1, 0.6, spread_s=0.1), clips, watch=hang_up)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert not done.stopped


def test_what_arrives_is_the_seeded_stream_at_16_khz_with_ticks_asked_for(clips: list[Clip]) -> None:
    heard: list[list[wire.ClientEvent]] = []

    async def listen(line: ServerConnection) -> None:
        mine: list[wire.ClientEvent] = []
        heard.append(mine)
        await line.send(wire.encode(_CREATED), text=True)
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
        assert audio.input.turn_detection == wire.TurnDetection(type="full_duplex")
        assert audio.input.format == wire.AudioFormat(type="audio/pcm", rate=16_000)
        assert extension == wire.MetronomeSettings(ticks=True)
        sound = [event.audio for event in packets if isinstance(event, wire.AudioAppend)]
        assert {len(packet) for packet in sound} == {2 * PACKET_SAMPLES}
        callers |= {n for n, stream in enumerate(expected) if stream.startswith(b"".join(sound))}
    assert callers == {0, 1, 2}


def test_nobody_at_the_address_ends_the_run_before_it_begins(clips: list[Clip]) -> None:
    with pytest.raises(TargetUnreachable):
        run(Plan("127.0.0.1:9", 2, 1.0, spread_s=0.1), clips)


def test_lines_are_kept_busy_by_callers_who_come_and_go(server: str, clips: list[Clip]) -> None:
    length = Length.parse("uniform:0.5s:1s")
    done = run(Plan(server, 2, 3.0, call_length=length), clips)
    assert 6 <= len(done.calls) <= 14  # two lines; 3 s in lengths of half a second to one
    assert {call.fate for call in done.calls} == {"done"}
    assert len({call.server_id for call in done.calls}) == len(done.calls)
    for moment in np.arange(done.start + 0.5, done.end - 0.5, 0.25):
        live = [c for c in done.calls if c.frames and c.frames.start <= moment < (c.ended or done.end)]
        assert len(live) <= 2
    ages = [frame.age_s for frame in done.frames]
    assert max(ages) <= 1.01


def test_an_open_population_calls_as_often_as_it_was_offered_and_never_again(
    server: str, clips: list[Clip]
) -> None:
    plan = Plan(server, 5, 9.0, redial=False, rate_hz=8.0, call_length=Length.parse("250ms"))
    done = run(plan, clips)
    starts = sorted(call.frames.start - done.start for call in done.calls if call.frames)
    assert len(done.calls) == 5
    assert starts == pytest.approx([0.0, 0.125, 0.25, 0.375, 0.5], abs=0.1)
    assert done.end - done.start < 2.5  # nobody is left to wait for


def test_calls_join_within_one_frame_of_the_server(met: tuple[Run, Path]) -> None:
    done, _ = met
    assert done.calls[0].server_frame_s == pytest.approx(0.25)
    starts = sorted(call.frames.start - done.start for call in done.calls if call.frames)
    assert starts[-1] < 0.25 + 0.15


def test_callers_that_vanish_leave_nothing_behind(server: str, clips: list[Clip]) -> None:
    plan = Plan(server, 3, 2.0, vanish_rate=1.0, call_length=Length.parse("500ms"), spread_s=0.1)
    found = results.summarise(run(plan, clips))
    assert found["calls"]["vanished"] >= found["calls"]["opened"] - 3 > 3  # three are on the line at the end
    assert found["calls"]["cut_off"] == 0
    # The server takes three at once: had it kept one that vanished, it would have refused the next.
    again = results.summarise(run(Plan(server, 3, 1.0, spread_s=0.1), clips))
    assert again["calls"]["refused"] == {}
    assert again["calls"]["done"] == 3


def test_a_reply_is_cancelled_soon_after_its_first_token_and_the_call_goes_on(
    server: str, clips: list[Clip]
) -> None:
    done = run(Plan(server, 2, 2.0, cancel_rate=1.0, spread_s=0.1), clips)
    found = results.summarise(done)
    assert found["cancels"]["sent"] >= 2
    assert found["calls"]["done"] == 2
    for call in done.calls:
        first = min(cancel.at for cancel in call.cancels.values())
        assert any(
            frame.first and frame.first > first for frame in done.frames if frame.session == call.number
        )


def test_a_run_that_is_lost_ends_at_once_and_says_why(server: str, clips: list[Clip]) -> None:
    clock, recorder = SystemClock(), Recorder(None, SystemClock())
    done = run_load(Plan(server, 5, 60.0), clips, clock, recorder, doomed=doomed)
    assert done.doomed == "a call was refused (max_sessions)"
    assert done.end - done.start < 10
    assert "ended early" in results.notes(results.summarise(done))[0]


def test_callers_talk_and_pause_in_the_measure_that_was_asked_for(clips: list[Clip]) -> None:
    pcm = bytearray()

    async def listen(line: ServerConnection) -> None:
        await line.send(wire.encode(_CREATED), text=True)
        async for message in line:
            event = wire.decode_client_event(message)
            if isinstance(event, wire.AudioAppend):
                pcm.extend(event.audio)

    with served(listen) as url:
        run(Plan(url, 1, 2.0, talk_s=0.2, silence_s=0.2), clips)
    silent = [not np.frombuffer(pcm[at : at + 640], "<i2").any() for at in range(0, len(pcm), 640)]
    gaps = [len(list(group)) for quiet, group in groupby(silent) if quiet]
    assert len(gaps) >= 4
    assert set(gaps[:-1]) <= {9, 10}  # 200 ms, cut into packets of 20


def test_a_run_whose_server_hangs_can_be_ended_all_the_same(clips: list[Clip]) -> None:
    def interrupt_once_it_dials(glance: Glance) -> None:
        if 0.3 < glance.elapsed_s < 0.9:
            os.kill(os.getpid(), signal.SIGTERM)

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # the kernel takes the call, and nobody ever answers
        plan = Plan("{}:{}".format(*deaf.getsockname()), 2, 60.0, spread_s=0.1)
        done = run(plan, clips, watch=interrupt_once_it_dials)
    assert done.stopped
    assert done.end - done.start < 10  # it waits up to half a minute for an answer
    assert [call.fate for call in done.calls] == ["waiting", "waiting"]


class Ramp:
    """Lets each caller in at its attempt number `opens_at`; until then it says no."""

    def __init__(self, opens_at: int) -> None:
        self.opens_at = opens_at
        self.asked = 0

    def __call__(self, line: ServerConnection, _: Request) -> Response | None:
        self.asked += 1
        if self.asked >= self.opens_at:
            return None
        body = wire.encode(wire.Refusal(error=wire.RefusalDetail(code="ramp", message="a few per beat")))
        answer = line.respond(HTTPStatus.SERVICE_UNAVAILABLE, body.decode())
        answer.headers["Retry-After"] = "0"
        return answer


async def greet(line: ServerConnection) -> None:
    await line.send(wire.encode(_CREATED), text=True)
    async for _ in line:  # who reads nothing sees no goodbye either, and is waited for
        pass


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_SOON_S", 0.02)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize(
    ("redials", "opens_at", "fate", "attempts"),
    [(5, 4, "done", 4), (3, 4, "done", 4), (2, 4, "refused", 3), (0, 2, "refused", 1), (5, 1, "done", 1)],
)
def test_a_refused_call_is_dialled_again_as_often_as_was_asked_for(
    clips: list[Clip], redials: int, opens_at: int, fate: str, attempts: int
) -> None:
    door = Ramp(opens_at)
    with served(greet, at_the_door=door) as url:
        done = run(Plan(url, 1, 1.5, spread_s=0.0, redials=redials), clips)
    [call] = done.calls
    assert (call.fate, call.attempts, door.asked) == (fate, attempts, attempts)
    assert [no.reason for no in call.refusals] == ["ramp"] * min(attempts, opens_at - 1)
    assert results.summarise(done)["calls"]["refused"] == ({"ramp": 1} if fate == "refused" else {})
    if fate == "done":
        assert call.frames is not None
        # It speaks from the open line on: what it waited is told, and counts in no frame.
        assert call.waited_s == pytest.approx(call.frames.start - (call.dialled or 0.0))
        assert (call.waited_s or 0.0) >= 0.02 * (2 ** (attempts - 1) - 1)


def test_a_call_that_cannot_be_dialled_again_before_the_end_is_refused_at_once(clips: list[Clip]) -> None:
    with served(greet, at_the_door=Ramp(9)) as url:
        done = run(Plan(url, 1, 1.0, spread_s=0.0, redials=5), clips)
    assert (done.calls[0].fate, done.calls[0].attempts) == ("refused", 1)
    assert done.end - done.start < 0.9
    [said] = [note for note in results.notes(results.summarise(done)) if "dialled again" in note]
    assert said.startswith("1 refused calls were not dialled again: the run would have ended before")


def test_a_run_that_ends_while_a_caller_waits_to_dial_again_leaves_it_refused(clips: list[Clip]) -> None:
    seen = []

    def interrupt_once_it_waits(glance: Glance) -> None:
        seen.append(glance.refused)
        if glance.refused:
            os.kill(os.getpid(), signal.SIGTERM)

    with served(greet, at_the_door=Ramp(99)) as url:
        done = run(Plan(url, 1, 60.0, spread_s=0.0, redials=5), clips, watch=interrupt_once_it_waits)
    assert (done.calls[0].fate, done.calls[0].why) == ("refused", "ramp")
    assert seen[-1] == 1


def test_a_server_that_never_greets_is_no_server_that_serves(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mute(line: ServerConnection) -> None:
        await line.wait_closed()

    monkeypatch.setattr(caller, "GREETING_S", 0.2)
    with served(mute) as url:
        found = results.summarise(run(Plan(url, 1, 2.0, spread_s=0.0), clips))
    assert found["calls"]["refused"] == {"no_greeting": 1}
    assert not limits.held(found)
