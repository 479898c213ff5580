"""Several gateways on one port: to callers and to whoever asks for numbers they are one server."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from metronome_cli import trace, wire
from metronome_cli.clock import VirtualClock
from metronome_cli.errors import ProfileError
from metronome_cli.profile import parse_profile
from metronome_cli.report import read_report
from metronome_cli.server.access import Rules
from metronome_cli.server.app import create_app
from metronome_cli.server.calls import Calls
from metronome_cli.server.gateway import join, listen
from metronome_cli.server.link import EngineLink

from .running import PATIENCE_S, WHOLE, Caller, Server, answered, ask, call, gone, outlasting, text_of

Start = Callable[..., Server]
SEVERAL: dict[str, Any] = {
    "mode": "turn",
    "frame_s": 0.05,
    "tau": 5,
    "reaper_s": 0.3,
    "max_sessions": 40,
    "blocks": 2000,
}
MOST_TRIES = 30  # calls until both of two gateways have one: all go to the same in one case of 2**29


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two gateways that must outlive all that callers do."""
    folder = tmp_path_factory.mktemp("gateways")
    with outlasting(folder, **SEVERAL, more="gateways = 2\ngrace_s = 5") as running:
        yield running


async def held_by(caller: Caller) -> str:
    """The number of the gateway that holds a call, of which its token tells."""
    updated = await caller.updated(metronome={"resume": True, "ticks": True})
    token = updated.session.metronome.resume_token
    assert token
    return token.partition(".")[0]


@asynccontextmanager
async def on_both(server: Server) -> AsyncIterator[dict[str, Caller]]:
    """A call in each of two gateways, by the gateway's number."""
    found: dict[str, Caller] = {}
    async with AsyncExitStack() as stack:
        for _ in range(MOST_TRIES):
            caller = await stack.enter_async_context(call(server))
            found[await held_by(caller)] = caller
            if len(found) == 2:
                break
        assert found.keys() == {"1", "2"}
        yield found


def fetch(server: Server, path: str) -> str:
    # A connection of its own each time: the kernel picks another gateway.
    with urllib.request.urlopen(server.url + path, timeout=PATIENCE_S) as answer:  # noqa: S310
        return str(answer.read().decode())


