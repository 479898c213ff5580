from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError

import pytest
from websockets.exceptions import InvalidStatus

from metronome_cli import trace, wire
from metronome_cli.clock import SystemClock
from metronome_cli.errors import ProfileError
from metronome_cli.report import read_report
from metronome_cli.server.gateway import listen, url_of

from .running import PATIENCE_S, Caller, Server, call, gone, write_profile

Start = Callable[..., Server]
BLOCKS_BACK_S = 5.0


async def until_alone(caller: Caller) -> None:
    """Wait until nobody else holds a block."""
    async with asyncio.timeout(BLOCKS_BACK_S):
        while True:
            tick = await caller.until(wire.TickEvent)
            if tick.kv_leased == tick.kv_blocks:
                return


async def until_company(caller: Caller) -> None:
    """Wait until somebody else holds blocks too."""
    while True:
        tick = await caller.until(wire.TickEvent)
        if tick.kv_leased > tick.kv_blocks:
            return


def test_a_port_in_use_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ProfileError, match=rf"server\.port = {port}: .*use another port") as caught:
            listen("127.0.0.1", port)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("host", ["192.0.2.1", "127.0.0..1", ".", "a" * 64])
def test_a_host_that_is_not_ours_is_named(host: str) -> None:
    with pytest.raises(ProfileError, match="use an address of this machine") as caught:
        listen(host, 0)
    assert (caught.value.field, caught.value.value) == ("server.host", host)


def test_an_address_is_written_as_a_url() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_both_processes_with_the_files_written(start: Start, number: int) -> None:
    server = start(more="drain_s = 0.3")
    engine = server.engine

    async def scene() -> None:
        async with call(server) as caller:
            await caller.ticking()
            for _ in range(3):
                await caller.until(wire.TickEvent)
            code, said = server.stop(number)
            assert code == 0
            assert said.count("\n") == 1, said
            assert await caller.hung_up() == 1012

    asyncio.run(scene())
    assert gone(engine)
    ticks = list(trace.read_records(server.folder / "trace.jsonl", trace.TickRecord))
    frames = list(trace.read_records(server.folder / "frames.jsonl", trace.FrameRecord))
    assert len(ticks) >= 3
    assert sum(tick.sessions for tick in ticks) == len(frames)
    report = read_report(server.folder)
    assert report.held
    assert report.results["calls"] == 1


def test_a_server_whose_engine_is_given_up_ends_once_its_callers_were_told(start: Start) -> None:
    server = start(more="restarts = 0")

    async def scene() -> None:
        async with call(server) as one, call(server) as two:
            await one.ticking()
            await one.until(wire.TickEvent)  # a tick is on record
            os.kill(server.engine, signal.SIGKILL)
            for caller in (one, two):
                error = await caller.error()
                assert (error.type, error.code) == ("server_error", "engine_dead")
                assert "SIGKILL; it is not started again: this server ends" in error.message
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD

    asyncio.run(scene())
    # Nobody has to end it: a supervisor sees an exit code and starts it anew.
    assert server.process.wait(PATIENCE_S) == 1
    said = server.stop()[1]
    assert "ended with signal SIGKILL: calls are closed\n" in said
    assert "is not started again: server.restarts = 0; use 1 or more. The server ends" in said
    assert "until it is back" not in said
    report = read_report(server.folder)
    assert not report.held
    assert "the server ended by itself" in report.notes[0]
    assert list(trace.read_records(server.folder / "trace.jsonl", trace.TickRecord))


def in_the_engine(folder: Path, code: str) -> dict[str, str]:
    """An environment in which the engine process runs `code` before all else, with NullModel at hand."""
    lines = [
        "import sys",
        "if any('engine_process' in word for word in sys.orig_argv):",
        "    from metronome_cli.models.null import NullModel",
        *(f"    {line}" for line in code.splitlines()),
    ]
    (folder / "sitecustomize.py").write_text("\n".join(lines))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def test_a_model_that_fails_in_a_tick_leaves_nobody_waiting(start: Start, tmp_path: Path) -> None:
    hole = "def tick(self, frames):\n    raise RuntimeError('a hole in the model')\nNullModel.tick = tick"
    server = start(env=in_the_engine(tmp_path, hole))

    async def scene() -> None:
        async with call(server) as caller:
            assert (await caller.error()).code == "engine_dead"
            assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD

    asyncio.run(scene())
    code, said = server.stop()
    assert code == 1
    assert "a hole in the model" in said


