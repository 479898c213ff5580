"""One call's messages on their way to the engine: marked, bounded, and never lost once they are taken."""

from __future__ import annotations

from typing import cast

import pytest

from metronome_cli.errors import InputError
from metronome_cli.frame import SessionId
from metronome_cli.profile import parse_profile
from metronome_cli.server import messages
from metronome_cli.server.line import Line
from metronome_cli.server.link import EngineLink

MOST = 2 * 4 * 16_000 // 10  # bytes on the line of a session that may have 0.1 s waiting


class Link:
    """The far end, as far as a line needs one."""

    silent_s = 0.0

    def __init__(self) -> None:
        self.sent: list[messages.ToEngine] = []
        self.closed: list[SessionId] = []

    def send(self, message: messages.ToEngine) -> None:
        self.sent.append(message)

    def close(self, session: SessionId) -> None:
        self.closed.append(session)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def line(link: Link) -> Line:
    made = Line(cast(EngineLink, link), parse_profile("test", {"server": {"max_pending_s": 0.1}}))
    made.session = 7
    return made


def test_a_message_carries_its_session_and_a_mark_that_grows(line: Line, link: Link) -> None:
    line.say(messages.Commit)
    line.say(messages.Audio, b"1234", "mine", size=4)
    line.say(messages.Reply, 5)
    first, second, third = link.sent
    assert first == messages.Commit(7, 128)
    assert second == messages.Audio(7, 260, b"1234", "mine")
    assert third == messages.Reply(7, 388, 5)


def test_more_than_may_wait_is_refused_and_not_sent(line: Line, link: Link) -> None:
    line.say(messages.Audio, b"", None, size=MOST - 200)
    with pytest.raises(InputError, match="may wait for a tick, 12800 bytes on the line") as caught:
        line.say(messages.Commit)
    assert (caught.value.code, len(link.sent)) == ("buffer_full", 1)


def test_what_the_engine_took_makes_room(line: Line, link: Link) -> None:
    for _ in range(10):
        line.say(messages.Audio, b"", None, size=MOST - 200)
        sent = link.sent[-1]
        assert isinstance(sent, messages.Audio)
        line.taken = sent.mark


def test_what_follows_from_what_was_taken_is_sent_however_much_waits(line: Line, link: Link) -> None:
    line.say(messages.Audio, b"", None, size=MOST - 200)
    line.follow(messages.Commit)
    line.follow(messages.Reply, 0)
    assert [type(sent) for sent in link.sent] == [messages.Audio, messages.Commit, messages.Reply]
    with pytest.raises(InputError):
        line.check_room(0)


def test_a_line_that_is_closed_closes_its_session(line: Line, link: Link) -> None:
    line.close()
    assert link.closed == [7]


def test_while_the_engine_is_silent_nobody_is_told_to_be_slower(line: Line, link: Link) -> None:
    line.say(messages.Audio, b"", None, size=MOST - 200)
    with pytest.raises(InputError, match="send at the pace of speech"):
        line.check_room(100)
    link.silent_s = 31.2
    with pytest.raises(
        InputError, match="the engine has taken none for 31 s; wait until it answers"
    ) as caught:
        line.check_room(100, "audio")
    assert (caught.value.code, caught.value.field) == ("buffer_full", "audio")
