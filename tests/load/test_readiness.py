"""Waiting for a server that is still starting: over real sockets, in virtual time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from metronome_cli.clock import VirtualClock
from metronome_cli.errors import TargetUnreachable
from metronome_cli.load.readiness import await_ready

STARTING = (503, b'{"status": "starting", "model": "m"}')


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[tuple[str, list[str]]]:
    """A server that gives these answers in turn, the last for ever; its URL, and what it was asked."""
    asked: list[str] = []

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers[min(len(asked), len(answers) - 1)]
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def waited(url: str, patience_s: float = 60.0) -> tuple[float, list[str]]:
    """For how long, and what was told meanwhile."""
    clock, told = VirtualClock(), list[str]()
    await_ready(url, patience_s, clock, told.append)
    return clock.now(), told


def test_a_server_that_is_starting_is_waited_for_and_told_of_once() -> None:
    with answering(STARTING, STARTING, (200, b"{}")) as (url, asked):
        seconds, told = waited(url)
    assert seconds == 1.0
    assert asked == ["/health"] * 3
    address = url.replace("http", "ws")
    assert told == [f"waiting up to 60 s for {address}/v1/realtime: the server says starting"]


def test_patience_that_was_too_short_is_exit_code_4_with_the_reason_and_the_option() -> None:
    with answering(STARTING) as (url, _), pytest.raises(TargetUnreachable) as late:
        waited(url, patience_s=3.0)
    assert late.value.exit_code == 4
    assert "the server says starting, after 3 s still" in str(late.value)
    assert "--wait" in str(late.value)


def test_a_server_whose_engine_is_given_up_is_to_be_started_anew() -> None:
    with answering((503, b'{"status": "engine_dead"}')) as (url, _), pytest.raises(TargetUnreachable) as late:
        waited(url, patience_s=1.0)
    assert "the server says engine_dead" in str(late.value)
    assert "start the server anew" in str(late.value)
    assert "patient" not in str(late.value)


def test_an_address_where_nobody_listens_yet_is_waited_for() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://bob:secret@127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(
            TargetUnreachable, match=r"Connection refused, after 2 s still.*metronome serve"
        ) as late:
            waited(url, patience_s=2.0)
    assert "secret" not in str(late.value)


@pytest.mark.parametrize("answer", [(200, b""), (404, b"no such page"), (401, b""), (500, b"")])
def test_whoever_answers_anything_else_is_there(answer: tuple[int, bytes]) -> None:
    with answering(answer) as (url, _):
        assert waited(url) == (0.0, [])


@pytest.mark.parametrize("body", [b"", b"busy", b"[]", b'{"status": 3}', b"\xff"])
def test_a_503_in_any_words_is_not_ready(body: bytes) -> None:
    with answering((503, body), (200, b"")) as (url, _):
        seconds, told = waited(url)
    assert (seconds, len(told)) == (0.5, 1)
    assert told[0].endswith("the server says HTTP 503")


def test_the_health_page_of_a_server_below_a_path_lies_there_too() -> None:
    with answering((200, b"")) as (url, asked):
        waited(f"{url}/voice/v1/realtime")
        waited(f"{url}/api/chat")
    assert asked == ["/voice/health", "/health"]


@pytest.mark.parametrize("url", ["http://nowhere.invalid", f"http://{'a' * 70}:1", "http://a..b:1"])
def test_a_name_that_no_host_has_is_left_for_dialling_to_say(url: str) -> None:
    assert waited(url) == (0.0, [])
