"""Who may call, and how often: the rules alone, and a server that keeps them."""

from __future__ import annotations

import asyncio
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from metronome_cli import wire
from metronome_cli.errors import FieldError, ProfileError
from metronome_cli.profile import parse_profile
from metronome_cli.report import redacted
from metronome_cli.server.access import (
    EventRate,
    OpenRate,
    Rules,
    authorized,
    denial,
    origin_allowed,
    read_keys,
    warn_if_exposed,
)

from .running import PATIENCE_S, Server

Start = Callable[..., Server]
KEY, OTHER = "sk-first-0123456789", "sk-other"
PAGE = "https://app.example.org"


# ---- Keys ----


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_holds_a_key_a_line_with_comments_and_blanks(tmp_path: Path) -> None:
    file = key_file(tmp_path, f"# the team's\n{KEY}\n\n  {OTHER}  \n#{KEY}x\n")
    assert read_keys(None, file) == (KEY, OTHER)
    assert read_keys("typed", file) == ("typed", KEY, OTHER)
    assert read_keys(OTHER, file) == (OTHER, KEY)


def test_without_option_and_file_there_are_no_keys() -> None:
    assert read_keys(None, None) == ()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_file_that_others_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    file = key_file(tmp_path, KEY, mode)
    read_keys(None, file)
    assert [record.getMessage() for record in caplog.records] == [
        f"{file} can be read by other users of this machine: chmod 600 it"
    ]


def test_a_file_of_our_own_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    read_keys(None, key_file(tmp_path, KEY))
    assert not caplog.records


@pytest.mark.parametrize("text", ["", "# nothing but words\n", "\n\n"])
def test_a_file_without_keys_is_an_error_and_not_an_open_door(tmp_path: Path, text: str) -> None:
    with pytest.raises(FieldError, match=r"api_key_file = .*at least one key"):
        read_keys(None, key_file(tmp_path, text))


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match=r"api_key_file = .*none.*readable text file"):
        read_keys(None, tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FieldError, match=r"api_key_file = .*binary"):
        read_keys(None, tmp_path / "binary")


@pytest.mark.parametrize("bad", ["two words", "schlüssel", "tab\there"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(tmp_path: Path, bad: str) -> None:
    with pytest.raises(FieldError, match="visible ASCII") as typed:
        read_keys(bad, None)
    with pytest.raises(FieldError, match="line 2") as written:
        read_keys(None, key_file(tmp_path, f"{KEY}\n{bad}\n"))
    assert bad not in f"{typed.value} {written.value}"


def test_rules_do_not_show_their_keys() -> None:
    assert KEY not in repr(Rules(keys=(KEY,)))


@pytest.mark.parametrize(
    "line", [["serve", "--api-key", KEY, "--port", "0"], ["serve", f"--api-key={KEY}", "--port", "0"]]
)
def test_a_command_line_is_written_down_without_its_keys(line: list[str]) -> None:
    shown = redacted(line)
    assert KEY not in " ".join(shown)
    assert (shown[0], shown[-2:]) == ("serve", ["--port", "0"])
    assert redacted(["load", "--api-key-file", "keys.txt"]) == ["load", "--api-key-file", "keys.txt"]


# ---- Headers ----


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"Bearer {KEY}", True),
        (f"bearer   {KEY} ", True),
        (f"Bearer {OTHER}", True),
        (None, False),
        ("", False),
        ("Bearer", False),
        (KEY, False),
        (f"Basic {KEY}", False),
        (f"Bearer {KEY}x", False),
        (f"Bearer {KEY[:-1]}", False),
        (f"Bearer {KEY} {OTHER}", False),
        ("Bearer \udcff\xe9", False),
    ],
)
def test_only_a_whole_key_as_bearer_opens(header: str | None, expected: bool) -> None:
    assert authorized(header, (KEY, OTHER)) is expected


