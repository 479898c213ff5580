"""When a server is not called any more: by its words alone, and over real sockets."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.http11 import Request, Response

from metronome_cli import wire
from metronome_cli.clock import SystemClock
from metronome_cli.load import arrivals, limits, results, runner
from metronome_cli.load.call import Call, Fate
from metronome_cli.load.frames import CallFrames
from metronome_cli.load.lengths import Length
from metronome_cli.load.over import LastWords, Over
from metronome_cli.load.runner import Plan, Run, run_load
from metronome_cli.load.targets import TurnedAway
from metronome_cli.runtime.recorder import Recorder
from metronome_cli.speech import Clip

from .fakes import served
from .runs import a_call

CREATED = wire.SessionCreated(
    event_id="e",
    session=wire.SessionInfo(
        id="sess_1", model="m", audio=wire.AudioSettings(), metronome=wire.MetronomeInfo(frame_s=0.1)
    ),
)


def ended(fate: Fate, error: str = "", closed: int | None = None) -> Call:
    call = a_call()
    call.fate, call.closed = fate, closed
    if error:
        call.object(error, 1.0)
    return call


def refused(reason: str, retry_after_s: float | None) -> Call:
    call = ended("refused")
    call.why, call.frames = reason, None
    call.refusals.append(TurnedAway(reason, retry_after_s))
    return call


@pytest.mark.parametrize(
    ("reason", "retry_after_s", "over"),
    [
        ("engine_dead", None, True),
        ("engine_dead", 1.0, False),
        ("restarting", 1.0, False),
        ("draining", 1.0, False),
        ("http_503", None, False),  # a server of another make
    ],
)
def test_one_refusal_of_all_says_that_nobody_need_come_again(
    reason: str, retry_after_s: float | None, over: bool
) -> None:
    call = refused(reason, retry_after_s)
    said = LastWords().heed(call, [call], 5.0)
    assert bool(said) == over
    if said:
        assert said == Over(5.0, "it refused a call with engine_dead, and told no time to come again")


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (ended("cut_off", "engine_dead", 1011), "engine_dead"),
        (ended("cut_off", "engine_hung", 1011), "engine_hung"),
        (ended("cut_off", "server_draining", 1012), "server_draining"),
        (ended("cut_off", "", 1001), "goodbye (1001)"),
        (ended("cut_off", "", 1006), ""),  # the line broke: its server may be there
        (ended("cut_off", "session_failed", 1011), ""),
        (ended("done", "engine_busy"), ""),
    ],
)
def test_where_nobody_answers_after_a_servers_last_words_it_is_over(cut: Call, said: str) -> None:
    words, nobody = LastWords(), ended("unreachable")
    nobody.frames = None
    assert words.heed(nobody, [nobody], 1.0) is None  # it never said a word
    assert words.heed(cut, [cut], 2.0) is None  # it may come back
    over = words.heed(nobody, [cut, nobody], 3.0)
    assert over == (Over(3.0, f"it had said {said}, and then nobody answered") if said else None)


def test_last_words_are_forgotten_once_a_call_was_let_in_again() -> None:
    words, cut, nobody, later = LastWords(), ended("cut_off", "engine_dead"), ended("unreachable"), a_call()
    nobody.frames = None
    words.heed(cut, [cut], 2.0)
    later.frames = CallFrames(1, start=2.5)
    assert words.heed(nobody, [cut, later, nobody], 3.0) is None


# ---- Over real sockets ----


class Server:
    """Answers its callers as `answers` says, one after another, and from the last on always alike.

    "": it takes the call; "dies", "breaks": and ends it at once, with its last words or with none; "nobody":
    as good as no answer; else it refuses the call with that word.
    """

    def __init__(self, *answers: str) -> None:
        self._answers = answers
        self.asked = 0

    @property
    def _answer(self) -> str:
        return self._answers[min(self.asked, len(self._answers)) - 1]

    def at_the_door(self, line: ServerConnection, _: Request) -> Response | None:
        self.asked += 1
        if self._answer in ("", "dies", "breaks"):
            return None
        if self._answer == "nobody":
            return line.respond(HTTPStatus.NOT_FOUND, "")
        body = wire.encode(wire.Refusal(error=wire.RefusalDetail(code=self._answer, message="no")))
        answer = line.respond(HTTPStatus.SERVICE_UNAVAILABLE, body.decode())
        if self._answer != "engine_dead":
            answer.headers["Retry-After"] = "0"
        return answer

    async def __call__(self, line: ServerConnection) -> None:
        answer = self._answer
        await line.send(wire.encode(CREATED), text=True)
        if answer == "breaks":
            line.transport.abort()
        elif answer == "dies":
            died = wire.ErrorDetail(type="server_error", code="engine_dead", message="it died")
            await line.send(wire.encode(wire.ErrorEvent(event_id="e", error=died)), text=True)
            await line.close(wire.CLOSE_ENGINE_DEAD)
        else:
            async for _ in line:
                pass


def play(server: Server, clips: list[Clip], monkeypatch: pytest.MonkeyPatch, **plan: Any) -> Run:
    """One line that is kept busy, if `plan` says nothing else, by callers who lose no time."""
    monkeypatch.setattr(arrivals, "_SOON_S", 0.02)
    monkeypatch.setattr(runner, "_REDIAL_FAILED_S", 0.02)
    clock, length = SystemClock(), Length.parse("400ms")
    with served(server, at_the_door=server.at_the_door) as url:
        rest: dict[str, Any] = {"sessions": 1, "spread_s": 0.0, "redials": 5, "call_length": length}
        return run_load(Plan(url, **rest | plan), clips, clock, Recorder(None, clock))


@pytest.mark.parametrize(
    ("answers", "asked", "why"),
    [
        (("dies", "engine_dead"), 2, "it refused a call with engine_dead, and told no time to come again"),
        (("dies", "restarting", "nobody"), 3, "it had said engine_dead, and then nobody answered"),
    ],
)
def test_a_server_that_is_over_is_not_called_again_and_the_report_says_so(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...], asked: int, why: str
) -> None:
    server = Server(*answers)
    done = play(server, clips, monkeypatch, duration_s=60.0)
    found = results.summarise(done)
    assert server.asked == asked
    assert found["elapsed_s"] < 10
    assert found["over"] == {"at_s": pytest.approx(found["elapsed_s"], abs=0.5), "why": why}
    assert f"nobody dialled any more after {found['over']['at_s']:.1f} s: {why}" in results.notes(found)
    assert not limits.held(found)


def test_callers_who_have_not_come_yet_do_not_come_any_more(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = {"sessions": 5, "spread_s": None, "rate_hz": 0.05, "redial": False}
    done = play(Server("engine_dead"), clips, monkeypatch, duration_s=100.0, **plan)
    found = results.summarise(done)
    assert (found["calls"]["dialled"], found["calls"]["refused"]) == (1, {"engine_dead": 1})
    assert results.notes(found)[0].endswith("told no time to come again; 4 calls were not made")


def test_who_waits_to_dial_again_waits_no_longer_and_a_call_that_lives_goes_on(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where several servers share an address."""
    waits = iter([30.0])
    monkeypatch.setattr(runner, "redial_wait", lambda *_: next(waits))
    plan = {"sessions": 3, "rate_hz": 20.0, "spread_s": None, "call_length": Length.parse("800ms")}
    done = play(Server("", "restarting", "engine_dead"), clips, monkeypatch, duration_s=60.0, **plan)
    assert [(call.fate, call.attempts) for call in done.calls] == [
        ("done", 1),
        ("refused", 1),
        ("refused", 1),
    ]
    assert done.end - done.start < 10


@pytest.mark.parametrize("end", ["dies", "breaks"])
def test_a_server_that_comes_back_or_says_nothing_is_called_on(
    clips: list[Clip], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    answers = {"dies": ("dies", "restarting", "restarting", ""), "breaks": ("breaks", "nobody", "nobody", "")}
    server = Server(*answers[end])
    done = play(server, clips, monkeypatch, duration_s=1.0)
    assert done.over is None
    assert server.asked >= 4
    assert done.calls[-1].fate == "done"
    assert results.summarise(done)["over"] is None