def capacity(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(fetch(server, "/capacity"))
    return found


def metrics(server: Server) -> dict[str, float]:
    """Samples of /metrics, label values behind their names."""
    families = text_string_to_metric_families(fetch(server, "/metrics"))
    samples = [sample for family in families for sample in family.samples]
    return {":".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that is asked for again and again."""
    async with asyncio.timeout(PATIENCE_S):
        while not await asyncio.to_thread(holds):
            pass


def nobody_there(server: Server) -> bool:
    found = capacity(server)
    return (found["free"], found["live"], found["kv"]["leased"]) == (found["max_sessions"], 0, 0)


# ---- One server ----


def test_calls_in_both_gateways_are_answered_on_one_beat(server: Server) -> None:
    async def scene() -> None:
        async with on_both(server) as callers:
            ticks = []
            for caller in callers.values():
                await ask(caller)
                assert text_of(await answered(caller)) == WHOLE
                ticks.append(await caller.until(wire.TickEvent))
            assert all(tick.kv_leased > tick.kv_blocks for tick in ticks)  # of one pool

    asyncio.run(scene())


def test_numbers_are_those_of_the_whole_server_whoever_is_asked(server: Server) -> None:
    async def scene() -> None:
        await until(lambda: nobody_there(server))
        before = await asyncio.to_thread(metrics, server)
        async with on_both(server) as callers:
            for caller in callers.values():
                caller.line.transport.abort()  # it may come back: detached
            await until(lambda: metrics(server)["metronome_sessions:detached"] >= 2)
            opened = len({id(caller) for caller in callers.values()})
            found = [await asyncio.to_thread(metrics, server) for _ in range(12)]
            calls = {page["metronome_calls_total"] - before["metronome_calls_total"] for page in found}
            assert len(calls) == 1
            assert calls.pop() >= opened
            for page in found:
                live = page["metronome_sessions:detached"] + page["metronome_sessions:connected"]
                assert page["metronome_free_calls"] == page["metronome_max_sessions"] - live
                for way in ("in", "out"):
                    name = f"metronome_event_bytes_total:{way}"
                    assert page[name] > before[name]

    asyncio.run(scene())


def test_what_is_no_new_call_is_answered_over_one_connection_by_one_gateway(server: Server) -> None:
    """Requests one after another on a connection that stays open, the first of them in two pieces."""
    host, _, port = server.url.removeprefix("http://").partition(":")

    async def scene() -> None:
        for _ in range(6):
            reader, writer = await asyncio.open_connection(host, int(port))
            for path in ("/health", "/capacity"):
                request = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
                writer.write(request[:7])
                await asyncio.sleep(0.01)  # a packet of its own
                writer.write(request[7:])
                async with asyncio.timeout(PATIENCE_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 200 ")
                    (length,) = [line for line in head.lower().split(b"\r\n") if b"content-length" in line]
                    assert b'"ok"' in await reader.readexactly(int(length.split(b":")[1]))
            writer.close()

    asyncio.run(scene())


def test_a_call_is_taken_up_again_whichever_gateway_its_caller_comes_back_to(server: Server) -> None:
    async def resumed(address: str) -> list[dict[str, Any]]:
        """What comes over a connection that takes a call up, with a reply asked for over it."""
        async with connect(address, compression=None, proxy=None, close_timeout=0.5) as line:
            await line.send(wire.encode(wire.ItemCreate(item=wire.Item.message("again"))).decode())
            await line.send(wire.encode(wire.ResponseCreate()).decode())
            seen: list[dict[str, Any]] = []
            async with asyncio.timeout(PATIENCE_S):
                while not seen or seen[-1]["type"] != "response.done":
                    seen.append(json.loads(await line.recv()))
            line.transport.abort()
        return seen

    async def scene() -> None:
        async with on_both(server) as callers:
            for number, caller in callers.items():
                (updated,) = [event for event in caller.seen if isinstance(event, wire.SessionUpdated)]
                token = updated.session.metronome.resume_token
                assert token
                assert token.startswith(f"{number}.")
                caller.line.transport.abort()
                for _ in range(8):  # over ports that the kernel gives to either
                    first, *rest = await resumed(f"{server.address}?resume={token}")
                    assert first["type"] == "metronome.resumed"
                    assert first["session"]["id"] == updated.session.id
                    assert rest[-1]["response"]["status"] == "completed"

    asyncio.run(scene())


@pytest.mark.parametrize("token", ["2.unknown", "1.unknown", "9.unknown", "unknown", "2", "."])
def test_a_token_that_is_none_is_refused_by_either(server: Server, token: str) -> None:
    async def scene() -> None:
        for _ in range(4):
            with pytest.raises(InvalidStatus) as caught:
                await connect(f"{server.address}?resume={token}", compression=None, proxy=None)
            assert caught.value.response.status_code == 410

    asyncio.run(scene())


def test_the_cap_holds_over_both_gateways(start: Start) -> None:
    server = start(**SEVERAL | {"max_sessions": 4}, more="gateways = 2")

    async def open_one(stack: AsyncExitStack) -> tuple[str, str]:
        try:
            caller = await stack.enter_async_context(call(server, open_timeout=PATIENCE_S))
        except InvalidStatus as refusal:
            return "refused", str(json.loads(refusal.response.body or b"")["error"]["code"])
        return "open", await held_by(caller)

    async def scene() -> None:
        for _ in range(3):
            async with AsyncExitStack() as stack:
                outcomes = await asyncio.gather(*(open_one(stack) for _ in range(40)))
                assert Counter(what for what, _ in outcomes) == {"open": 4, "refused": 36}
                assert {code for what, code in outcomes if what == "refused"} == {"max_sessions"}
                await until(lambda: capacity(server)["free"] == 0)
            await until(lambda: nobody_there(server))
        await until(lambda: metrics(server)["metronome_refusals_total:max_sessions"] == 3 * 36)

    asyncio.run(scene())
    assert server.stop()[0] == 0
    assert read_report(server.folder).results["refused"] == {"max_sessions": 3 * 36}


# ---- Deaths ----


def test_a_gateway_that_is_killed_comes_back_and_its_calls_blocks_are_free(start: Start) -> None:
    server = start(**SEVERAL, more="gateways = 2")
    (killed,) = server.others

    async def scene() -> None:
        async with on_both(server) as callers:
            await until(lambda: metrics(server)["metronome_calls_total"] >= 2)
            before = await asyncio.to_thread(metrics, server)
            os.kill(killed, signal.SIGKILL)
            assert await callers["2"].hung_up() is None  # without a goodbye
            await ask(callers["1"])
            assert text_of(await answered(callers["1"])) == WHOLE
            await until(lambda: metrics(server)["metronome_gateways_lost_total"] == 1)
            after = await asyncio.to_thread(metrics, server)
            counters = {name for name in before if "_total" in name or "_bucket" in name}
            assert {name for name in counters if after[name] < before[name]} == set()
        await until(lambda: nobody_there(server))
        await until(lambda: len(server.others) == 1 and server.others != [killed])
        async with asyncio.timeout(PATIENCE_S):
            number = "1"
            while number != "2":
                async with call(server) as caller:
                    number = await held_by(caller)
                    await ask(caller)
                    assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())
    code, said = server.stop()
    assert code == 1  # calls were lost
    assert "gateway 2 ended with signal SIGKILL" in said
    assert read_report(server.folder).results["gateways_lost"] == 1


def test_an_engine_that_is_killed_is_met_again_by_both(start: Start) -> None:
    server = start(**SEVERAL, more="gateways = 2")

    async def scene() -> None:
        async with on_both(server) as callers:
            os.kill(server.engine, signal.SIGKILL)
            for caller in callers.values():
                assert (await caller.error()).code == "engine_dead"
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD
        with pytest.raises(InvalidStatus) as caught:
            await connect(server.address, compression=None, proxy=None)
        assert caught.value.response.status_code == 503
        await until(lambda: capacity(server)["state"] == "ok" and nobody_there(server))
        seen = [seen for caller in callers.values() for seen in caller.seen]
        old = {event.session.id for event in seen if isinstance(event, wire.SessionCreated)}
        async with asyncio.timeout(PATIENCE_S):
            numbers: set[str] = set()
            while len(numbers) < 2:
                # The other one may not have heard of it yet: "restarting".
                with suppress(InvalidStatus):
                    async with call(server) as caller:
                        numbers.add(await held_by(caller))
                        (created,) = [seen for seen in caller.seen if isinstance(seen, wire.SessionCreated)]
                        assert created.session.id not in old
                        await ask(caller)
                        assert text_of(await answered(caller)) == WHOLE

    asyncio.run(scene())
    code, said = server.stop()
    assert code == 1
    assert said.count("the engine process is back") == 1
    assert {path.name for path in server.folder.iterdir() if path.is_dir()} == {"restart-1"}


def test_a_server_whose_engine_is_given_up_ends_with_both_gateways(start: Start) -> None:
    server = start(**SEVERAL, more="gateways = 2\nrestarts = 0")
    others = server.others

    async def scene() -> None:
        async with on_both(server) as callers:
            os.kill(server.engine, signal.SIGKILL)
            for caller in callers.values():
                error = await caller.error()
                assert error.code == "engine_dead"
                assert "this server ends" in error.message
                assert await caller.hung_up() == wire.CLOSE_ENGINE_DEAD

    asyncio.run(scene())
    assert server.process.wait(PATIENCE_S) == 1
    assert all(map(gone, others))
    report = read_report(server.folder)
    assert report.results["gateways_lost"] == 0


def test_nothing_outlives_a_first_gateway_that_is_killed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    server = start(**SEVERAL, more="gateways = 3", env={"TMPDIR": str(tmp_path / "cells")})
    watches = [os.pidfd_open(process) for process in (server.engine, *server.others)]
    assert len(watches) == 3
    server.kill()
    for watch in watches:
        assert select.select([watch], [], [], PATIENCE_S)[0] == [watch]
        os.close(watch)
    assert list((tmp_path / "cells").iterdir()) == []


# ---- The end ----


def test_a_server_that_goes_down_lets_the_calls_of_both_end(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    server = start(**SEVERAL, more="gateways = 2\ndrain_s = 15", env={"TMPDIR": str(tmp_path / "cells")})
    engine, others = server.engine, server.others

    async def scene() -> None:
        async with on_both(server) as callers:
            server.process.send_signal(signal.SIGTERM)
            await until(lambda: server.health()[1]["status"] == "draining")
            for caller in callers.values():
                await ask(caller)
                assert text_of(await answered(caller)) == WHOLE
            assert not gone(server.process.pid)
        assert await asyncio.to_thread(server.process.wait, PATIENCE_S) == 0

    asyncio.run(scene())
    assert all(map(gone, (engine, *others)))
    assert list((tmp_path / "cells").iterdir()) == []
    ticks = list(trace.read_records(server.folder / "trace.jsonl", trace.TickRecord))
    frames = list(trace.read_records(server.folder / "frames.jsonl", trace.FrameRecord))
    assert sum(tick.sessions for tick in ticks) == len(frames)
    report = read_report(server.folder)
    assert report.held
    assert report.results["calls"] == len({frame.session for frame in frames})


def test_both_want_the_key_and_each_counts_the_calls_that_it_lets_in(start: Start) -> None:
    rate = "max_opens_per_s = 0.01"  # one at once, and none in the time of this test
    server = start(**SEVERAL, more=f"gateways = 2\n{rate}", env={"METRONOME_API_KEY": "open-sesame"})
    key = {"Authorization": "Bearer open-sesame"}

    async def scene() -> None:
        for _ in range(8):
            with pytest.raises(InvalidStatus) as caught:
                await connect(server.address, compression=None, proxy=None)
            assert caught.value.response.status_code == 401
        async with AsyncExitStack() as stack:
            calls = (
                stack.enter_async_context(call(server, additional_headers=key)) for _ in range(MOST_TRIES)
            )
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            refused = [outcome for outcome in outcomes if isinstance(outcome, InvalidStatus)]
            assert len(refused) == MOST_TRIES - 2
            assert all(b'"too_many_opens"' in (refusal.response.body or b"") for refusal in refused)
        await until(lambda: metrics(server)["metronome_refusals_total:invalid_api_key"] == 8)

    asyncio.run(scene())


@pytest.mark.parametrize("gateways", [1, 4])
def test_the_shares_of_all_gateways_are_the_rate_of_the_server(gateways: int) -> None:
    async def scene() -> None:
        profile = parse_profile("null", {"server": {"gateways": gateways, "max_opens_per_s": 200}})
        link = EngineLink(profile, VirtualClock())
        app = create_app(profile, link, Calls(profile, link), VirtualClock())
        rules = app.user_middleware[0].kwargs["rules"]
        assert isinstance(rules, Rules)
        assert gateways * rules.opens_per_s == 200

    asyncio.run(scene())


def test_an_interrupt_ends_the_calls_of_both_at_once(start: Start) -> None:
    server = start(**SEVERAL, more="gateways = 2\ndrain_s = 600")

    async def scene() -> None:
        async with on_both(server) as callers:
            server.process.send_signal(signal.SIGINT)
            assert [await caller.hung_up() for caller in callers.values()] == [1012, 1012]

    asyncio.run(scene())
    code, said = server.stop()
    assert (code, said.count("\n")) == (0, 1), said


# ---- The port ----


def test_a_port_that_another_server_shares_with_its_own_gateways_is_in_use() -> None:
    with listen("127.0.0.1", 0, gateways=2) as first:
        port = first.getsockname()[1]
        with join("127.0.0.1", port), pytest.raises(ProfileError, match=rf"server\.port = {port}: "):
            listen("127.0.0.1", port, gateways=2)


def test_a_system_on_which_no_port_can_be_shared_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ProfileError, match=r"server\.gateways = 2: .*use 1") as caught:
        listen("127.0.0.1", 0, gateways=2)
    assert caught.value.exit_code == 2
    listen("127.0.0.1", 0).close()
