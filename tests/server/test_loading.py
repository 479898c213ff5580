"""The bar and the signs of a model that loads."""

from __future__ import annotations

import io
from contextlib import ExitStack

import zmq

from metronome_cli.clock import VirtualClock
from metronome_cli.server import messages
from metronome_cli.server.loading import Bar, Signs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_moves_a_few_times_a_second_and_leaves_nothing() -> None:
    screen, clock = Terminal(), VirtualClock()
    bar = Bar(screen, clock)
    for part in range(1, 11):
        bar.show(part * 1_000_000_000, 10_000_000_000)
        clock.advance(0.11)
    lines = screen.getvalue().split("\r")[1:]
    assert lines[0] == "reading weights [#########.....................]  30% of 10.0 GB"
    assert [line[-14:-11] for line in lines[:-2]] == ["30%", "50%", "70%", "90%"]
    assert (lines[-2].strip(), lines[-1]) == ("", "")
    assert len(lines[-2]) == len(lines[0])


def test_nothing_is_drawn_where_nobody_watches() -> None:
    stream = io.StringIO()
    Bar(stream, VirtualClock()).show(1, 2)
    assert stream.getvalue() == ""


def test_who_said_hello_gets_signs_and_nothing_that_was_said_is_lost() -> None:
    clock = VirtualClock()
    hello = messages.pack(messages.Hello(messages.PROTOCOL))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket, ExitStack() as lines:
        socket.bind("inproc://engine")
        one, other, stranger = (lines.enter_context(context.socket(zmq.DEALER)) for _ in range(3))
        signs = Signs(socket, clock)
        signs.give()  # while nobody is there
        clock.advance(1.0)
        for line, said in ((one, [hello]), (stranger, [b"rubbish"])):
            line.connect("inproc://engine")
            line.send_multipart(said)
        signs.give()
        other.connect("inproc://engine")
        other.send_multipart([hello, b"more"])
        clock.advance(0.9)
        signs.give()  # too soon for another
        clock.advance(0.1)
        signs.give()
        assert [heard(line) for line in (one, other, stranger)] == [2, 1, 0]
        assert sorted(parts for _, *parts in signs.taken) == sorted([[hello], [b"rubbish"], [hello, b"more"]])


def heard(line: zmq.Socket[bytes]) -> int:
    """How many signs it got."""
    signs = 0
    while line.poll(0):
        assert isinstance(messages.to_gateway(line.recv()), messages.Loading)
        signs += 1
    return signs