@given(st.text())
def test_no_header_opens_by_chance_or_breaks_the_check(header: str) -> None:
    assert not authorized(header, (KEY,))
    assert authorized(header, ())


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (None, "127.0.0.1:8765", True),  # no browser
        ("http://127.0.0.1:3000", "127.0.0.1:8765", True),
        ("http://localhost:3000", "localhost:8765", True),
        ("http://[::1]:3000", "[::1]:8765", True),
        ("http://LOCALHOST", "localhost:8765", True),
        ("http://localhost:3000", "127.0.0.1:8765", False),
        ("https://evil.example.com", "127.0.0.1:8765", False),
        ("null", "127.0.0.1:8765", False),  # a sandboxed frame, or a file
        ("null", "null", False),
        ("", "", False),
        ("http://[::1", "[::1", False),  # not even a URL
        ("https://evil.example.com", None, False),
        (PAGE, "127.0.0.1:8765", True),  # listed
        (PAGE.upper(), "127.0.0.1:8765", True),
        (f"{PAGE}:8443", "127.0.0.1:8765", False),
        ("http://app.example.org", "127.0.0.1:8765", False),
    ],
)
def test_a_page_may_call_its_own_host_and_where_it_is_listed(
    origin: str | None, host: str | None, allowed: bool
) -> None:
    assert origin_allowed(origin, host, (PAGE,), keyed=False) is allowed


def test_any_page_may_call_where_all_are_listed() -> None:
    assert origin_allowed("https://evil.example.com", "127.0.0.1", ("*",), keyed=False)


def test_a_name_that_was_pointed_at_us_does_not_make_its_pages_our_own() -> None:
    """With a key it is no danger: the page does not have it."""
    assert not origin_allowed("http://evil.example.com", "evil.example.com:8765", (), keyed=False)
    assert origin_allowed("https://calls.example.com", "calls.example.com", (), keyed=True)


def test_a_wrong_origin_is_said_before_a_wrong_key() -> None:
    denied = denial({"origin": PAGE, "host": "127.0.0.1"}, (KEY,), ())
    assert denied is not None
    assert (denied.status, denied.code) == (403, "origin_not_allowed")


@pytest.mark.parametrize("origins", [PAGE, ["app.example.org"], [f"{PAGE}/page"], [""], ["https://"]])
def test_an_origin_that_no_browser_would_send_is_refused_in_the_profile(origins: Any) -> None:
    with pytest.raises(ProfileError, match=r"server\.origins = .*"):
        parse_profile("mine", {"server": {"origins": origins}})


@pytest.mark.parametrize(
    ("address", "keys", "warned"),
    [
        ("127.0.0.1", (), False),
        ("::1", (), False),
        ("0.0.0.0", (), True),  # noqa: S104
        ("::", (), True),
        ("192.0.2.7", (), True),
        ("192.0.2.7", (KEY,), False),
    ],
)
def test_an_open_door_on_a_network_is_warned_of(
    caplog: pytest.LogCaptureFixture, address: str, keys: tuple[str, ...], warned: bool
) -> None:
    warn_if_exposed(address, keys)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warned


# ---- Rates ----


def test_calls_beyond_the_rate_are_refused_until_time_has_passed() -> None:
    rate = OpenRate(10, now=0)
    assert [rate.take(0) is None for _ in range(12)] == [True] * 10 + [False] * 2
    assert rate.take(0.05) is not None
    assert rate.take(0.1) is None
    assert rate.take(0.1) is not None


def test_a_refused_call_is_told_when_to_come_again() -> None:
    rate = OpenRate(0.25, now=0)
    assert rate.take(0) is None
    denied = rate.take(0)
    assert denied is not None
    assert (denied.status, denied.code, denied.headers["Retry-After"]) == (503, "too_many_opens", "4")
    later = rate.take(2)
    assert later is not None
    assert later.headers["Retry-After"] == "2"
    assert rate.take(4) is None


