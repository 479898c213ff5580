"""Addresses, and what becomes of a call to a place that is no server of ours. All of it over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from http import HTTPStatus

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from metronome_cli import wire
from metronome_cli.errors import ProfileError, TargetUnreachable
from metronome_cli.load.plan import Plan
from metronome_cli.load.targets import TurnedAway, dial, endpoint


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/realtime"),
        ("http://127.0.0.1:8765/", "ws://127.0.0.1:8765/v1/realtime"),
        ("https://example.org", "wss://example.org/v1/realtime"),
        ("ws://10.0.0.1:80/other?model=x", "ws://10.0.0.1:80/other?model=x"),
        ("wss://example.org/v1/realtime", "wss://example.org/v1/realtime"),
        ("127.0.0.1:8765", "ws://127.0.0.1:8765/v1/realtime"),
        ("[::1]:8765", "ws://[::1]:8765/v1/realtime"),
    ],
)
def test_every_spelling_of_an_address_leads_to_the_websocket(url: str, address: str) -> None:
    assert endpoint(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:port",
        "ws://127.0.0.1:99999",
        "http://[",
        "http://[::1",
    ],
)
def test_an_address_that_is_none_is_named(url: str) -> None:
    with pytest.raises(ProfileError, match="url"):
        endpoint(url)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_nobody_at_the_address_is_said_in_plain_words() -> None:
    with pytest.raises(TargetUnreachable, match=r"127\.0\.0\.1.*metronome serve"):
        asyncio.run(dial(endpoint(f"127.0.0.1:{free_port()}")))


def test_a_name_that_does_not_resolve_is_said_in_plain_words() -> None:
    with pytest.raises(TargetUnreachable, match=r"nowhere\.invalid"):
        asyncio.run(dial(endpoint("http://nowhere.invalid")))


def test_something_that_speaks_no_http_is_no_target() -> None:
    async def scene() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            writer.write(b"220 mail.example.org\r\n")
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            await dial(endpoint(f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"))

    with pytest.raises(TargetUnreachable):
        asyncio.run(scene())


def dial_server_answering(answer: Callable[[ServerConnection, Request], Response]) -> object:
    async def silent(_: ServerConnection) -> None:
        pass

    async def scene() -> object:
        async with serve(silent, "127.0.0.1", 0, process_request=answer) as server:
            return await dial(endpoint(f"127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"))

    return asyncio.run(scene())


def test_a_wrong_path_is_no_target() -> None:
    with pytest.raises(TargetUnreachable, match="404"):
        dial_server_answering(lambda line, _: line.respond(HTTPStatus.NOT_FOUND, "no such page"))


def test_a_refusal_is_a_value_with_the_servers_reason() -> None:
    body = wire.encode(wire.Refusal(error=wire.RefusalDetail(code="pool_full", message="no blocks")))
    answer = dial_server_answering(
        lambda line, _: line.respond(HTTPStatus.SERVICE_UNAVAILABLE, body.decode())
    )
    assert answer == TurnedAway("pool_full")


def test_a_refusal_without_a_readable_reason_keeps_its_status() -> None:
    answer = dial_server_answering(lambda line, _: line.respond(HTTPStatus.TOO_MANY_REQUESTS, "busy"))
    assert answer == TurnedAway("http_429")


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("-1", None),
        ("soon", None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ("9" * 400, None),
    ],
)
def test_a_refusal_says_when_to_come_again(told: str, seconds: float | None) -> None:
    def later(line: ServerConnection, _: Request) -> Response:
        answer = line.respond(HTTPStatus.SERVICE_UNAVAILABLE, "")
        answer.headers["Retry-After"] = told
        return answer

    assert dial_server_answering(later) == TurnedAway("http_503", seconds)


def test_a_redirect_is_not_followed_and_what_it_points_at_is_shown_no_key() -> None:
    asked = []

    async def silent(_: ServerConnection) -> None:
        pass

    async def scene() -> None:
        def note(line: ServerConnection, request: Request) -> Response:
            asked.append(request.headers.get("Authorization"))
            return line.respond(HTTPStatus.OK, "")

        def point_there(line: ServerConnection, _: Request) -> Response:
            answer = line.respond(HTTPStatus.FOUND, "")
            answer.headers["Location"] = f"ws://127.0.0.1:{port_of(there)}/"
            return answer

        async with (
            serve(silent, "127.0.0.1", 0, process_request=note) as there,
            serve(silent, "127.0.0.1", 0, process_request=point_there) as here,
        ):
            await dial(endpoint(f"127.0.0.1:{port_of(here)}"), "secret")

    with pytest.raises(TargetUnreachable, match=r"HTTP 302 .*call 'ws://127\.0\.0\.1"):
        asyncio.run(scene())
    assert asked == []


def port_of(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])


def test_a_redirect_to_nowhere_is_said_in_plain_words() -> None:
    def point_nowhere(line: ServerConnection, _: Request) -> Response:
        answer = line.respond(HTTPStatus.FOUND, "")
        answer.headers["Location"] = "ftp://[::/"
        return answer

    with pytest.raises(TargetUnreachable, match="302"):
        dial_server_answering(point_nowhere)


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_a_name_that_no_host_can_have_is_said_in_plain_words(host: str) -> None:
    with pytest.raises(TargetUnreachable, match="cannot call"):
        asyncio.run(dial(endpoint(f"http://{host}:1/")))


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(TargetUnreachable) as refused:
        asyncio.run(dial(endpoint(f"ws://bob:secret@127.0.0.1:{free_port()}/")))
    assert "secret" not in str(refused.value)
    assert "secret" not in str(Plan("ws://bob:secret@127.0.0.1:1/", 1, 1.0).settings())