def test_the_engine_does_not_outlive_a_killed_gateway(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cell").mkdir()
    server = start(env={"TMPDIR": str(tmp_path / "cell")})
    engine = server.engine
    watch = os.pidfd_open(engine)
    server.kill()
    assert select.select([watch], [], [], BLOCKS_BACK_S)[0] == [watch]
    os.close(watch)
    assert list((tmp_path / "cell").iterdir()) == []


def test_a_client_that_vanishes_gives_its_blocks_back(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as stays:
            await stays.ticking()
            async with call(server) as vanishes:
                await until_company(stays)
                vanishes.line.transport.abort()
                await until_alone(stays)

    asyncio.run(scene())


def test_a_killed_client_process_gives_its_blocks_back(server: Server) -> None:
    client = (
        "import sys, time; from websockets.sync.client import connect\n"
        "line = connect(sys.argv[1], proxy=None); line.recv(); time.sleep(60)"
    )

    async def scene() -> None:
        async with call(server) as stays:
            await stays.ticking()
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", client, server.address)
            await until_company(stays)
            process.kill()
            await process.wait()
            await until_alone(stays)

    asyncio.run(scene())


def test_a_client_that_vanishes_before_it_is_let_in_gives_its_blocks_back(server: Server) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    upgrade = (
        f"GET {wire.REALTIME_PATH} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )

    async def scene() -> None:
        async with call(server) as stays:
            await stays.ticking()
            os.kill(server.engine, signal.SIGSTOP)  # no answer comes while they are there
            for _ in range(5):
                with socket.create_connection((host, int(port))) as hasty:
                    hasty.sendall(upgrade.encode())
            assert server.health()[0] == 200
            os.kill(server.engine, signal.SIGCONT)
            await stays.until(wire.TickEvent)
            await until_alone(stays)

    asyncio.run(scene())


def test_a_silent_call_is_ended_and_a_speaking_one_stays(start: Start) -> None:
    server = start(idle_s=0.6, reaper_s=0.2)

    async def speak(caller: Caller) -> None:
        while True:
            await caller.say(wire.AudioAppend(audio=bytes(640)))
            await asyncio.sleep(0.1)

    async def scene() -> None:
        async with call(server) as speaks, call(server) as idles:
            await speaks.ticking()
            speaking = asyncio.create_task(speak(speaks))
            await idles.say(wire.AudioClear())  # no input, however often it is said
            assert (await idles.error()).code == "session_idle"
            assert await idles.hung_up() == wire.CLOSE_SESSION_IDLE
            await until_alone(speaks)
            speaking.cancel()

    asyncio.run(scene())


def test_an_unbounded_pool_stalls_and_recovers_when_another_call_ends(start: Start) -> None:
    server = start(policy="unbounded", blocks=24, tau=4)

    async def scene() -> None:
        async with call(server) as stays:
            await stays.ticking()
            async with call(server) as leaves:
                await leaves.ticking()
                while not (await stays.until(wire.TickEvent)).stalled:
                    pass
                while not (await leaves.until(wire.TickEvent)).stalled:
                    pass
                stalled = await stays.until(wire.TickEvent)
                assert (stalled.tokens_out, stalled.speaking) == (0, True)
                assert stalled.kv_leased == stalled.kv_total == 24
            fresh = await stays.until(wire.TickEvent)
            while fresh.stalled:
                fresh = await stays.until(wire.TickEvent)
            assert fresh.tokens_out == 4
            assert fresh.kv_leased < 24

    asyncio.run(scene())


def test_one_callers_rubbish_does_not_reach_another_call(server: Server) -> None:
    async def scene() -> None:
        async with call(server) as good, call(server) as bad:
            await good.ticking()
            for rubbish in ("{", b"\xff", '{"type": "nope"}', "[" * 50_000) * 20:
                await bad.say(rubbish)
            ticks = [await good.until(wire.TickEvent) for _ in range(5)]
            assert [tick.frame - ticks[0].frame for tick in ticks] == [0, 1, 2, 3, 4]
            assert all(tick.tokens_out == 2 for tick in ticks)
            assert not [seen for seen in good.seen if isinstance(seen, wire.ErrorEvent)]

    asyncio.run(scene())


@pytest.fixture
def loading(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Server]]:
    """A server whose model loads until the pipe tmp_path/gate is opened for writing."""
    os.mkfifo(tmp_path / "gate")
    code = "load = NullModel.__init__\n" + (
        f"NullModel.__init__ = lambda *given: (open({str(tmp_path / 'gate')!r}).close(), load(*given))[1]"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "metronome_cli", "serve", "--profile", str(write_profile(tmp_path))),
            *("--port", str(port), "--json", "--out", str(tmp_path / "runs")),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=in_the_engine(tmp_path, code),
    )
    server = Server(process, f"http://127.0.0.1:{port}", tmp_path)
    try:
        until_it_listens(server)
        yield process, server
    finally:
        server.kill()


def until_it_listens(server: Server) -> None:
    clock = SystemClock()
    end = clock.now() + PATIENCE_S
    while clock.now() < end:
        with suppress(URLError):
            server.health()
            return
        clock.wait_until(clock.now() + 0.02)
    raise AssertionError("nobody listens")


def test_while_the_model_loads_callers_are_told_so(
    loading: tuple[subprocess.Popen[str], Server], tmp_path: Path
) -> None:
    process, server = loading
    assert server.health() == (503, {"status": "starting", "model": "null"})

    async def scene() -> None:
        with pytest.raises(InvalidStatus) as caught:
            async with call(server):
                pass
        assert caught.value.response.status_code == 503
        assert b'"starting"' in (caught.value.response.body or b"")

    asyncio.run(scene())
    (tmp_path / "gate").open("w").close()
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["url"] == server.url
    assert server.health()[0] == 200


def test_a_signal_ends_a_server_whose_model_still_loads(
    loading: tuple[subprocess.Popen[str], Server], tmp_path: Path
) -> None:
    _, server = loading
    engine = server.engine
    assert server.stop() == (0, "")
    assert gone(engine)
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_session_too_large_for_the_pool_is_one_clear_message(tmp_path: Path) -> None:
    """The header only counts once the model has read it, so the engine process says no."""
    profile = write_profile(tmp_path, blocks=22)
    long = profile.read_text().replace("one two three", "word " * 40)
    profile.write_text(long)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "metronome_cli", "serve", "--profile", str(profile)),
            *("--port", "0", "--json", "--out", str(tmp_path / "runs")),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("metronome: pool.blocks = 22: one session of this window needs ")
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "runs").iterdir()) == []