@given(st.floats(0.5, 200), st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_no_more_calls_than_the_rate_and_one_second_of_it_ever_come_in(
    per_s: float, gaps: list[float]
) -> None:
    rate, now, came_in = OpenRate(per_s, now=5.0), 5.0, 0
    for gap in gaps:
        now += gap
        came_in += rate.take(now) is None
    assert came_in <= max(1, per_s) + per_s * (now - 5.0) + 1e-6


def test_a_caller_within_his_rate_never_waits() -> None:
    rate = EventRate(50, now=0)
    assert [rate.take(event / 50) for event in range(500)] == [0.0] * 500


def test_a_caller_who_floods_is_read_at_his_rate_and_loses_nothing() -> None:
    """Read as fast as it tells us to, 1,000 events take the 19 s that those beyond the first second need."""
    rate, now = EventRate(50, now=0), 0.0
    for _ in range(1000):
        now += rate.take(now)
    assert now == pytest.approx(19.0)


# ---- A server that keeps the rules ----


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a key, and with a page that may call."""
    folder = tmp_path_factory.mktemp("keyed")
    running = Server.start(folder, env={"METRONOME_API_KEY": KEY}, more=f'origins = ["{PAGE}"]')
    yield running
    try:
        code, said = running.stop()
        assert (code, said.count("\n")) == (0, 1), said
        assert KEY not in said + (running.folder / "report.json").read_text()
    finally:
        running.kill()


def got(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers in lower case, body."""
    request = urllib.request.Request(server.url + path, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
            return answer.status, _lower(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, _lower(error.headers), error.read()


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def called(server: Server, headers: dict[str, str]) -> Response | None:
    """The HTTP response in place of a call; None when the call was let in."""

    async def scene() -> Response | None:
        try:
            async with connect(server.address, proxy=None, additional_headers=headers) as line:
                assert json.loads(await line.recv())["type"] == "session.created"
                return None
        except InvalidStatus as refused:
            return refused.response

    return asyncio.run(scene())


def test_a_call_without_the_key_is_refused_before_the_upgrade(keyed: Server) -> None:
    for headers in ({}, {"Authorization": f"Bearer {OTHER}"}):
        response = called(keyed, headers)
        assert response is not None
        assert response.status_code == 401
        assert response.headers["WWW-Authenticate"] == "Bearer"
        assert response.headers["Content-Type"] == "application/json"
        error = json.loads(response.body or b"")["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert "Authorization: Bearer" in error["message"]


def test_a_call_with_the_key_is_let_in(keyed: Server) -> None:
    assert called(keyed, {"Authorization": f"Bearer {KEY}"}) is None


@pytest.mark.parametrize("path", ["/v1/models", "/capacity", wire.REALTIME_PATH, "/no/such/page"])
def test_every_other_page_wants_the_key_too(keyed: Server, path: str) -> None:
    status, headers, body = got(keyed, path)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert got(keyed, path, Authorization=f"Bearer {KEY}")[0] in (200, 404)


@pytest.mark.parametrize("path", ["/health", "/metrics"])
def test_whoever_watches_the_server_needs_no_key(keyed: Server, path: str) -> None:
    assert got(keyed, path)[0] == 200


def test_a_page_of_another_host_is_refused_and_a_listed_one_is_not(keyed: Server) -> None:
    right = {"Authorization": f"Bearer {KEY}"}
    response = called(keyed, right | {"Origin": "https://evil.example.com"})
    assert response is not None
    assert response.status_code == 403
    assert json.loads(response.body or b"")["error"]["code"] == "origin_not_allowed"
    assert called(keyed, right | {"Origin": PAGE}) is None
    assert called(keyed, right | {"Origin": keyed.url}) is None


def test_too_many_calls_in_a_second_are_told_to_come_again(start: Start) -> None:
    """The refusals are counted where all others are, and spend nothing: the next second is for calls."""
    server = start(more="max_opens_per_s = 0.02", max_sessions=2)
    assert called(server, {}) is None
    response = called(server, {})
    assert response is not None
    assert response.status_code == 503
    assert 1 <= int(response.headers["Retry-After"]) <= 50
    error = json.loads(response.body or b"")["error"]
    assert (error["type"], error["code"]) == ("server_overloaded", "too_many_opens")
    assert server.stop()[0] == 0
    assert json.loads((server.folder / "report.json").read_text())["results"]["refused"] == {
        "too_many_opens": 1
    }


def test_keys_of_a_file_and_of_an_option_are_used_and_written_down_nowhere(tmp_path: Path) -> None:
    file = key_file(tmp_path, f"{KEY}\n{OTHER}\n", 0o644)
    server = Server.start(tmp_path, options=("--api-key-file", str(file), "--api-key", "sk-typed"))
    try:
        assert called(server, {}) is not None
        for key in (OTHER, "sk-typed"):
            assert called(server, {"Authorization": f"Bearer {key}"}) is None
        _, said = server.stop()
        assert said.count("chmod 600") == 1
        report = (server.folder / "report.json").read_text()
        assert "--api-key" in report
        assert not any(key in said + report for key in (KEY, OTHER, "sk-typed"))
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("ws://bob:secret@127.0.0.1:80/x@y", "ws://127.0.0.1:80/x@y"),
        ("https://token@example.org", "https://example.org"),
        ("bob:secret@127.0.0.1:80", "127.0.0.1:80"),
        ("http://127.0.0.1/a:b@c", "http://127.0.0.1/a:b@c"),
        ("runs@home", "runs@home"),
    ],
)
def test_a_command_line_is_written_down_without_the_password_of_a_url(word: str, shown: str) -> None:
    assert redacted(["load", word]) == ["load", shown]
